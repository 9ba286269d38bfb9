"""Read any dataset as a Spark DataFrame, as of any time: `spark.read.format("fennel")`.

With the option `query_log` it reads logged queries instead (`query_log.py`).

    from fennel_core.history.datasource import FennelDataSource

    spark.dataSource.register(FennelDataSource)
    rides = (
        spark.read.format("fennel")
        .option("dataset", "Rides")
        .option("token", token)
        .option("as_of", "2026-05-01T12:00:00Z")
        .load()
    )

Theory. A dataset is its history (files on S3) and its topic's tail (committed records that are not
in history yet). The offset between the two is decided once, when the read is planned, so a read
returns the rows committed by then, whatever moves later. A partition of the topic holds all
versions of its keys, so it becomes one partition of the DataFrame and is read independently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import polars as pl
from pydantic import ValidationError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.connections import erasures, postgres
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.postgres import Pool
from fennel_core.history import asof, read_options
from fennel_core.history.errors import ReadFailed
from fennel_core.history.query_log import (
    LogReadRequest,
    QueryLogReader,
    parse_log_options,
    read_schema,
)
from fennel_core.history.topic_slices import TopicSlice, plan_slices, version_batches
from fennel_core.operators.rows import frame_columns
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    DatasetName,
    Micros,
    WorkspaceId,
)
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

if TYPE_CHECKING:
    import pyarrow as pa

OPTIONS: Final = ("dataset", "token", "workspace", "branch", "as_of", "env_file")
BATCH_ROWS: Final = 10_000
SERVING: Final = """
    SELECT b.name, c.catalog FROM workspace w LEFT JOIN branch b ON b.workspace = w.name LEFT JOIN
        commit c ON c.id = b.serving
    WHERE w.name = %s AND w.state = 'open'
"""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The parsed options of a read."""

    dataset: DatasetName
    branch: str
    workspace: str | None
    token: str | None
    as_of: Micros


@dataclass
class ReadPartition(InputPartition):  # type: ignore[misc]  # pyspark is not typed for strict checking
    """One partition of the dataset's topic."""

    slice: TopicSlice


def parse_options(options: Mapping[str, str], now: datetime) -> ReadRequest:
    """Return the parsed options; ReadFailed if one is unknown or malformed.

    `now`: the default of `as_of`.
    """
    read_options.check_known(options, OPTIONS)
    if not options.get("dataset"):
        raise ReadFailed(
            'no dataset: add .option("dataset", "<name>"), or .option("query_log", "<workflow>") '
            "[read-option]"
        )
    read_options.check_workspace(options)
    branch = options.get("branch") or MAIN_BRANCH
    return ReadRequest(
        DatasetName(options["dataset"]),
        branch,
        options.get("workspace") or None,
        options.get("token") or None,
        read_options.moment(options, "as_of", now),
    )


async def resolve_dataset(
    pool: Pool, settings: Settings, request: ReadRequest
) -> tuple[WorkspaceId, DatasetView]:
    """Return the workspace and the dataset that its branch serves now; ReadFailed without one."""
    workspace = await read_options.workspace_of(pool, settings, request.workspace, request.token)
    async with pool.connection() as connection:
        rows = await (await connection.execute(SERVING, (workspace,))).fetchall()
    if not rows:
        raise ReadFailed(
            f"unknown workspace `{workspace}`; `fennel-core workspace list` prints the valid ones "
            "[read-workspace]"
        )
    catalogs = {str(name): data for name, data in rows if name is not None}
    if request.branch not in catalogs:
        raise ReadFailed(
            f"unknown branch `{request.branch}` of `{workspace}`; valid branches: "
            f"{read_options.listed(catalogs)} [read-branch]"
        )
    data = catalogs[request.branch]
    if not isinstance(data, bytes):
        raise ReadFailed(
            f"branch `{request.branch}` serves nothing yet; commit to it, or wait until its "
            "commit has caught up [read-branch]"
        )
    views = {view.name: view for view in stored_names.loads(data, Catalog).datasets}
    view = views.get(request.dataset)
    if view is None:
        raise ReadFailed(
            f"unknown dataset `{request.dataset}` in branch `{request.branch}`; valid datasets: "
            f"{read_options.listed(views)} [read-dataset]"
        )
    if view.topic is None:
        raise ReadFailed(
            f"`{request.dataset}` is a terminal aggregate, which is computed on lookup and has no "
            "rows. Read the dataset that it aggregates, or look it up [read-dataset]"
        )
    return workspace, view


