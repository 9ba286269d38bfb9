"""Stream–table join.

Theory. A left row at time T meets the latest right version with `ts <= T + high`, provided `ts >= T
− low` and it is no tombstone; equal timestamps go by position. Both sides are kept per join key,
ordered by time, so that the answer can be corrected:

- a left row is answered from the right versions known now; `−` gives back the same answer;
- right versions that come or go at `ts` can only change left rows T in `[ts − high, next − high)`,
  `next` being the time of the following
  right version that was there before: a later one hides the change. Those rows are read, matched
  against the right side before and after
  the batch, and `−old +new` is emitted where the answers differ.

The range of right versions that matters to one key of a batch is one seek back, one scan and one
seek on; matching is one as-of join over all keys of the batch. An output row has its left row's
position.

State: tag `l`: ordered key of a left row under its join key → all left columns; tag `r`: ordered
key of a right version → the joined columns, or a tombstone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from fennel_core.operators.rows import (
    MAX_TIME,
    MIN_TIME,
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


@dataclass(frozen=True, slots=True)
class _Side:
    """One batch of one side: per version its join key bytes `name`, `place` (state key), bytes at
    rest `row` and `sign`.
    """

    versions: pl.DataFrame
    puts: Mapping[bytes, bytes]
    deletes: frozenset[bytes]

    def outcome(self, emits: tuple[OutputBatch, ...]) -> Outcome:
        return Outcome(puts=self.puts, deletes=self.deletes, emits=emits)


class StreamTableJoinStep:
    """The step of `spec.JoinSpec`. Input 0 is the left side, input 1 the right dataset's topic."""

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
        side = _side(reads, LEFT, keys, times, batch, encode_rows(batch, self._left_names))
        if len(batch) == 1:
            return side.outcome(self._emit([(batch, self._single(reads, keys[0], times[0]), 1)]))
        asked = pl.DataFrame(
            {
                "key": pl.Series(keys, dtype=pl.Binary).rank("dense").cast(pl.Int64),
                "ts": times,
                "name": keys,
            }
        )
        matched = self._match(asked, self._right_candidates(reads, asked))
        return side.outcome(self._emit([(batch, matched, 1)]))

    def _single(self, reads: StateReader, key: bytes, moment: int) -> pl.Series:
        """What `_match` answers for one left row, without frames: most batches of a live job are
        one row.
        """
        (prefix,) = prefixes(RIGHT, [key])
        latest = reads.scan(
            prefix, prefix + time_bytes(_after(moment, self._spec.high_us)), reverse=True, limit=1
        )
        found = next(
            (
                row
                for place, row in latest
                if self._reaches(moment, time_of(place, len(prefix))) and row != TOMBSTONE
            ),
            None,
        )
        return pl.Series("row", [found], dtype=pl.Binary)

    def _reaches(self, moment: int, right: int) -> bool:
        """Is a right version at `right` recent enough for a left row at `moment`?"""
        return self._spec.low_us is None or right >= moment - self._spec.low_us

    def _right_candidates(self, reads: StateReader, asked: pl.DataFrame) -> pl.DataFrame:
        """Right versions that may answer `asked`: per key those from the last one visible to its
        earliest row to its latest row.
        """
        spans = asked.group_by("key", maintain_order=True).agg(
            pl.col("name").first(), low=pl.col("ts").min(), high=pl.col("ts").max()
        )
        found: list[tuple[int, int, bytes]] = []
        for (number, _, low, high), prefix in zip(
            spans.rows(), prefixes(RIGHT, spans["name"].to_list()), strict=True
        ):
            start = prefix + time_bytes(_after(low, self._spec.high_us))
            entries = reads.scan(prefix, start, reverse=True, limit=1)
            if low != high:
                entries += reads.scan(start, prefix + time_bytes(_after(high, self._spec.high_us)))
            found += [(number, time_of(place, len(prefix)), row) for place, row in entries]
        return pl.DataFrame(found, schema=_CANDIDATES, orient="row")

    # --- a batch of the right side ----------------------------------------------------------------

    def _right(self, reads: StateReader, batch: pl.DataFrame) -> Outcome:
        times = batch[self._spec.right.timestamp].cast(pl.Int64)
        keys = key_bytes(batch, self._spec.right.key_names)
        rows = encode_rows(batch, self._spec.right_values)
        side = _side(reads, RIGHT, keys, times, batch, rows)
        touched = (
            side.versions.select("name", "place")
            .unique()
            .sort("name", "place")
            .group_by("name", maintain_order=True)
            .agg("place")
        )
        names = touched["name"].to_list()
        before: list[tuple[int, int, bytes]] = []
        after: list[tuple[int, int, bytes]] = []
        left: list[tuple[int, int, bytes, bytes]] = []
        per_key = zip(
            touched["place"].to_list(), prefixes(RIGHT, names), prefixes(LEFT, names), strict=True
        )
        for number, (places, prefix, left_prefix) in enumerate(per_key):
            old = _right_span(reads, prefix, places)
            new = {place: row for place, row in old if place not in side.deletes}
            new.update((place, side.puts[place]) for place in places if place in side.puts)
            before += [(number, time_of(place, len(prefix)), row) for place, row in old]
            after += [(number, time_of(place, len(prefix)), new[place]) for place in sorted(new)]
            for start, stop in self._affected(prefix, places, [place for place, _ in old]):
                entries = reads.scan(
                    left_prefix + time_bytes(start), left_prefix + time_bytes(stop)
                )
                left += [
                    (number, time_of(place, len(left_prefix)), place[len(left_prefix) + 8 :], row)
                    for place, row in entries
                ]
        if not left:
            return side.outcome(())
        asked = pl.DataFrame(
            left,
            schema={"key": pl.Int64(), "ts": pl.Int64(), POS: pl.Binary(), "row": pl.Binary()},
            orient="row",
        )
        return side.outcome(self._correct(asked, before, after))

    def _affected(
        self, prefix: bytes, touched: list[bytes], old: list[bytes]
    ) -> list[tuple[int, int]]:
        """Disjoint ranges [start, stop) of left times whose answer the touched right versions can
        change.
        """
        spans: list[tuple[int, int]] = []
        following = iter([*old, None])
        here = next(following)
        for place in touched:
            while here is not None and here <= place:
                here = next(following)
            start = time_of(place, len(prefix))
            stop = MAX_TIME if here is None else time_of(here, len(prefix)) - self._spec.high_us
            if self._spec.low_us is not None:
                stop = min(stop, start + self._spec.low_us + 1)
            start = max(start - self._spec.high_us, MIN_TIME, spans[-1][1] if spans else MIN_TIME)
            if start < stop:
                spans.append((start, stop))
        return spans

    def _correct(
        self,
        asked: pl.DataFrame,
        before: list[tuple[int, int, bytes]],
        after: list[tuple[int, int, bytes]],
    ) -> tuple[OutputBatch, ...]:
        old = self._match(asked, pl.DataFrame(before, schema=_CANDIDATES, orient="row"))
        new = self._match(asked, pl.DataFrame(after, schema=_CANDIDATES, orient="row"))
        changed = old.ne_missing(new)
        if not changed.any():
            return ()
        rows = decode_rows(asked.filter(changed)["row"].to_list(), self._left_columns).with_columns(
            asked.filter(changed)[POS],
            pl.lit(1, pl.Int8).alias(SIGN),
            pl.lit(False).alias(IS_TOMBSTONE),
        )
        return self._emit([(rows, old.filter(changed), -1), (rows, new.filter(changed), 1)])

    # --- both -------------------------------------------------------------------------------------

    def _match(self, asked: pl.DataFrame, candidates: pl.DataFrame) -> pl.Series:
        """The bytes of the right version each left row meets, null where it meets none. Candidates
        are in (ts, position) order per key.
        """
        last = (
            candidates.unique(subset=["key", "ts"], keep="last", maintain_order=True)
            .sort("ts")
            .with_columns(pl.col("ts").alias("at"))
        )
        rows = (
            asked.select("key", "ts")
            .with_row_index("__row")
            .with_columns(pl.col("ts") + self._spec.high_us)
            .sort("ts")
        )
        met = rows.join_asof(
            last, on="ts", by="key", strategy="backward", check_sortedness=False
        ).sort("__row")
        visible = pl.col("row").is_not_null() & (pl.col("row") != TOMBSTONE)
        if self._spec.low_us is not None:
            visible &= pl.col("at") >= pl.col("ts") - self._spec.high_us - self._spec.low_us
        return met.select(pl.when(visible).then("row")).to_series()

    def _emit(self, parts: list[tuple[pl.DataFrame, pl.Series, int]]) -> tuple[OutputBatch, ...]:
        """Left rows with their matches, signs multiplied by the part's sign; in order, without the
        rows an inner join drops.
        """
        frames = []
        for rows, matched, sign in parts:
            if self._spec.inner and matched.null_count():
                rows, matched = rows.filter(matched.is_not_null()), matched.drop_nulls()
            if rows.height:
                joined = rows.hstack(self._right_frame(matched).get_columns())
                frames.append(
                    (joined if sign == 1 else joined.with_columns(pl.col(SIGN) * sign))[self._names]
                )
        return (
            (OutputBatch(0, pl.concat(frames) if len(frames) > 1 else frames[0]),) if frames else ()
        )

    def _right_frame(self, matched: pl.Series) -> pl.DataFrame:
        if len(matched) == 1 and not matched.null_count():
            return decode_rows(matched.to_list(), self._right_columns)
        distinct = matched.drop_nulls().unique(maintain_order=True)
        number = matched.replace_strict(
            distinct,
            pl.Series(range(len(distinct)), dtype=pl.UInt32),
            default=None,
            return_dtype=pl.UInt32,
        )
        return decode_rows(distinct.to_list(), self._right_columns).select(pl.all().gather(number))


