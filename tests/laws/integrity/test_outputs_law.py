"""The naive output of each group adds up to what the steps emit, whatever the order, split and
retractions of their inputs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.integrity.key_sample import KeySample
from fennel_core.integrity.naive_outputs import (
    OutputSpec,
    compared_spec,
    groups_of,
    output_row,
    written_rows,
)
from fennel_core.operators.build import build
from fennel_core.operators.spec import (
    ChangelogSpec,
    DedupSpec,
    FirstLatestSpec,
    IntervalsSpec,
    JoinSpec,
    with_validity,
)
from fennel_core.vocab.dtypes import Bool, Field, Int, Optional, Str, Timestamp
from fennel_core.vocab.schema import Schema
from fennel_core.wire.operators import Session, Tumbling
from tests.support.histories import as_frame, histories, run

SECOND = 1_000_000
EVENTS = Schema((), (Field("k", Str()), Field("x", Int())), "t")
KEYED = Schema((Field("k", Str()),), (Field("v", Optional(Int())),), "t")
RIGHT = Schema((Field("k", Str()),), (Field("v", Optional(Int())),), "ts")
JOINED = Schema(
    (), (*EVENTS.values, Field("v", Optional(Int())), Field("ts", Optional(Timestamp()))), "t"
)
EVENTED = Schema((), (*KEYED.keys, *KEYED.values, Field("flag", Bool())), "t")
LATEST = Schema((Field("k", Str()),), (Field("x", Int()),), "t")
TIMES = st.integers(0, 12).map(lambda half: half * SECOND // 2)
EVENT = st.fixed_dictionaries({"k": st.sampled_from("ab"), "x": st.integers(0, 2), "t": TIMES})
VERSION = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "t": TIMES,
        "ts": TIMES,
        "v": st.none() | st.integers(0, 3),
        "__tombstone": st.sampled_from([False, False, True]),
    }
).map(lambda row: {**row, "v": None} if row["__tombstone"] else row)


def join(low: int | None, high: int, *, inner: bool) -> JoinSpec:
    return JoinSpec(EVENTS, RIGHT, ("k",), ("v", "ts"), inner, low, high, JOINED)


SPECS: dict[str, OutputSpec] = {
    "join": join(None, 0, inner=False),
    "bounded join": join(2 * SECOND, SECOND, inner=True),
    "dedup": DedupSpec(EVENTS, ("k",), None, EVENTS),
    "dedup in windows": DedupSpec(EVENTS, ("k", "x"), Tumbling(2 * SECOND, 0), EVENTS),
    "dedup in sessions": DedupSpec(EVENTS, ("k",), Session(SECOND), EVENTS),
    "first": FirstLatestSpec(EVENTS, ("k",), True, LATEST),
    "latest": FirstLatestSpec(EVENTS, ("k",), False, LATEST),
    "intervals": IntervalsSpec(KEYED, with_validity(KEYED)),
    "inserts": ChangelogSpec(KEYED, "flag", False, EVENTED),
    "deletes": ChangelogSpec(KEYED, "flag", True, EVENTED),
}


def bag(spec: OutputSpec, rows: list[dict[str, Any]]) -> Counter[bytes]:
    names = (*spec.output.names, "(tombstone)")
    encode = msgspec.msgpack.Encoder(order="sorted").encode
    return Counter(encode([row[name] for name in names]) for row in rows)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_the_naive_rows_of_all_groups_are_the_integral_of_what_is_emitted(
    name: str, data: Any
) -> None:
    spec = SPECS[name]
    assert compared_spec(spec) is spec
    groups = groups_of(spec)
    contents = [EVENT if schema is EVENTS else VERSION for schema, _ in groups]
    history = data.draw(histories(*contents, max_rows=8))
    schemas = [schema for schema, _ in groups]
    _, emitted = run(build(spec), history, *schemas, canonical=False)
    samples = [KeySample(columns, 1, 100) for _, columns in groups]
    for batch in reversed(history.batches):
        source = batch[0].source
        samples[source].add(as_frame(schemas[source], batch))
    output = KeySample(groups[0][1], 1, 100)
    if emitted:
        output.add(pl.concat(emitted))
    inputs = [
        sample.rows_of(schema.timestamp) for sample, schema in zip(samples, schemas, strict=True)
    ]
    expected = [
        row
        for key in {key for each in inputs for key in each}
        for row in written_rows(spec, [each.get(key, []) for each in inputs])
    ]
    found = [
        output_row(row) for rows in output.rows_of(spec.output.timestamp).values() for row in rows
    ]
    assert bag(spec, expected) == bag(spec, found)


def test_a_table_table_join_is_not_compared() -> None:
    left = with_validity(KEYED)
    assert compared_spec(JoinSpec(left, RIGHT, ("k",), ("v",), False, None, 0, left)) is None
