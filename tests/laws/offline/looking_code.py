"""User code that looks datasets up, as the law runs it: online and offline the same functions.

A function gets the times and inputs of its rows, and `ask`, the call `Dataset.lookup` of the real
executors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from fennel_core.executors.calls import ExtractCall
from fennel_core.executors.client import LookupReply, LookupRequest
from fennel_core.executors.errors import UserCodeFailed
from fennel_core.executors.internal_errors import LookupRefused
from fennel_core.query.columns import QueryColumn
from fennel_core.vocab.dtypes import Timestamp

SECOND = 1_000_000
Serve = Callable[[LookupRequest], Awaitable[LookupReply]]
Rows = Sequence[tuple[Any, ...]]
"""Per row its time (µs) and its inputs."""


class Ask:
    """`Dataset.lookup`, with the failures that user code sees."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve

    async def __call__(
        self,
        dataset: str,
        at: Sequence[int | None],
        keys: dict[str, Sequence[Any]],
        fields: tuple[str, ...] = (),
        labels: Sequence[int] | None = None,
    ) -> list[dict[str, Any]]:
        """Return a row per key. `labels`: of the timestamps; new ones count from 0."""
        labels = range(len(at)) if labels is None else labels
        times = pa.chunked_array([pa.array(at, pa.timestamp("us", "UTC"))])
        rows = pa.chunked_array([pa.array(labels, pa.int64())])
        asked = LookupRequest(dataset, fields, pa.table(keys), times, rows)
        try:
            found = await self._serve(asked)
        except LookupRefused as refused:
            raise failure(str(refused)) from refused
        frame = pl.from_arrow(found.table)
        assert isinstance(frame, pl.DataFrame)
        columns = {
            field.name: QueryColumn(field.dtype, series=frame[field.name]).values
            for field in found.fields
        }
        there = found.found.to_pylist()
        return [
            {name: values[n] for name, values in columns.items()} | {"found": there[n]}
            for n in range(len(at))
        ]


def failure(text: str) -> UserCodeFailed:
    return UserCodeFailed(text, "F.code", text, "")


async def age(rows: Rows, ask: Ask) -> list[Any]:
    """One lookup as of each row's time, which raises on what it finds."""
    found = await ask("Users", [t for t, *_ in rows], {"k": [k for _, k in rows]}, ("v",))
    if any(each["v"] == 1 for each in found):
        raise failure("v is 1")
    return [each["v"] if each["found"] else -1 for each in found]


async def friend(rows: Rows, ask: Ask) -> list[Any]:
    """A lookup of what a lookup found, of those rows for which it found something."""
    first = await ask("Users", [t for t, *_ in rows], {"k": [k for _, k in rows]})
    some = [n for n, each in enumerate(first) if each["v"] is not None]
    found = await ask(
        "Users",
        [rows[n][0] for n in some],
        {"k": [first[n]["v"] for n in some]},
        ("ts", "v"),
        some,
    )
    values = dict(zip(some, found, strict=True))
    return [values[n]["v"] if n in values else -2 for n in range(len(rows))]


async def earlier(rows: Rows, ask: Ask) -> list[Any]:
    """What was the newest three seconds before, without labels and for a part of the rows."""
    some = [n for n, (_, k) in enumerate(rows) if k != 1]
    found = await ask(
        "Users", [rows[n][0] - 3 * SECOND for n in some], {"k": [rows[n][1] for n in some]}, ("ts",)
    )
    values = dict(zip(some, found, strict=True))
    return [values[n]["ts"] if n in values else 0 for n in range(len(rows))]


async def later(rows: Rows, ask: Ask) -> list[Any]:
    """The newest row three seconds later, which must not be seen, in another order."""
    order = sorted(range(len(rows)), key=lambda n: -rows[n][0])
    at = [None if rows[n][1] == 0 else rows[n][0] + 3 * SECOND for n in order]
    found = await ask("Users", at, {"k": [rows[n][1] for n in order]}, ("ts",), order)
    values = dict(zip(order, found, strict=True))
    return [values[n]["ts"] for n in range(len(rows))]


async def total(rows: Rows, ask: Ask) -> list[Any]:
    """A terminal aggregation: a count and a sum, and one of no rows for the others."""
    if any(k == 2 for _, k in rows):
        raise failure("k is 2")  # before it looks anything up
    found = await ask("Totals", [t for t, *_ in rows], {"k": [k for _, k in rows]})
    return [100 * each["c"] + each["s"] for each in found]


async def pair(rows: Rows, ask: Ask) -> list[Any]:
    """A lookup by two keys, one of them null, of those with a user: two datasets in one call."""
    users = await ask("Users", [t for t, *_ in rows], {"k": [k for _, k, _ in rows]}, ("v",))
    some = [n for n, each in enumerate(users) if each["found"]]
    keys = {
        "k": [rows[n][1] for n in some],
        "n": pa.array([rows[n][2] for n in some], pa.int64()),
    }
    found = await ask("Pairs", [rows[n][0] for n in some], keys, ("s",), some)
    values = {n: each["s"] for n, each in zip(some, found, strict=True)}
    return [values.get(n, "missing") for n in range(len(rows))]


async def dedupe(rows: Rows, ask: Ask) -> list[Any]:
    """Each key once, at the time of its first row."""
    first: dict[Any, int] = {}
    for n, (_, k) in enumerate(rows):
        first.setdefault(k, n)
    some = list(first.values())
    found = await ask("Users", [rows[n][0] for n in some], {"k": list(first)}, ("v",), some)
    values = dict(zip(first, found, strict=True))
    return [values[k]["v"] for _, k in rows]


async def broadcast(rows: Rows, ask: Ask) -> list[Any]:
    """All keys at the time of the last row, as if a call had one time."""
    found = await ask("Users", [rows[-1][0]] * len(rows), {"k": [k for _, k in rows]}, ("v",))
    return [each["v"] for each in found]


async def loop(rows: Rows, ask: Ask) -> list[Any]:
    """One lookup for each row."""
    found = [await ask("Users", [t], {"k": [k]}, ("v",), [n]) for n, (t, k) in enumerate(rows)]
    return [each["v"] for [each] in found]


async def many(rows: Rows, ask: Ask) -> list[Any]:
    """Twelve lookups, none of which depends on another."""
    times = [t for t, _ in rows]
    for other in range(100, 111):
        await ask("Users", times, {"k": [other] * len(rows)})
    found = await ask("Users", times, {"k": [k for _, k in rows]})
    return [each["v"] for each in found]


CODES: dict[str, Callable[[Rows, Ask], Awaitable[list[Any]]]] = {
    "_code": age,
    "_friend": friend,
    "_earlier": earlier,
    "_later": later,
    "_total": total,
    "_pair": pair,
    "_dedupe": dedupe,
    "_broadcast": broadcast,
    "_loop": loop,
    "_many": many,
}


async def run(call: ExtractCall, rows: pa.Table, serve: Serve) -> pl.DataFrame:
    """Return the result of an extractor."""
    times = QueryColumn(Timestamp(), series=pl.Series(rows.column(0))).values
    inputs = [rows.column(n).to_pylist() for n in range(1, rows.num_columns)]
    values = await CODES[call.extractor](list(zip(times, *inputs, strict=True)), Ask(serve))
    field = call.outputs[0]
    return pl.DataFrame({field.name: QueryColumn(field.dtype, values).series})
