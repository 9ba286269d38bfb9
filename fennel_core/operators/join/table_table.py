"""Table-table join: a keyed left side with validity intervals against the versions of the right.

Theory. The result is keyed like the left side and has a version for every overlap of the validity
of a left row with that of a right version. A left row valid in `[from, to)` is cut where the right
side of its join key changes, and each part is joined with the right version valid there. Where no
right version is valid, a left join has nulls and an inner join has no row. The parts become
versions: one at the start of the part with the left row's position, and a tombstone at its end
unless another part of the row follows there. The position of the tombstone is the left row's with a
zero byte before it: less than any row's, so that where another left row of the key begins at that
time, that row wins.

Example. A left row L is valid in [10, 40). The right side has version A at 0, a tombstone at 20 and
version B at 30. A left join has (L, A) at 10, (L, null) at 20, (L, B) at 30 and a tombstone at 40.
An inner join has (L, A) at 10, a tombstone at 20, (L, B) at 30 and a tombstone at 40.

A batch changes the versions of the left rows that it adds or retracts, and those of left rows whose
validity meets `[ts, next)` of a right version that it touches. `within` limits the age of an
event's match; a row that is valid for an interval has no such age, so `within` is not used here.

Rows and versions are named tuples, because thousands are made and compared per batch: frozen
dataclasses cost a quarter of the throughput of this step.

State: tag `l`: join key, start, position → `[to, row...]` of a left row; tag `r`: as in
`stream_table.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import polars as pl

from fennel_core.operators.adjacent_rows import StateEntry
from fennel_core.operators.rows import (
    MAX_TIME,
    TIME_BYTES,
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


class LeftRow(NamedTuple):
    """A left row, valid in [start, end); `end` None: it has no successor."""

    start: int
    end: int | None
    position: bytes
    row: bytes


class RightVersion(NamedTuple):
    """A right version, valid from `time` to the next one; `row` may be `TOMBSTONE`."""

    time: int
    row: bytes


class JoinedVersion(NamedTuple):
    """A version of the result. `right` is the stored right row, None if there is none."""

    time: int
    position: bytes
    left: bytes
    right: bytes | None
    is_tombstone: bool


class TableTableJoinStep:
    """Runs a `JoinSpec` whose left side has validity intervals."""

    def __init__(self, spec: JoinSpec) -> None:
        assert spec.output.keyed, "a left side with validity intervals has a key"
        self._spec = spec
        self._row = tuple(name for name in spec.left.names if name != VALID_TO)
        self._left_columns = columns_of(spec.left, self._row)
        self._right_columns = columns_of(spec.right, spec.right_values)
        self._names = output_names(spec.output)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source in (0, 1), "a join has two inputs"
        return self._left(reads, batch) if source == 0 else self._right(reads, batch)

    def _left(self, reads: StateReader, batch: pl.DataFrame) -> Outcome:
        keys = key_bytes(batch, self._spec.left_on)
        times = batch[self._spec.left.timestamp].to_physical()
        stored = encode_rows(batch, (VALID_TO, *self._row))
        puts, deletes = apply_signs(
            reads, ordered_keys(LEFT, keys, times, batch[POS]), stored, batch[SIGN]
        )
        rows = map(
            LeftRow,
            times.to_list(),
            batch[VALID_TO].to_physical().to_list(),
            batch[POS].to_list(),
            encode_rows(batch, self._row),
        )
        removed: list[JoinedVersion] = []
        added: list[JoinedVersion] = []
        for row, prefix, sign in zip(
            rows, prefixes(RIGHT, keys), batch[SIGN].to_list(), strict=True
        ):
            versions = self._versions(row, _valid_versions(reads, prefix, row.start, row.end))
            (added if sign > 0 else removed).extend(versions)
        return Outcome(puts=puts, deletes=deletes, emits=self._outputs(removed, added))

    def _right(self, reads: StateReader, batch: pl.DataFrame) -> Outcome:
        keys = key_bytes(batch, self._spec.right.key_names)
        times = batch[self._spec.right.timestamp].to_physical()
        state_keys = ordered_keys(RIGHT, keys, times, batch[POS])
        rows = with_tombstones(encode_rows(batch, self._spec.right_values), batch[IS_TOMBSTONE])
        puts, deletes = apply_signs(reads, state_keys, rows, batch[SIGN])
        touched = (
            pl.DataFrame({"key": keys, "state_key": state_keys})
            .group_by("key", maintain_order=True)
            .agg("state_key")
        )
        distinct = touched["key"].to_list()
        removed: list[JoinedVersion] = []
        added: list[JoinedVersion] = []
        for of_key, prefix, left_prefix in zip(
            touched["state_key"].to_list(),
            prefixes(RIGHT, distinct),
            prefixes(LEFT, distinct),
            strict=True,
        ):
            old = reads.scan(prefix, prefix + time_bytes(MAX_TIME))
            new = {key: row for key, row in old if key not in deletes}
            new.update((key, puts[key]) for key in of_key if key in puts)
            was = _last_of_each_time(len(prefix), old)
            becomes = _last_of_each_time(len(prefix), sorted(new.items()))
            first = min(time_of(key, len(prefix)) for key in of_key)
            for row in _left_rows(reads, left_prefix, first):
                before, after = self._versions(row, was), self._versions(row, becomes)
                removed += _without(before, after)
                added += _without(after, before)
        return Outcome(puts=puts, deletes=deletes, emits=self._outputs(removed, added))

    def _versions(self, left: LeftRow, right: Sequence[RightVersion]) -> list[JoinedVersion]:
        """Return the versions that a left row makes.

        `right` contains at least the right versions valid during its interval, in order of time.
        """
        if left.end is not None and left.end <= left.start:
            return []
        tombstone_position = b"\x00" + left.position
        first = bisect_right(right, left.start, key=lambda version: version.time) - 1
        versions: list[JoinedVersion] = []
        has_row = False
        for i in range(first, len(right)):
            time = left.start if i == first else right[i].time
            if left.end is not None and time >= left.end:
                break
            # i is -1 where the left row begins before every right version.
            match = None if i < 0 or right[i].row == TOMBSTONE else right[i].row
            if match is not None or not self._spec.inner:
                versions.append(JoinedVersion(time, left.position, left.row, match, False))
                has_row = True
            elif has_row:
                versions.append(JoinedVersion(time, tombstone_position, left.row, None, True))
                has_row = False
        if has_row and left.end is not None:
            versions.append(JoinedVersion(left.end, tombstone_position, left.row, None, True))
        return versions

    def _outputs(
        self, removed: list[JoinedVersion], added: list[JoinedVersion]
    ) -> tuple[OutputBatch, ...]:
        """Return one batch that retracts `removed`, then adds `added`."""
        signed = ((removed, -1), (added, 1))
        frames = [self._frame(versions, sign) for versions, sign in signed if versions]
        return (OutputBatch(0, pl.concat(frames)),) if frames else ()

    def _frame(self, versions: list[JoinedVersion], sign: int) -> pl.DataFrame:
        left = decode_rows([version.left for version in versions], self._left_columns)
        matches = [version.right for version in versions]
        distinct = list(dict.fromkeys(match for match in matches if match is not None))
        number = {match: i for i, match in enumerate(distinct)}
        numbers = pl.Series(
            [None if match is None else number[match] for match in matches], dtype=pl.UInt32
        )
        right = decode_rows(distinct, self._right_columns).select(pl.all().gather(numbers))
        gone = pl.Series(IS_TOMBSTONE, [version.is_tombstone for version in versions])
        times = pl.Series([version.time for version in versions], dtype=pl.Int64)
        positions = [version.position for version in versions]
        frame = pl.concat([left, right], how="horizontal").with_columns(
            times.cast(pl.Datetime("us", "UTC")).alias(self._spec.output.timestamp),
            pl.Series(POS, positions, dtype=pl.Binary),
            pl.lit(sign, pl.Int8).alias(SIGN),
            gone,
        )
        values = [pl.when(~gone).then(name).alias(name) for name in self._spec.output.value_names]
        return frame.with_columns(values).select(self._names)


def _without(
    versions: Sequence[JoinedVersion], others: Iterable[JoinedVersion]
) -> list[JoinedVersion]:
    """Return the versions that are not among `others`, in order."""
    excluded = set(others)
    return [version for version in versions if version not in excluded]


def _valid_versions(
    reads: StateReader, prefix: bytes, start: int, end: int | None
) -> list[RightVersion]:
    """Return the right versions that are valid at some time in [start, end)."""
    after_start = prefix + time_bytes(start + 1)
    stop = prefix + time_bytes(MAX_TIME if end is None else max(end, start + 1))
    entries = reads.scan(prefix, after_start, reverse=True, limit=1)
    entries += reads.scan(after_start, stop)
    return _last_of_each_time(len(prefix), entries)


def _last_of_each_time(prefix_length: int, entries: Sequence[StateEntry]) -> list[RightVersion]:
    """Return the versions that are valid for some time: the last one of each timestamp."""
    last = {time_of(key, prefix_length): row for key, row in entries}
    return list(map(RightVersion._make, last.items()))


def _left_rows(reads: StateReader, prefix: bytes, after: int) -> list[LeftRow]:
    """Return the left rows that are valid at some time after `after`, or begin there."""
    found: list[LeftRow] = []
    position_at = len(prefix) + TIME_BYTES
    for key, stored in reads.scan(prefix, prefix + time_bytes(MAX_TIME)):
        end, *row = decode(stored)
        if end is None or end > after:
            found.append(LeftRow(time_of(key, len(prefix)), end, key[position_at:], encode(row)))
    return found
