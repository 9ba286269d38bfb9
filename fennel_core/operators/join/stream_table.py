"""Stream-table join.

Theory. A left row at time T matches the latest right version with `ts <= T + high`, provided that
`ts >= T - low` and that it is not a tombstone; equal timestamps are ordered by position. Both sides
are kept per join key, ordered by time, so that results can be corrected:

- A left row is matched against the right versions known now; `-` gives the same match again.
- Right versions that are added or retracted at `ts` can only change left rows T in
  `[ts - high, next - high)`, where `next` is the time of the following right version that was there
  before: a later one hides the change. Those rows are read and matched against the right side
  before and after the batch, and `-old +new` is emitted where the matches differ.

For one key of a batch the right versions that matter take one seek back, one scan and one seek
forward; matching is one as-of join over all keys of the batch. An output row has its left row's
position.

Example. With `high` 0 the left rows at 5 and 25 match the right version A at 0, the only one. A
late right version B at 20 can change left rows from 20 on: the row at 25 is read again,
`-(25, A) +(25, B)` is emitted, and the row at 5 is not read.

State: tag `l`: ordered key of a left row under its join key → all left columns; tag `r`: ordered
key of a right version → the joined columns, or a tombstone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from fennel_core.operators.adjacent_rows import StateEntry
from fennel_core.operators.rows import (
    MAX_TIME,
    MIN_TIME,
    TIME_BYTES,
    TOMBSTONE,
    apply_signs,
    columns_of,
    decode_rows,
    encode_rows,
    ordered_keys,
    output_names,
    prefixes,
    time_bytes,
    time_of,
    with_tombstones,
)
from fennel_core.operators.spec import JoinSpec
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

LEFT = b"l"
RIGHT = b"r"
_CANDIDATES = {"key": pl.Int64(), "ts": pl.Int64(), "row": pl.Binary()}
_Candidate = tuple[int, int, bytes]
"""A right version in the order of _CANDIDATES: number of its key, time, stored row."""
_LEFT_ROWS = {"key": pl.Int64(), "ts": pl.Int64(), POS: pl.Binary(), "row": pl.Binary()}


@dataclass(frozen=True, slots=True)
class _SideBatch:
    """One batch of one side. `versions`: the join key (`name`) and `state_key` of each version."""

    versions: pl.DataFrame
    puts: Mapping[bytes, bytes]
    deletes: frozenset[bytes]

    def outcome(self, emits: tuple[OutputBatch, ...]) -> Outcome:
        return Outcome(puts=self.puts, deletes=self.deletes, emits=emits)


@dataclass(frozen=True, slots=True)
class _Matched:
    """Left rows with the stored right row that each matches (null: none). Output signs are those of
    the rows times `sign`.
    """

    rows: pl.DataFrame
    matches: pl.Series
    sign: int


class StreamTableJoinStep:
    """Runs a `JoinSpec` whose left side is a stream. Input 0 is the left side, input 1 the right
    dataset's topic.
    """

    def __init__(self, spec: JoinSpec) -> None:
        self._spec = spec
        self._left_columns = columns_of(spec.left, spec.left.names)
        self._right_columns = columns_of(spec.right, spec.right_values)
        self._left_names = list(spec.left.names)
        self._names = list(output_names(spec.output))

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source in (0, 1), "a join has two inputs"
        return self._left(reads, batch) if source == 0 else self._right(reads, batch)

    # --- a batch of the left side -----------------------------------------------------------------

    def _left(self, reads: StateReader, batch: pl.DataFrame) -> Outcome:
        times = batch[self._spec.left.timestamp].cast(pl.Int64)
        keys = key_bytes(batch, self._spec.left_on)
        side = _side_batch(reads, LEFT, keys, times, batch, encode_rows(batch, self._left_names))
        if len(batch) == 1:
            match = self._match_one(reads, keys[0], times[0])
            return side.outcome(self._outputs([_Matched(batch, match, 1)]))
        key_numbers = pl.Series(keys, dtype=pl.Binary).rank("dense").cast(pl.Int64)
        left = pl.DataFrame({"key": key_numbers, "ts": times, "name": keys})
        matches = self._match(left, self._right_candidates(reads, left))
        return side.outcome(self._outputs([_Matched(batch, matches, 1)]))

    def _match_one(self, reads: StateReader, key: bytes, time: int) -> pl.Series:
        """Return the result of `_match` for one left row, without frames: most batches of a live
        job are one row.
        """
        (prefix,) = prefixes(RIGHT, [key])
        stop = prefix + time_bytes(_first_invisible(time, self._spec.high_us))
        found = None
        for state_key, row in reads.scan(prefix, stop, reverse=True, limit=1):
            if row != TOMBSTONE and self._is_recent(time, time_of(state_key, len(prefix))):
                found = row
        return pl.Series("row", [found], dtype=pl.Binary)

    def _is_recent(self, left: int, right: int) -> bool:
        """Return whether a right version at `right` is recent enough for a left row at `left`."""
        return self._spec.low_us is None or right >= left - self._spec.low_us

    def _right_candidates(self, reads: StateReader, left: pl.DataFrame) -> pl.DataFrame:
        """Return the right versions that left rows may match: per key those from the last one
        visible to its earliest row to the last one visible to its latest row.
        """
        spans = left.group_by("key", maintain_order=True).agg(
            pl.col("name").first(), low=pl.col("ts").min(), high=pl.col("ts").max()
        )
        found: list[_Candidate] = []
        for (number, _, low, high), prefix in zip(
            spans.rows(), prefixes(RIGHT, spans["name"].to_list()), strict=True
        ):
            start = prefix + time_bytes(_first_invisible(low, self._spec.high_us))
            entries = reads.scan(prefix, start, reverse=True, limit=1)
            if low != high:
                stop = prefix + time_bytes(_first_invisible(high, self._spec.high_us))
                entries += reads.scan(start, stop)
            found += [(number, time_of(key, len(prefix)), row) for key, row in entries]
        return pl.DataFrame(found, schema=_CANDIDATES, orient="row")

    # --- a batch of the right side ----------------------------------------------------------------

    def _right(self, reads: StateReader, batch: pl.DataFrame) -> Outcome:
        times = batch[self._spec.right.timestamp].cast(pl.Int64)
        keys = key_bytes(batch, self._spec.right.key_names)
        rows = encode_rows(batch, self._spec.right_values)
        side = _side_batch(reads, RIGHT, keys, times, batch, rows)
        touched = (
            side.versions.unique()
            .sort("name", "state_key")
            .group_by("name", maintain_order=True)
            .agg("state_key")
        )
        names = touched["name"].to_list()
        before: list[_Candidate] = []
        after: list[_Candidate] = []
        left: list[tuple[int, int, bytes, bytes]] = []
        per_key = zip(
            touched["state_key"].to_list(),
            prefixes(RIGHT, names),
            prefixes(LEFT, names),
            strict=True,
        )
        for number, (state_keys, prefix, left_prefix) in enumerate(per_key):
            old = _right_span(reads, prefix, state_keys)
            new = {key: row for key, row in old if key not in side.deletes}
            new.update((key, side.puts[key]) for key in state_keys if key in side.puts)
            before += [(number, time_of(key, len(prefix)), row) for key, row in old]
            after += [(number, time_of(key, len(prefix)), new[key]) for key in sorted(new)]
            position_at = len(left_prefix) + TIME_BYTES
            for start, stop in self._affected(prefix, state_keys, [key for key, _ in old]):
                entries = reads.scan(
                    left_prefix + time_bytes(start), left_prefix + time_bytes(stop)
                )
                left += [
                    (number, time_of(key, len(left_prefix)), key[position_at:], row)
                    for key, row in entries
                ]
        if not left:
            return side.outcome(())
        left_rows = pl.DataFrame(left, schema=_LEFT_ROWS, orient="row")
        return side.outcome(self._correct(left_rows, before, after))

    def _affected(
        self, prefix: bytes, touched: list[bytes], old: list[bytes]
    ) -> list[tuple[int, int]]:
        """Return disjoint ranges [start, stop) of the times of left rows whose match the touched
        right versions can change. `old`: state keys of the right versions before the batch.
        """
        spans: list[tuple[int, int]] = []
        following = iter([*old, None])
        here = next(following)
        for state_key in touched:
            while here is not None and here <= state_key:
                here = next(following)
            start = time_of(state_key, len(prefix))
            stop = MAX_TIME if here is None else time_of(here, len(prefix)) - self._spec.high_us
            if self._spec.low_us is not None:
                stop = min(stop, start + self._spec.low_us + 1)
            start = max(start - self._spec.high_us, MIN_TIME, spans[-1][1] if spans else MIN_TIME)
            if start < stop:
                spans.append((start, stop))
        return spans

    def _correct(
        self, left: pl.DataFrame, before: list[_Candidate], after: list[_Candidate]
    ) -> tuple[OutputBatch, ...]:
        """Return the corrections of left rows whose match differs before and after a batch."""
        old = self._match(left, pl.DataFrame(before, schema=_CANDIDATES, orient="row"))
        new = self._match(left, pl.DataFrame(after, schema=_CANDIDATES, orient="row"))
        changed = old.ne_missing(new)
        if not changed.any():
            return ()
        corrected = left.filter(changed)
        rows = decode_rows(corrected["row"].to_list(), self._left_columns).with_columns(
            corrected[POS],
            pl.lit(1, pl.Int8).alias(SIGN),
            pl.lit(value=False).alias(IS_TOMBSTONE),
        )
        return self._outputs(
            [_Matched(rows, old.filter(changed), -1), _Matched(rows, new.filter(changed), 1)]
        )

    # --- both -------------------------------------------------------------------------------------

    def _match(self, left: pl.DataFrame, candidates: pl.DataFrame) -> pl.Series:
        """Return the stored right row that each left row matches, null where it matches none.
        Candidates are in (ts, position) order per key.
        """
        last = (
            candidates.unique(subset=["key", "ts"], keep="last", maintain_order=True)
            .sort("ts")
            .with_columns(pl.col("ts").alias("right_ts"))
        )
        rows = (
            left.select("key", "ts")
            .with_row_index("__row")
            .with_columns(pl.col("ts") + self._spec.high_us)
            .sort("ts")
        )
        joined = rows.join_asof(
            last, on="ts", by="key", strategy="backward", check_sortedness=False
        ).sort("__row")
        visible = pl.col("row").is_not_null() & (pl.col("row") != TOMBSTONE)
        if self._spec.low_us is not None:
            oldest = pl.col("ts") - self._spec.high_us - self._spec.low_us
            visible &= pl.col("right_ts") >= oldest
        return joined.select(pl.when(visible).then("row")).to_series()

    def _outputs(self, parts: list[_Matched]) -> tuple[OutputBatch, ...]:
        """Return the output rows of all parts, in order, without those that an inner join drops."""
        frames = []
        for part in parts:
            rows, matches = part.rows, part.matches
            if self._spec.inner and matches.null_count():
                rows, matches = rows.filter(matches.is_not_null()), matches.drop_nulls()
            if rows.height:
                joined = rows.hstack(self._right_frame(matches).get_columns())
                if part.sign != 1:
                    joined = joined.with_columns(pl.col(SIGN) * part.sign)
                frames.append(joined[self._names])
        if not frames:
            return ()
        return (OutputBatch(0, pl.concat(frames) if len(frames) > 1 else frames[0]),)

    def _right_frame(self, matches: pl.Series) -> pl.DataFrame:
        """Return the right columns of stored right rows; each distinct row is decoded once."""
        if len(matches) == 1 and not matches.null_count():
            return decode_rows(matches.to_list(), self._right_columns)
        distinct = matches.drop_nulls().unique(maintain_order=True)
        number = matches.replace_strict(
            distinct,
            pl.Series(range(len(distinct)), dtype=pl.UInt32),
            default=None,
            return_dtype=pl.UInt32,
        )
        return decode_rows(distinct.to_list(), self._right_columns).select(pl.all().gather(number))


def _side_batch(
    reads: StateReader,
    tag: bytes,
    keys: list[bytes],
    times: pl.Series,
    batch: pl.DataFrame,
    rows: list[bytes],
) -> _SideBatch:
    state_keys = ordered_keys(tag, keys, times, batch[POS])
    stored = with_tombstones(rows, batch[IS_TOMBSTONE])
    puts, deletes = apply_signs(reads, state_keys, stored, batch[SIGN])
    return _SideBatch(pl.DataFrame({"name": keys, "state_key": state_keys}), puts, deletes)


def _right_span(reads: StateReader, prefix: bytes, touched: list[bytes]) -> list[StateEntry]:
    """Return the right versions before the batch, in order, from the last one below those touched
    to the first one above.
    """
    first, last = touched[0], touched[-1]
    below = reads.scan(prefix, first, reverse=True, limit=1)
    between = reads.scan(first, last + b"\x00") if len(touched) > 1 else _present(reads, first)
    above = reads.scan(last + b"\x00", prefix + time_bytes(MAX_TIME), limit=1)
    return [*below, *between, *above]


def _present(reads: StateReader, state_key: bytes) -> list[StateEntry]:
    (row,) = reads.get_many([state_key])
    return [] if row is None else [(state_key, row)]


def _first_invisible(time: int, high_us: int) -> int:
    """Return the first time of right versions that a left row at `time` does not see."""
    return min(time + high_us + 1, MAX_TIME)
