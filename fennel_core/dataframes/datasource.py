"""Read datasets as Spark DataFrames: `spark.read.format("fennel")`.

With the option `query_log` it reads logged queries instead (`query_log.py`).

    from fennel_core.dataframes.datasource import register

    register(spark)
    rides = (
        spark.read.format("fennel")
        .option("dataset", "Rides")
        .option("token", token)
        .option("as_of", "2026-05-01T12:00:00Z")
        .load()
    )

Theory. A dataset is its history (files on S3) and its topic's tail (committed records that are not
in history yet). The offset between the two is decided once, when a read is planned, so a read
returns the rows committed by then, whatever moves later. What a read computes is in `contents.py`,
how it is cut into tasks in `parts.py`, and which filters of Spark are applied to files in
`pushdown.py`.

Spark hands filters to a Python data source only if `spark.sql.python.filterPushdown.enabled` is
set, and refuses a source that takes them if it is not. So there are two classes: `register` sets it
and registers the one that takes filters. Spark 4.2 does not say which columns a query uses; the
option `columns` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pydantic import ValidationError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fennel_core.dataframes import read_options
from fennel_core.dataframes.api_versions import ApiVersions, ReadApi
from fennel_core.dataframes.part_rows import PlatformVersions, VersionStore, rows_of_part
from fennel_core.dataframes.parts import ReadPart, parts_of
from fennel_core.dataframes.planning import ReadPlan, plan_read, with_columns
from fennel_core.dataframes.pushdown import pushed_down
from fennel_core.dataframes.query_log import (
    LogReadRequest,
    OpenedLog,
    QueryLogReader,
    parse_log_options,
    plan_log_read,
    read_schema,
)
from fennel_core.dataframes.read_request import ReadRequest, parse_options
from fennel_core.history.conditions import Condition
from fennel_core.history.errors import ReadFailed
from fennel_core.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
BATCH_ROWS: Final = 10_000
COMMENT: Final = "comment"
"""Where Spark keeps the description of a column, in its metadata."""


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("fennel")` known to a session, with filters pushed down."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(FilteringDataSource)


@dataclass(frozen=True, slots=True)
class OpenedRead:
    """A planned read, and where its versions are."""

    plan: ReadPlan
    versions: VersionStore


@dataclass
class PlannedPart(InputPartition):  # type: ignore[misc]  # pyspark is not typed for strict checking
    """One partition of the DataFrame."""

    part: ReadPart


class FennelReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed for strict checking
    """One read: planned when it is created; `read` runs in Spark's Python workers."""

    def __init__(self, opened: OpenedRead, schema: StructType, part_rows: int) -> None:
        self._read = with_columns(opened.plan.read, schema.names)
        _check_types(schema, spark_schema(self._read.available, {}))
        self._topic, self._versions = opened.plan.topic, opened.versions
        self._schema, self._part_rows = schema, part_rows
        self._pushed: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        parts = parts_of(self._read, self._pushed, self._topic, self._part_rows)
        return [PlannedPart(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PlannedPart):
            return  # Spark makes a partition without a value if a read has none.
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for rows in rows_of_part(self._versions, self._read, partition.part):
            yield from rows.to_arrow().cast(schema).to_batches(max_chunksize=BATCH_ROWS)


class FilteringReader(FennelReader):
    """A read that takes filters of Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that files can be read by; return the others to Spark."""
        found = pushed_down(self._read, filters)
        self._pushed = found.conditions
        return found.remaining


class FennelDataSource(DataSource):  # type: ignore[misc]  # as above
    """The source as Spark's own `spark.dataSource.register` takes it, without pushed filters.

    The options are described in docs/dataframes.md.
    """

    reader_class: type[FennelReader] = FennelReader

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._now = datetime.now(UTC)  # the default of `as_of`: one time for every use of the frame

    @classmethod
    def name(cls) -> str:
        return "fennel"

    def schema(self) -> StructType:
        request = self._request()
        if isinstance(request, LogReadRequest):
            return read_schema(open_log(request, self._settings), request.selection)
        return schema_of(self.opened(request).plan)

    def reader(self, schema: StructType) -> DataSourceReader:
        request = self._request()
        if isinstance(request, LogReadRequest):
            opened = open_log(request, self._settings)
            return QueryLogReader(opened, request.selection, schema)
        if request.columns and tuple(schema.names) != request.columns:
            raise ReadFailed(
                "`columns` has no effect beside a schema with other columns; omit one of the two "
                "[read-columns]"
            )
        return self.reader_class(self.opened(request), schema, request.part_rows)

    def opened(self, request: ReadRequest) -> OpenedRead:
        """Plan a read; ReadFailed."""
        return open_read(request, self._settings)

    def _request(self) -> ReadRequest | LogReadRequest:
        options = dict(self.options)
        if options.get("query_log"):
            return parse_log_options(options, self._now)
        return parse_options(options, self._now)

    def _settings(self) -> Settings:
        try:
            return Settings(_env_file=self.options.get("env_file"))
        except ValidationError as wrong:
            raise ReadFailed(
                f"the platform's settings cannot be used: {wrong} [read-settings]"
            ) from wrong


def open_read(request: ReadRequest, settings_of: Callable[[], Settings]) -> OpenedRead:
    """Plan a read, through the API or over the stores of the settings; ReadFailed."""
    if request.url is not None:
        assert request.token is not None, "the options were checked"
        api = ReadApi(request.url, request.token)
        return OpenedRead(api.plan(request), ApiVersions(api))
    settings = settings_of()
    plan = read_options.run(plan_read(settings, request))
    return OpenedRead(plan, PlatformVersions(settings))


def open_log(request: LogReadRequest, settings_of: Callable[[], Settings]) -> OpenedLog:
    """Plan a read of logged queries, as `open_read` does of a dataset; ReadFailed."""
    if request.url is not None:
        assert request.token is not None, "the options were checked"
        api = ReadApi(request.url, request.token)
        return OpenedLog(api.query_log(), ApiVersions(api))
    settings = settings_of()
    source = read_options.run(plan_log_read(settings, request))
    return OpenedLog(source, PlatformVersions(settings))


class FilteringDataSource(FennelDataSource):
    """The source with pushed filters, which `register` registers."""

    reader_class = FilteringReader


def schema_of(plan: ReadPlan) -> StructType:
    """Return the columns of a read as Spark types, with comments."""
    available = plan.read.available
    chosen = pa.schema([available.field(name) for name in plan.read.wanted])
    return spark_schema(chosen, plan.comments)


def spark_schema(columns: pa.Schema, comments: Mapping[str, str]) -> StructType:
    """Return columns as Spark types, with their descriptions as comments."""
    found: StructType = from_arrow_schema(columns)
    for field in found.fields:
        if field.name in comments:
            field.metadata = {**(field.metadata or {}), COMMENT: comments[field.name]}
    return found


def _check_types(asked: StructType, available: StructType) -> None:
    """Raise ReadFailed if a given schema has a column of another type."""
    for field in asked.fields:
        known = available[field.name].dataType
        if field.dataType != known:
            raise ReadFailed(
                f"column `{field.name}` is {known.simpleString()} and not "
                f"{field.dataType.simpleString()}; read it as it is, and cast it [read-columns]"
            )
