"""Read the versions of a dataset in tasks, as rows of a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl
from pyspark.sql import DataFrame, SparkSession

from fennel_core.history.parquet import TimeLimit
from fennel_core.offline.blocks import BLOCKS, BlockLayout, Placement, write_blocks
from fennel_core.offline.lookup_groups import group_versions
from fennel_core.offline.sources import LookupSource
from fennel_core.offline.version_pieces import VersionPiece
from fennel_core.vocab.ids import JobId, Micros
from fennel_core.vocab.versions import META

if TYPE_CHECKING:
    import pyarrow as pa

READ_TASKS: Final = 64
"""Tasks that read the rows of the query, or the versions of one dataset; each reads many pieces."""


@dataclass(frozen=True, slots=True)
class VersionReader:
    """Reads the versions of the input of jobs. `latest`: the time of the latest row."""

    spark: SparkSession
    pieces: Mapping[JobId, Sequence[VersionPiece]]
    latest: Micros

    def blocks(
        self,
        sources: Sequence[tuple[JobId, LookupSource]],
        layout: BlockLayout,
        placement: Placement,
    ) -> Iterator[DataFrame]:
        """Yield the blocks of each source."""
        for number, (job, source) in enumerate(sources):
            pieces = tuple(self.pieces[job])
            work = ReadWork(pieces, source, number, self.latest, layout, placement)
            yield numbers(self.spark, len(pieces)).mapInArrow(work.run, BLOCKS)


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """Return the numbers below `count`, spread over at most `READ_TASKS` tasks."""
    return spark.range(0, count, 1, min(max(count, 1), READ_TASKS))


@dataclass(frozen=True, slots=True)
class ReadWork:
    """Reads pieces of the versions of dataset `number` of a group, as rows of its timeline.

    The rows of its input are numbers of pieces.
    """

    pieces: tuple[VersionPiece, ...]
    source: LookupSource
    number: int
    latest: Micros
    layout: BlockLayout
    placement: Placement

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield blocks (`BLOCKS`)."""
        return write_blocks(self._rows(batches), self.layout, self.number, self.placement)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        source = self.source
        columns = [*dict.fromkeys([*source.keys, source.time, *source.version_columns]), *META]
        limit = TimeLimit(source.time, self.latest)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for versions in self.pieces[number].batches(columns, limit):
                    yield group_versions(source, self.number, versions)
