"""Read the stored rows of a request in Spark tasks, numbered in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from fennel_core.connections import s3
from fennel_core.history.errors import ReadFailed
from fennel_core.offline.request_files import INPUT_ROWS
from fennel_core.offline.rows import ROW
from fennel_core.offline.spark_layouts import SparkLayout
from fennel_core.settings.model import Settings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class InputWork:
    """Reads row groups of an input file in a task; the rows of its own input are their numbers."""

    settings: Settings
    key: str
    layout: SparkLayout

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        yield from self.layout.encode((self._rows(number) for number in numbers), "")

    def _rows(self, number: int) -> pl.DataFrame:
        settings = self.settings
        client = s3.client(settings)
        try:
            size = client.head_object(Bucket=settings.s3_bucket, Key=self.key)["ContentLength"]
            file = pq.ParquetFile(s3.RangedObject(client, settings.s3_bucket, self.key, size))
            table = file.read_row_group(number)
        except (FileNotFoundError, client.exceptions.ClientError) as gone:
            raise ReadFailed(
                f"object {self.key} cannot be read from bucket `{settings.s3_bucket}` ({gone}); "
                "send the request again [read-object]"
            ) from gone
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
        return frame.with_row_index(ROW, number * INPUT_ROWS)


def input_rows(spark: SparkSession, work: InputWork, rows: int, tasks: int) -> DataFrame:
    """Return the rows of a request by the names of its features, read by `tasks` tasks at most."""
    groups = -(-rows // INPUT_ROWS)
    numbers = spark.range(0, groups, 1, max(1, min(groups, tasks)))
    return numbers.mapInArrow(work.run, work.layout.spark).toDF(*work.layout.columns)
