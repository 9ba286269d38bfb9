"""Intervals: a keyed dataset as signed rows with validity intervals, `+/-(row, from, to)`.

Theory. On a topic that is partitioned by its key the end of a version is derived: it is the next
version of the key. On a topic that is partitioned by anything else that next version may be on
another partition, so the end must travel with the row. Of the versions of a key only the last of
each timestamp is ever valid; a row is valid until the next of those, and a tombstone has no
interval. A batch changes the intervals of the versions it touches and of those just before them
(`adjacent_rows.py`), so a late upsert changes just the interval that it cuts.

State: tag `i`: ordered key of the version → all columns, or a tombstone.
"""

from __future__ import annotations

import polars as pl

from fennel_core.operators.adjacent_rows import read_adjacent_rows, row_difference
from fennel_core.operators.rows import TOMBSTONE, columns_of, decode_rows, output_names
from fennel_core.operators.spec import VALID_TO, IntervalsSpec
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

VERSIONS = b"i"


class IntervalsStep:
    """Runs an `IntervalsSpec`."""

    def __init__(self, spec: IntervalsSpec) -> None:
        assert spec.input.keyed, "rows of a keyless dataset have no end"
        self._spec = spec
        self._columns = columns_of(spec.input, spec.input.names)
        self._names = output_names(spec.output)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "intervals have one input"
        times = batch[self._spec.input.timestamp].to_physical()
        keys = key_bytes(batch, self._spec.input.key_names)
        rows = read_adjacent_rows(reads, VERSIONS, keys, times, batch, self._spec.input.names)
        removed, added = row_difference(_intervals(rows.before), _intervals(rows.after))
        frames = [
            self._frame(intervals, sign)
            for intervals, sign in ((removed, -1), (added, 1))
            if intervals.height
        ]
        return Outcome(
            puts=rows.puts,
            deletes=rows.deletes,
            emits=(OutputBatch(0, pl.concat(frames)),) if frames else (),
        )

    def _frame(self, intervals: pl.DataFrame, sign: int) -> pl.DataFrame:
        end = intervals["to"].cast(pl.Datetime("us", "UTC")).alias(VALID_TO)
        meta = (
            intervals[POS],
            pl.lit(sign, pl.Int8).alias(SIGN),
            pl.lit(value=False).alias(IS_TOMBSTONE),
        )
        return (
            decode_rows(intervals["row"].to_list(), self._columns)
            .with_columns(end, *meta)
            .select(self._names)
        )


def _intervals(versions: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are ever valid, with the end of their interval; not those at the edge,
    whose successors were not read.
    """
    last_of_time = pl.col("key").ne_missing(pl.col("key").shift(-1)) | (
        pl.col("ts") != pl.col("ts").shift(-1)
    )
    valid = versions.filter(last_of_time).with_columns(
        to=pl.when(pl.col("key") == pl.col("key").shift(-1)).then(pl.col("ts").shift(-1))
    )
    return valid.filter((pl.col("row") != TOMBSTONE) & ~pl.col("edge")).select(POS, "row", "to")