async def plan_read(
    settings: Settings, request: ReadRequest
) -> tuple[DatasetView, tuple[ErasedKeys, ...], list[ReadPartition]]:
    """Return the dataset, its erased keys and its partitions as of now; ReadFailed."""
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="fennel-read", size=1
    ) as pool:
        workspace, view = await resolve_dataset(pool, settings, request)
        assert view.topic is not None, "resolve_dataset checks it"
        erasures_by_workspace = await erasures.read(pool, workspace)
        erased = (
            erasures_by_workspace[workspace].get(view.name, ())
            if workspace in erasures_by_workspace
            else ()
        )
        slices = (await plan_slices(settings, pool, [view.topic]))[view.topic]
    return view, erased, [ReadPartition(each.until(request.as_of)) for each in slices]


class FennelReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed for strict checking
    """One read: planned when it is created; `read` runs in Spark's Python workers."""

    def __init__(self, settings: Settings, request: ReadRequest, schema: StructType) -> None:
        view, self._erased, self._parts = read_options.run(plan_read(settings, request))
        self._settings, self._as_of, self._dataset, self._schema = (
            settings,
            request.as_of,
            view.schema,
            schema,
        )

    def partitions(self) -> Sequence[InputPartition]:
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadPartition), "Spark passes the partitions of this reader"
        rows = asof.content(
            read_versions(self._settings, partition.slice, self._dataset),
            self._dataset,
            self._as_of,
            self._erased,
        )
        table = rows.to_arrow().cast(to_arrow_schema(self._schema, timezone="UTC"))
        yield from table.to_batches(max_chunksize=BATCH_ROWS)


class FennelDataSource(DataSource):  # type: ignore[misc]  # as above
    """Register once per Spark session: `spark.dataSource.register(FennelDataSource)`.

    Options, with defaults in parentheses: `dataset` (required); `token`, or `workspace` for
    processes that have the platform's settings; `branch` (main); `as_of`, ISO 8601, inclusive, UTC
    unless it has an offset (now); `env_file`, the settings as `up` writes them
    (the environment). Options of logged queries: see `query_log`.
    """

    @classmethod
    def name(cls) -> str:
        return "fennel"

    def schema(self) -> StructType:
        settings, request = self._asked()
        if isinstance(request, LogReadRequest):
            return read_schema(settings, request)
        view, _, _ = read_options.run(plan_read(settings, request))
        return spark_schema(view.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        settings, request = self._asked()
        if isinstance(request, LogReadRequest):
            return QueryLogReader(settings, request, schema)
        return FennelReader(settings, request, schema)

    def _asked(self) -> tuple[Settings, ReadRequest | LogReadRequest]:
        file = self.options.get("env_file")
        try:
            settings = Settings(_env_file=file)
        except ValidationError as wrong:
            raise ReadFailed(
                f"the platform's settings cannot be used: {wrong} [read-settings]"
            ) from wrong
        options, now = dict(self.options), datetime.now(UTC)
        if options.get("query_log"):
            return settings, parse_log_options(options, now)
        return settings, parse_options(options, now)


def read_versions(settings: Settings, part: TopicSlice, schema: Schema) -> pl.DataFrame:
    """Return every version of a slice, with the columns of `vocab.versions`."""
    meta = {POS: pl.Binary(), SIGN: pl.Int8(), IS_TOMBSTONE: pl.Boolean()}
    empty = pl.DataFrame(schema={**frame_columns(schema), **meta})
    return pl.concat([empty, *version_batches(settings, part, empty.columns)])


def spark_schema(schema: Schema) -> StructType:
    """Return the columns of a dataset as Spark types."""
    found: StructType = from_arrow_schema(schema.arrow())
    return found
