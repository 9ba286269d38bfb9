"""Changelog: one event per insert and one per delete of a keyed dataset.

Theory. Of the versions of a key only the last of each timestamp is ever valid. A version that is a
row is an insert at its time; the row before it, if there is one, is deleted at the same time, with
its old values. So an update at t is delete(old) and insert(new) at t, and the events of a version
depend on its predecessor alone. A batch changes the events of the versions it touches and of those
at the next timestamp (`adjacent_rows.py`). Positions are the version's, extended by 0 for the
delete and 1 for the insert.

State: tag `c`: ordered key of the version → all columns, or a tombstone.
"""

from __future__ import annotations

import polars as pl

from fennel_core.operators.adjacent_rows import read_adjacent_rows, row_difference
from fennel_core.operators.rows import TOMBSTONE, columns_of, decode_rows, output_names
from fennel_core.operators.spec import ChangelogSpec
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

VERSIONS = b"c"
_DELETE, _INSERT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"


class ChangelogStep:
    """Runs a `ChangelogSpec`."""

    def __init__(self, spec: ChangelogSpec) -> None:
        assert spec.input.keyed, "only a keyed dataset has a changelog"
        self._spec = spec
        self._columns = columns_of(spec.input, spec.input.names)
        self._names = output_names(spec.output)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "a changelog has one input"
        times = batch[self._spec.input.timestamp].to_physical()
        keys = key_bytes(batch, self._spec.input.key_names)
        rows = read_adjacent_rows(reads, VERSIONS, keys, times, batch, self._spec.input.names)
        removed, added = row_difference(_events(rows.before), _events(rows.after))
        frames = [
            self._frame(events, sign)
            for events, sign in ((removed, -1), (added, 1))
            if events.height
        ]
        return Outcome(
            puts=rows.puts,
            deletes=rows.deletes,
            emits=(OutputBatch(0, pl.concat(frames)),) if frames else (),
        )

    def _frame(self, events: pl.DataFrame, sign: int) -> pl.DataFrame:
        kind = events["delete"] if self._spec.deletes else ~events["delete"]
        return (
            decode_rows(events["row"].to_list(), self._columns)
            .with_columns(
                events["ts"].cast(pl.Datetime("us", "UTC")).alias(self._spec.input.timestamp),
                kind.alias(self._spec.kind_column),
                events[POS],
                pl.lit(sign, pl.Int8).alias(SIGN),
                pl.lit(value=False).alias(IS_TOMBSTONE),
            )
            .select(self._names)
        )


def _events(versions: pl.DataFrame) -> pl.DataFrame:
    """Return deletes and inserts of every version whose predecessor was read, which are all but the
    first of each key.
    """
    last_of_time = pl.col("key").ne_missing(pl.col("key").shift(-1)) | (
        pl.col("ts") != pl.col("ts").shift(-1)
    )
    valid = versions.filter(last_of_time).with_columns(
        old=pl.when(pl.col("key") == pl.col("key").shift(1)).then(pl.col("row").shift(1)),
    )
    inserts = valid.filter(pl.col("row") != TOMBSTONE).select(
        "ts", pl.col(POS) + pl.lit(_INSERT), "row", delete=pl.lit(value=False)
    )
    deletes = valid.filter(pl.col("old") != TOMBSTONE).select(
        "ts", pl.col(POS) + pl.lit(_DELETE), row="old", delete=pl.lit(value=True)
    )
    return pl.concat([deletes, inserts])
