"""The rows of each key that a batch changes, with the adjacent rows that the change may affect.

Theory. Many operators decide about a row by looking at the next one of its key: dedup keeps a row
if the next one is in another group, a version is valid until the next one. A batch then changes the
decision about the rows that it adds or retracts and about those just before them. So for every key
of the batch the *adjacent rows* are read: all rows between the first and the last touched
timestamp, the last row before them, and the rows at the next timestamp after them. `before` and
`after` hold them without and with the batch; a step emits the difference of what it derives from
the two. Rows at the next timestamp are marked `edge`: no decision is made about them, since their
own successors are not read.

Example. Key k has rows at 10, 20, 30 and 40, and a batch adds one at 25. `before` holds the row at
20 and, as the edge, the row at 30; `after` holds those at 20 and 25 and the same edge. A step that
ends each row at its successor derives [20, 30) from `before`, [20, 25) and [25, 30) from `after`.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from fennel_core.operators.rows import (
    MAX_TIME,
    TIME_BYTES,
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
SMALL_DIFFERENCE = 16
"""Rows up to which comparing them one by one is faster than a join."""
StateEntry = tuple[bytes, bytes]
"""A state key and its value."""
_Row = tuple[int, int, bytes, bytes, bool]
"""The values of one row in the order of COLUMNS."""


@dataclass(frozen=True, slots=True)
class AdjacentRows:
    """`before` and `after`: COLUMNS, sorted by key, then (timestamp, position); `key` numbers the
    keys of the batch. `puts` and `deletes` apply the batch to the state.
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
    stored: tuple[str, ...],
) -> AdjacentRows:
    """Return the rows that a batch touches under `keys`, ordered by `times` and position, with
    their adjacent rows. Stored rows hold the columns `stored`.
    """
    state_keys = ordered_keys(tag, keys, times, batch[POS])
    puts, deletes = apply_signs(
        reads,
        state_keys,
        with_tombstones(encode_rows(batch, stored), batch[IS_TOMBSTONE]),
        batch[SIGN],
    )
    touched = pl.DataFrame(
        {"name": keys, "ts": times, "state_key": state_keys},
        schema_overrides={"name": pl.Binary, "state_key": pl.Binary},
    )
    spans = touched.group_by("name", maintain_order=True).agg(
        low=pl.col("ts").min(),
        high=pl.col("ts").max(),
        state_keys=pl.col("state_key").unique(maintain_order=True),
    )
    before: list[_Row] = []
    after: list[_Row] = []
    per_key = zip(
        spans.select("low", "high", "state_keys").rows(),
        prefixes(tag, spans["name"].to_list()),
        strict=True,
    )
    for number, ((low, high, of_key), prefix) in enumerate(per_key):
        inside, above = _read_around(reads, prefix, low, high)
        new = {key: row for key, row in inside if key not in deletes}
        new.update((key, puts[key]) for key in of_key if key in puts)
        edge = _rows(number, len(prefix), above, edge=True)
        before += _rows(number, len(prefix), inside, edge=False) + edge
        after += _rows(number, len(prefix), sorted(new.items()), edge=False) + edge
    return AdjacentRows(
        pl.DataFrame(before, schema=COLUMNS, orient="row"),
        pl.DataFrame(after, schema=COLUMNS, orient="row"),
        puts,
        deletes,
    )


def row_difference(before: pl.DataFrame, after: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows only in `before` and the rows only in `after`, compared by all columns."""
    if before.height + after.height <= SMALL_DIFFERENCE:
        was, becomes = before.rows(), after.rows()
        removed = [row for row in was if row not in becomes]
        return _frame(before, removed), _frame(before, [row for row in becomes if row not in was])
    names = before.columns
    gone = before.join(after, on=names, how="anti", nulls_equal=True, maintain_order="left")
    return gone, after.join(before, on=names, how="anti", nulls_equal=True, maintain_order="left")


def _frame(like: pl.DataFrame, rows: list[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=like.schema, orient="row") if rows else like.clear()


def _read_around(
    reads: StateReader, prefix: bytes, low: int, high: int
) -> tuple[list[StateEntry], list[StateEntry]]:
    """Return the entries from the last before `low` to the last at `high`, and those at the next
    timestamp.
    """
    start, stop = prefix + time_bytes(low), prefix + time_bytes(high + 1)
    inside = [*reads.scan(prefix, start, reverse=True, limit=1), *reads.scan(start, stop)]
    above = reads.scan(stop, prefix + time_bytes(MAX_TIME), limit=1)
    if above:
        following = time_of(above[0][0], len(prefix))
        above = reads.scan(above[0][0], prefix + time_bytes(following + 1))
    return inside, above


def _rows(number: int, prefix_length: int, entries: list[StateEntry], *, edge: bool) -> list[_Row]:
    position_at = prefix_length + TIME_BYTES
    return [
        (number, time_of(key, prefix_length), key[position_at:], row, edge) for key, row in entries
    ]