def _side(
    reads: StateReader,
    tag: bytes,
    keys: list[bytes],
    times: pl.Series,
    batch: pl.DataFrame,
    rows: list[bytes],
) -> _Side:
    places = ordered_keys(tag, keys, times, batch[POS])
    puts, deletes = apply_signs(
        reads, places, with_tombstones(rows, batch[IS_TOMBSTONE]), batch[SIGN]
    )
    return _Side(pl.DataFrame({"name": keys, "place": places}), puts, deletes)


def _right_span(
    reads: StateReader, prefix: bytes, touched: list[bytes]
) -> list[tuple[bytes, bytes]]:
    """Right versions before the batch, from the last one below those touched to the first one
    above, in order.
    """
    first, last = touched[0], touched[-1]
    below = reads.scan(prefix, first, reverse=True, limit=1)
    between = reads.scan(first, last + b"\x00") if len(touched) > 1 else _present(first, reads)
    above = reads.scan(last + b"\x00", prefix + time_bytes(MAX_TIME), limit=1)
    return [*below, *between, *above]


def _present(place: bytes, reads: StateReader) -> list[tuple[bytes, bytes]]:
    (row,) = reads.get_many([place])
    return [] if row is None else [(place, row)]


def _after(moment: int, high_us: int) -> int:
    """The first time that a left row at `moment` does not see."""
    return min(moment + high_us + 1, MAX_TIME)
