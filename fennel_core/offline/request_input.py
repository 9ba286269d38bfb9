"""Read the stored rows of a request in Spark tasks, numbered in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq

from fennel_core.connections import s3
from fennel_core.history.errors import ReadFailed
from fennel_core.offline.request_files import INPUT_ROWS
from fennel_core.offline.rows import ROW
from fennel_core.settings.model import Settings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class InputPart:
    """A file of rows with the numbers from `first_row` on; each row group but the last has
    `INPUT_ROWS`.
    """

    key: str
    first_row: int
    row_count: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Row group `number` of the file at `key`, whose rows have the numbers from `first_row` on."""

    key: str
    number: int
    first_row: int


def row_groups(parts: Sequence[InputPart]) -> tuple[RowGroup, ...]:
    """Return the row groups of an input in order."""
    return tuple(
        RowGroup(part.key, number, part.first_row + first)
        for part in parts
        for number, first in enumerate(range(0, part.row_count, INPUT_ROWS))
    )


@dataclass(frozen=True, slots=True)
class InputRows:
    """Reads row groups in a task (`spark.GivenRows`)."""

    settings: Settings
    groups: tuple[RowGroup, ...]

    def __len__(self) -> int:
        return len(self.groups)

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        """Yield the rows of the groups whose numbers are given."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield self._rows(self.groups[number])

    def _rows(self, group: RowGroup) -> pl.DataFrame:
        settings = self.settings
        client = s3.client(settings)
        try:
            size = client.head_object(Bucket=settings.s3_bucket, Key=group.key)["ContentLength"]
            file = pq.ParquetFile(s3.RangedObject(client, settings.s3_bucket, group.key, size))
            table = file.read_row_group(group.number)
        except (FileNotFoundError, client.exceptions.ClientError) as gone:
            raise ReadFailed(
                f"object {group.key} cannot be read from bucket `{settings.s3_bucket}` ({gone}); "
                "send the request again [read-object]"
            ) from gone
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
        return frame.with_row_index(ROW, group.first_row)
