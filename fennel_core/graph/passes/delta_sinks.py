"""Check the options of sinks into Delta tables, and that the dataset's fields can be columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from fennel_core.graph.passes.streams import connector_problems
from fennel_core.vocab import dtypes as d
from fennel_core.vocab.change_columns import COORDINATES
from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c
from fennel_core.wire.entities import Dataset

PART: Final = re.compile(r"[A-Za-z0-9._=-]+")
"""A part of a path that is the same as text and in a URL; the client's own rule for `path`."""
OWN: Final = frozenset(
    [
        *(each.name for each in COORDINATES),
        *("_change_type", "_commit_version", "_commit_timestamp"),
    ]
)
"""Columns that a sink adds, and those of Delta's change data feed."""


def check_delta_sink(
    dataset: Dataset, sink: c.Sink, table: c.S3Table, into: str
) -> Iterator[Problem]:
    """Yield why a sink into a Delta table would have no effect, or cannot be written."""
    without_effect = {
        "stacked": sink.stacked,
        "create=False": not sink.create,
        "since": sink.since_us is not None,
        "until": sink.until_us is not None,
        "presorted": table.presorted,
        "spread": table.spread_us is not None,
    }
    for option in (name for name, given in without_effect.items() if given):
        text = f"{into} with `{option}`, which has no effect on a Delta table; remove the option"
        yield Problem("sink-option-not-served", dataset.name, text)
    path = table.prefix.strip("/")
    parts = path.split("/")
    if table.suffix or not all(PART.fullmatch(part) and set(part) != {"."} for part in parts):
        text = (
            f"{into}, whose path is no folder: name one below the bucket, without wildcards, of "
            "letters, digits and `._=-`"
        )
        yield Problem("sink-option-not-served", dataset.name, text)
    yield from _columns(dataset, into)
    yield from connector_problems(dataset, table)


def _columns(dataset: Dataset, into: str) -> Iterator[Problem]:
    """Yield fields that are no columns of Delta: without a type, or named as another one."""
    lower = Counter(name.lower() for name in dataset.schema.names)
    for each in dataset.schema.fields:
        name = each.name
        if name.lower() in OWN or lower[name.lower()] > 1:
            text = (
                f"{into}, and field `{name}` has the name of another column of the table "
                "(upper and lower case are the same there); rename it"
            )
            yield Problem("sink-option-not-served", dataset.name, text)
        if _untyped(each.dtype):
            text = f"{into}, and field `{name}` has a type without values; remove the field"
            yield Problem("sink-option-not-served", dataset.name, text)


def _untyped(dtype: d.Dtype) -> bool:
    match dtype:
        case d.Null():
            return True
        case d.Optional(of) | d.List(of) | d.Map(of):
            return _untyped(of)
        case d.Struct(_, fields):
            return not fields or any(_untyped(each.dtype) for each in fields)
        case _:
            return False
