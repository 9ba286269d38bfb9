"""What a batch changes in an ordered bag of rows per key, with the neighbours that the change may
touch.

Theory. Many operators decide about a row by looking at the next one of its key: dedup keeps a row
if the next one is in another group, a version lives until the next one. A batch then changes the
decision about the rows it brings or takes and about those just before them. So for every key of the
batch the *neighbourhood* is read: all rows between the first and the last touched timestamp, the
last row before them, and the rows at the next timestamp after them. `before` and `after` hold it
without and with the batch; what is emitted is the difference of what the operator makes of the two.
Rows at the next timestamp only serve as neighbours (`edge`): their own successors are not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from fennel_core.operators.rows import (
    MAX_TIME,
    apply_signs,
    encode_rows,
    ordered_keys,
    prefixes,
    time_bytes,
    time_of,
    with_tombstones,
)
from fennel_core.operators.step import StateReader
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

COLUMNS = {
    "key": pl.Int64(),
    "ts": pl.Int64(),
    POS: pl.Binary(),
    "row": pl.Binary(),
    "edge": pl.Boolean(),
}
SMALL = 16
"""Rows up to which comparing them one by one is faster than a join."""
StateEntry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class AdjacentRows:
    """`before` and `after`: COLUMNS, sorted by key, then (timestamp, position); `key` numbers the
    keys of the batch.
    """

    before: pl.DataFrame
    after: pl.DataFrame
    puts: dict[bytes, bytes]
    deletes: frozenset[bytes]


def read_adjacent_rows(
    reads: StateReader,
    tag: bytes,
    keys: list[bytes],
    times: pl.Series,
    batch: pl.DataFrame,
    kept: tuple[str, ...],
) -> AdjacentRows:
    """File a batch under `keys`, ordered by `times` and position; rows at rest hold the columns
    `kept`.
    """
    places = ordered_keys(tag, keys, times, batch[POS])
    puts, deletes = apply_signs(
        reads, places, with_tombstones(encode_rows(batch, kept), batch[IS_TOMBSTONE]), batch[SIGN]
    )
    touched = pl.DataFrame(
        {"name": keys, "ts": times, "place": places},
        schema_overrides={"name": pl.Binary, "place": pl.Binary},
    )
    spans = touched.group_by("name", maintain_order=True).agg(
        low=pl.col("ts").min(),
        high=pl.col("ts").max(),
        places=pl.col("place").unique(maintain_order=True),
    )
    before: list[tuple[int, int, bytes, bytes, bool]] = []
    after: list[tuple[int, int, bytes, bytes, bool]] = []
    named = zip(
        spans.select("low", "high", "places").rows(),
        prefixes(tag, spans["name"].to_list()),
        strict=True,
    )
    for number, ((low, high, here), prefix) in enumerate(named):
        inside, above = _around(reads, prefix, low, high)
        new = {place: row for place, row in inside if place not in deletes}
        new.update((place, puts[place]) for place in here if place in puts)
        edge = _flat(number, len(prefix), above, edge=True)
        before += _flat(number, len(prefix), inside, edge=False) + edge
        after += _flat(number, len(prefix), sorted(new.items()), edge=False) + edge
    return AdjacentRows(
        pl.DataFrame(before, schema=COLUMNS, orient="row"),
        pl.DataFrame(after, schema=COLUMNS, orient="row"),
        puts,
        deletes,
    )


def row_difference(before: pl.DataFrame, after: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows only in `before` and rows only in `after`, by all columns."""
    if before.height + after.height <= SMALL:
        was, becomes = before.rows(), after.rows()
        gone_rows = [row for row in was if row not in becomes]
        return _frame(before, gone_rows), _frame(before, [row for row in becomes if row not in was])
    names = before.columns
    gone = before.join(after, on=names, how="anti", nulls_equal=True, maintain_order="left")
    return gone, after.join(before, on=names, how="anti", nulls_equal=True, maintain_order="left")


def _frame(like: pl.DataFrame, rows: list[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=like.schema, orient="row") if rows else like.clear()


def _around(
    reads: StateReader, prefix: bytes, low: int, high: int
) -> tuple[list[StateEntry], list[StateEntry]]:
    """Entries from the last before `low` to the last at `high`, and those at the next timestamp."""
    start, stop = prefix + time_bytes(low), prefix + time_bytes(high + 1)
    inside = [*reads.scan(prefix, start, reverse=True, limit=1), *reads.scan(start, stop)]
    above = reads.scan(stop, prefix + time_bytes(MAX_TIME), limit=1)
    if above:
        following = time_of(above[0][0], len(prefix))
        above = reads.scan(above[0][0], prefix + time_bytes(following + 1))
    return inside, above


def _flat(
    number: int, length: int, entries: list[StateEntry], *, edge: bool
) -> list[tuple[int, int, bytes, bytes, bool]]:
    return [
        (number, time_of(place, length), place[length + 8 :], row, edge) for place, row in entries
    ]
