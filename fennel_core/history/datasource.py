"""`spark.read.format("fennel")`: any dataset as a DataFrame, as of any time.

    from fennel_core.history.datasource import FennelDataSource

    spark.dataSource.register(FennelDataSource)
    rides = spark.read.format("fennel").option("dataset", "Rides").option("token",
    token).option("as_of", "2026-05-01T12:00:00Z").load()

Theory. A dataset is its history (files on S3) and its topic's tail (records that are committed and
not in history yet); where one ends and the other begins is decided once, when the read is planned,
so the rows of a read are those committed by then, whatever moves meanwhile. A topic's partition
holds all versions of its keys, so each is a partition of the DataFrame and needs nothing of the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import polars as pl
import psycopg
from psycopg_pool import PoolTimeout
from pydantic import ValidationError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.connections import erasures, postgres, s3, tokens
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.postgres import Pool
from fennel_core.history import asof, parquet
from fennel_core.history.kafka import TopicReader
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.operators.rows import frame_columns
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    DatasetName,
    Micros,
    Offset,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import META, decode

if TYPE_CHECKING:
    import pyarrow as pa

OPTIONS: Final = ("dataset", "token", "workspace", "branch", "as_of", "env_file")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICRO: Final = timedelta(microseconds=1)
BATCH_ROWS: Final = 10_000
SERVING: Final = """
    SELECT b.name, c.catalog FROM workspace w LEFT JOIN branch b ON b.workspace = w.name LEFT JOIN
        commit c ON c.id = b.serving
    WHERE w.name = %s AND w.state = 'open'
"""


class ReadFailed(Exception):
    """The read cannot be done as asked; the text says what to change, and ends with a stable
    code.
    """


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The options, parsed."""

    dataset: DatasetName
    branch: str
    workspace: str | None
    token: str | None
    as_of: Micros


@dataclass
class ReadPartition(InputPartition):  # type: ignore[misc]  # pyspark is not typed for strict checking
    """One partition of the dataset's topic: its files in order, then the tail [tail_first,
    tail_end).
    """

    place: TopicPartition
    files: tuple[HistoryFile, ...]
    tail_first: Offset
    tail_end: Offset


def parse_options(options: Mapping[str, str], now: datetime) -> ReadRequest:
    """What the options ask for. ReadError."""
    unknown = sorted(set(options) - {*OPTIONS, "path"})
    if unknown:
        raise ReadFailed(
            f"there is no option `{unknown[0]}`: there are {', '.join(OPTIONS)} [read-option]"
        )
    if not options.get("dataset"):
        raise ReadFailed('no dataset: add .option("dataset", "<name>") [read-option]')
    if not options.get("token") and not options.get("workspace"):
        raise ReadFailed(
            'no workspace: add .option("token", "<your token>"), or '
            '.option("workspace", "<name>") [read-option]'
        )
    text = options.get("as_of")
    try:
        at = now if text is None else datetime.fromisoformat(text)
    except ValueError as wrong:
        raise ReadFailed(
            f'as_of `{text}` is no ISO 8601 time: write it like "2026-05-01T12:00:00Z" [read-as-of]'
        ) from wrong
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    branch = options.get("branch") or MAIN_BRANCH
    return ReadRequest(
        DatasetName(options["dataset"]),
        branch,
        options.get("workspace") or None,
        options.get("token") or None,
        Micros((at - EPOCH) // MICRO),
    )


async def resolve_dataset(
    pool: Pool, settings: Settings, want: ReadRequest
) -> tuple[WorkspaceId, DatasetView]:
    """The workspace and the dataset as its branch serves it now. ReadError."""
    workspace = want.workspace
    if want.token is not None:
        try:
            workspace = await tokens.workspace_of(pool, settings, f"Bearer {want.token}")
        except ApiError as refused:
            raise ReadFailed(f"{refused.text} [{refused.code}]") from refused
        if want.workspace not in (None, workspace):
            raise ReadFailed(
                f"the token opens workspace `{workspace}`, not `{want.workspace}`: "
                "leave out one of the two [read-workspace]"
            )
    async with pool.connection() as connection:
        rows = await (await connection.execute(SERVING, (workspace,))).fetchall()
    if not rows:
        raise ReadFailed(
            f"there is no workspace `{workspace}`: `fennel-core workspace list` "
            "names those there are [read-workspace]"
        )
    catalogs = {str(name): data for name, data in rows if name is not None}
    if want.branch not in catalogs:
        raise ReadFailed(
            f"there is no branch `{want.branch}` in `{workspace}`; there are "
            f"{_listed(catalogs)} [read-branch]"
        )
    data = catalogs[want.branch]
    if not isinstance(data, bytes):
        raise ReadFailed(
            f"branch `{want.branch}` serves nothing yet: commit to it first, or wait "
            "until its commit has caught up [read-branch]"
        )
    views = {view.name: view for view in stored_names.loads(data, Catalog).datasets}
    view = views.get(want.dataset)
    if view is None:
        raise ReadFailed(
            f"there is no dataset `{want.dataset}` in branch `{want.branch}`; there "
            f"are {_listed(views)} [read-dataset]"
        )
    if view.topic is None:
        raise ReadFailed(
            f"`{want.dataset}` is a terminal aggregate: it is assembled when it is "
            "asked for and has no rows. Read the dataset it is"
            " computed from, or look it up [read-dataset]"
        )
    return WorkspaceId(str(workspace)), view


async def plan_read(
    settings: Settings, want: ReadRequest
) -> tuple[DatasetView, tuple[ErasedKeys, ...], list[ReadPartition]]:
    """The dataset, its erased keys, and what there is to read now. ReadError."""
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="fennel-read", size=1
    ) as pool:
        workspace, view = await resolve_dataset(pool, settings, want)
        assert view.topic is not None, "dataset_of sees to it"
        banned = await erasures.read(pool, workspace)
        erased = banned[workspace].get(view.name, ()) if workspace in banned else ()
        bounds = await asyncio.to_thread(TopicReader(settings).bounds, [view.topic])
        rows = PostgresHistoryFiles(pool)
        parts = []
        for place, bound in sorted(bounds.items()):
            files = await rows.files(*place, upto=bound.end)
            covered = files[-1].next_offset if files else Offset(0)
            useful = tuple(
                file for file in files if file.min_ts is not None and file.min_ts <= want.as_of
            )
            parts.append(ReadPartition(place, useful, max(covered, bound.first), bound.end))
    return view, erased, parts


class FennelReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed for strict checking
    """One read: planned when it is made; `read` runs in Spark's Python workers."""

    def __init__(self, settings: Settings, want: ReadRequest, schema: StructType) -> None:
        view, self._erased, self._parts = _run(settings, want)
        self._settings, self._as_of, self._dataset, self._schema = (
            settings,
            want.as_of,
            view.schema,
            schema,
        )

    def partitions(self) -> Sequence[InputPartition]:
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadPartition), "a partition of ours"
        rows = asof.content(
            read_versions(self._settings, partition, self._dataset),
            self._dataset,
            self._as_of,
            self._erased,
        )
        table = rows.to_arrow().cast(to_arrow_schema(self._schema, timezone="UTC"))
        yield from table.to_batches(max_chunksize=BATCH_ROWS)


class FennelDataSource(DataSource):  # type: ignore[misc]  # as above
    """Register once per Spark session: `spark.dataSource.register(FennelDataSource)`.

    Options: `dataset` (required); `token`, or `workspace` (whoever has the platform's settings may
    read all); `branch` (main); `as_of`, ISO 8601, UTC unless it says otherwise, inclusive (now);
    `env_file`, the settings as `fennel-core env --all` writes them (the environment).
    """

    @classmethod
    def name(cls) -> str:
        return "fennel"

    def schema(self) -> StructType:
        settings, want = self._asked()
        view, _, _ = _run(settings, want)
        return spark_schema(view.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return FennelReader(*self._asked(), schema)

    def _asked(self) -> tuple[Settings, ReadRequest]:
        file = self.options.get("env_file")
        try:
            settings = Settings(_env_file=file)
        except ValidationError as wrong:
            raise ReadFailed(
                f"the platform's settings cannot be used: {wrong} [read-settings]"
            ) from wrong
        return settings, parse_options(dict(self.options), datetime.now(UTC))


def read_versions(settings: Settings, part: ReadPartition, schema: Schema) -> pl.DataFrame:
    """Every version of a partition up to where the read was planned, with the columns of
    `vocab.read_versions`.
    """
    columns = [*schema.names, *META]
    client = s3.client(settings)
    frames = [
        pl.DataFrame(
            schema={
                **frame_columns(schema),
                "__pos": pl.Binary(),
                "__sign": pl.Int8(),
                "__tombstone": pl.Boolean(),
            }
        )
    ]
    for file in part.files:
        body = s3.get(client, settings.s3_bucket, file.object_key)
        if body is None:
            raise ReadFailed(
                f"{file.object_key} is missing from bucket `{settings.s3_bucket}`: "
                "history is damaged [read-object]"
            )
        frames.append(parquet.decode_file(body, columns))
    frames += [
        decode(message.value).select(columns)
        for message in TopicReader(settings).tail(part.place, part.tail_first, part.tail_end)
    ]
    return pl.concat(frames)


def _run(
    settings: Settings, want: ReadRequest
) -> tuple[DatasetView, tuple[ErasedKeys, ...], list[ReadPartition]]:
    try:
        return asyncio.run(plan_read(settings, want))
    except (psycopg.OperationalError, PoolTimeout) as away:
        raise ReadFailed(
            f"the platform's database cannot be reached ({away}): is "
            "FENNEL_POSTGRES_DSN right? [read-settings]"
        ) from away


def spark_schema(schema: Schema) -> StructType:
    """The columns of a dataset as Spark sees them."""
    found: StructType = from_arrow_schema(schema.arrow())
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"
