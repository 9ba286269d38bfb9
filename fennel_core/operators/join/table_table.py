"""Table–table join: a keyed left side, as signed facts, against the versions of the right.

Theory. The result is keyed like the left side and has a version for every overlap of a left row's
life with a right version's: a left fact `[from, to)` is cut where the right side of its join key
changes, and each *piece* has the right version in force. With no right version in force, a left
join says nulls and an inner join says nothing. Pieces become versions: one at the piece's beginning
with the left row's position, and a tombstone at its end, unless another piece of the fact follows
there. The tombstone's position is the left row's with a zero byte before it: less than any row's,
so that where another left row of the key takes over at that time, it wins.

A batch changes the pieces of the facts it brings or takes, and of those facts whose life meets
`[ts, next)` for a right version it touches. `within` bounds the age of an event's match; a left row
that lives has none, so it is not used here.

State: tag `l`: join key, beginning, position → `[to, row…]` of a left fact; tag `r`: as in
`stream_table.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import polars as pl

from fennel_core.operators.adjacent_rows import StateEntry
from fennel_core.operators.rows import (
    MAX_TIME,
    TOMBSTONE,
    apply_signs,
    columns_of,
    decode,
    decode_rows,
    encode,
    encode_rows,
    ordered_keys,
    output_names,
    prefixes,
    time_bytes,
    time_of,
    with_tombstones,
)
from fennel_core.operators.spec import VALID_TO, JoinSpec
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

LEFT = b"l"
RIGHT = b"r"
Fact = tuple[int, int | None, bytes, bytes]
"""Beginning, end, position and bytes of a left row."""
Piece = tuple[int, bytes, bytes, bytes | None, bool]
"""Time, position, bytes of the left row and of the right version (None: there is none), is it a
tombstone.
"""


class TableTableJoinStep:
    """The step of `spec.JoinSpec` whose left side has facts."""

    def __init__(self, spec: JoinSpec) -> None:
        assert spec.output.keyed, "a left side with facts has a key"
        self._spec = spec
        self._row = tuple(name for name in spec.left.names if name != VALID_TO)
        self._left_columns = columns_of(spec.left, self._row)
        self._right_columns = columns_of(spec.right, spec.right_values)
        self._names = output_names(spec.output)
        self._keys = spec.output.key_names

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source in (0, 1), "a join has two inputs"
        return self._left(reads, batch) if source == 0 else self._right(reads, batch)

    def _left(self, reads: StateReader, batch: pl.DataFrame) -> Outcome:
        keys = key_bytes(batch, self._spec.left_on)
        times = batch[self._spec.left.timestamp].to_physical()
        rows = encode_rows(batch, (VALID_TO, *self._row))
        puts, deletes = apply_signs(
            reads, ordered_keys(LEFT, keys, times, batch[POS]), rows, batch[SIGN]
        )
        plain = encode_rows(batch, self._row)
        facts = zip(
            times.to_list(),
            batch[VALID_TO].to_physical().to_list(),
            batch[POS].to_list(),
            plain,
            strict=True,
        )
        pieces: list[tuple[Piece, int]] = []
        for fact, prefix, sign in zip(
            facts, prefixes(RIGHT, keys), batch[SIGN].to_list(), strict=True
        ):
            pieces += [
                (piece, sign)
                for piece in self._pieces(fact, _in_force(reads, prefix, fact[0], fact[1]))
            ]
        return Outcome(puts=puts, deletes=deletes, emits=self._emit(pieces))

    def _right(self, reads: StateReader, batch: pl.DataFrame) -> Outcome:
        keys = key_bytes(batch, self._spec.right.key_names)
        places = ordered_keys(
            RIGHT, keys, batch[self._spec.right.timestamp].to_physical(), batch[POS]
        )
        rows = with_tombstones(encode_rows(batch, self._spec.right_values), batch[IS_TOMBSTONE])
        puts, deletes = apply_signs(reads, places, rows, batch[SIGN])
        touched = (
            pl.DataFrame({"name": keys, "place": places})
            .group_by("name", maintain_order=True)
            .agg("place")
        )
        names = touched["name"].to_list()
        pieces: list[tuple[Piece, int]] = []
        per_key = zip(
            touched["place"].to_list(), prefixes(RIGHT, names), prefixes(LEFT, names), strict=True
        )
        for here, prefix, left_prefix in per_key:
            old = reads.scan(prefix, prefix + time_bytes(MAX_TIME))
            new = {place: row for place, row in old if place not in deletes}
            new.update((place, puts[place]) for place in here if place in puts)
            was, becomes = _living(len(prefix), old), _living(len(prefix), sorted(new.items()))
            first = min(time_of(place, len(prefix)) for place in here)
            for fact in _facts(reads, left_prefix, first):
                before, after = self._pieces(fact, was), self._pieces(fact, becomes)
                pieces += [(piece, -1) for piece in before if piece not in after]
                pieces += [(piece, 1) for piece in after if piece not in before]
        return Outcome(puts=puts, deletes=deletes, emits=self._emit(pieces))

    def _pieces(self, fact: Fact, right: Sequence[tuple[int, bytes]]) -> list[Piece]:
        """The versions that a fact makes; `right` holds at least the right versions in force during
        its life, in order of time.
        """
        begin, end, pos, row = fact
        if end is not None and end <= begin:
            return []
        at = bisect_right(right, begin, key=lambda version: version[0]) - 1
        pieces: list[Piece] = []
        shown = False
        for i in range(at, len(right)):
            start = begin if i == at else right[i][0]
            if end is not None and start >= end:
                break
            met = None if i < 0 or right[i][1] == TOMBSTONE else right[i][1]
            if met is not None or not self._spec.inner:
                pieces.append((start, pos, row, met, False))
                shown = True
            elif shown:
                pieces.append((start, b"\x00" + pos, row, None, True))
                shown = False
        if shown and end is not None:
            pieces.append((end, b"\x00" + pos, row, None, True))
        return pieces

    def _emit(self, pieces: list[tuple[Piece, int]]) -> tuple[OutputBatch, ...]:
        """Takes back before it says."""
        parts = [
            frame
            for sign in (-1, 1)
            if (frame := self._frame([p for p, s in pieces if s == sign], sign)) is not None
        ]
        return (OutputBatch(0, pl.concat(parts)),) if parts else ()

    def _frame(self, pieces: list[Piece], sign: int) -> pl.DataFrame | None:
        if not pieces:
            return None
        left = decode_rows([row for _, _, row, _, _ in pieces], self._left_columns)
        distinct = list(dict.fromkeys(right for _, _, _, right, _ in pieces if right is not None))
        number = {right: i for i, right in enumerate(distinct)}
        met = pl.Series(
            [None if right is None else number[right] for _, _, _, right, _ in pieces],
            dtype=pl.UInt32,
        )
        right = decode_rows(distinct, self._right_columns).select(pl.all().gather(met))
        gone = pl.Series(IS_TOMBSTONE, [tombstone for *_, tombstone in pieces])
        times = pl.Series([time for time, *_ in pieces], dtype=pl.Int64).cast(
            pl.Datetime("us", "UTC")
        )
        frame = pl.concat([left, right], how="horizontal").with_columns(
            times.alias(self._spec.output.timestamp),
            pl.Series(POS, [pos for _, pos, *_ in pieces], dtype=pl.Binary),
            pl.lit(sign, pl.Int8).alias(SIGN),
            gone,
        )
        absent = [pl.when(~gone).then(name).alias(name) for name in self._spec.output.value_names]
        return frame.with_columns(absent).select(self._names)


def _in_force(
    reads: StateReader, prefix: bytes, begin: int, end: int | None
) -> list[tuple[int, bytes]]:
    """Right versions in force at some time in [begin, end)."""
    start = prefix + time_bytes(begin + 1)
    entries = reads.scan(prefix, start, reverse=True, limit=1)
    entries += reads.scan(
        start, prefix + time_bytes(MAX_TIME if end is None else max(end, begin + 1))
    )
    return _living(len(prefix), entries)


def _living(length: int, entries: Sequence[StateEntry]) -> list[tuple[int, bytes]]:
    """Times and bytes of the versions that ever live: the last of each timestamp."""
    return list({time_of(place, length): row for place, row in entries}.items())


def _facts(reads: StateReader, prefix: bytes, after: int) -> list[Fact]:
    """Left facts that live at or after a time."""
    found: list[Fact] = []
    for place, stored in reads.scan(prefix, prefix + time_bytes(MAX_TIME)):
        end, *row = decode(stored)
        if end is None or end > after:
            found.append((time_of(place, len(prefix)), end, place[len(prefix) + 8 :], encode(row)))
    return found
