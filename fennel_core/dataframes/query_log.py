"""Read the query log of a workspace as a Spark DataFrame: `option("query_log", workflow)`.

    served = (
        spark.read.format("fennel")
        .option("query_log", "fraud")
        .option("token", token)
        .option("from", "2026-05-01T00:00:00Z")
        .option("until", "2026-05-02T00:00:00Z")
        .load()
    )

Theory. The log is its history and its topic's tail, split at one offset per partition as for a
dataset (`datasource.py`). Its rows are independent of each other, so each file of history is a
Spark partition of its own. Which features exist is a property of the logged queries and not of the
branch's present version, so planning reads the types of the selected blocks: of files only the
footer and the small columns, not the rows. A feature that a query did not have is null in its rows.

Rows that were computed from an erased key are left out (`vocab.query_log_blocks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fennel_core.connections import erasures, postgres, s3
from fennel_core.connections.installation import installation_of, key_prefix
from fennel_core.dataframes import read_options
from fennel_core.history import parquet
from fennel_core.history.errors import ReadFailed
from fennel_core.history.kafka import TopicReader
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.vocab import query_log_blocks
from fennel_core.vocab.ids import MAIN_BRANCH, Micros, Offset, TopicName, TopicPartition
from fennel_core.vocab.query_log_blocks import (
    BRANCH,
    COMMIT,
    FEATURES,
    FIRST,
    LAST,
    REQUEST_ID,
    ROW,
    SAMPLING_RATE,
    TIMESTAMP,
    WORKFLOW,
    LogBlock,
)
from fennel_core.vocab.versions import decode

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

OPTIONS: Final = (
    *("query_log", "token", "workspace", "branch", "from", "until", "features", "env_file"),
)
TOPIC: Final = "SELECT id FROM asset WHERE workspace = %s AND kind = 'querylog' AND state = 'live'"
OWN_COLUMNS: Final = pa.schema(
    [
        (WORKFLOW, pa.large_string()),
        (BRANCH, pa.large_string()),
        (COMMIT, pa.large_string()),
        (REQUEST_ID, pa.large_string()),
        (ROW, pa.int64()),
        (TIMESTAMP, pa.timestamp("us", "UTC")),
        (SAMPLING_RATE, pa.float64()),
    ]
)
"""The columns before the features."""
SELECTING: Final = [WORKFLOW, BRANCH, COMMIT, FIRST, LAST, FEATURES]
"""Columns of a block that decide whether it is read, and what it has."""
BATCH_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class LogSelection:
    """The rows that a read selects: of a workflow (all if empty) and a branch, in [from, until)."""

    workflow: str
    branch: str
    from_us: Micros | None
    until_us: Micros | None
    features: tuple[str, ...]
    """The features to read, in order; empty: all that the selected rows have."""

    def may_overlap(self, first_us: int, last_us: int) -> bool:
        """Return whether a time range, including its ends, has a selected moment."""
        return (self.until_us is None or first_us < self.until_us) and (
            self.from_us is None or last_us >= self.from_us
        )

    def of_blocks(self) -> pl.Expr:
        """Return which blocks of a frame may have selected rows."""
        chosen = pl.col(BRANCH) == self.branch
        if self.workflow:
            chosen &= pl.col(WORKFLOW) == self.workflow
        if self.from_us is not None:
            chosen &= pl.col(LAST).to_physical() >= self.from_us
        if self.until_us is not None:
            chosen &= pl.col(FIRST).to_physical() < self.until_us
        return chosen

    def of_rows(self) -> pl.Expr:
        """Return which rows of such a block are selected."""
        chosen = pl.lit(True)  # a literal column
        if self.from_us is not None:
            chosen &= pl.col(TIMESTAMP).to_physical() >= self.from_us
        if self.until_us is not None:
            chosen &= pl.col(TIMESTAMP).to_physical() < self.until_us
        return chosen


@dataclass(frozen=True, slots=True)
class LogReadRequest:
    """The parsed options of a read."""

    selection: LogSelection
    workspace: str | None
    token: str | None


@dataclass
class QueryLogPart(InputPartition):  # type: ignore[misc]  # pyspark is not typed for strict checking
    """A file, or the tail [tail_first, tail_end) of a partition of the topic. `root`: the prefix of
    the files' keys.
    """

    partition: TopicPartition
    file: HistoryFile | None
    tail_first: Offset
    tail_end: Offset
    root: str


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What a read reads, as of its planning."""

    parts: tuple[QueryLogPart, ...]
    erased: frozenset[bytes]


def parse_log_options(options: Mapping[str, str], now: datetime) -> LogReadRequest:
    """Return the parsed options; ReadFailed if one is unknown or malformed."""
    read_options.check_known(options, OPTIONS)
    read_options.check_workspace(options)
    workflow = options["query_log"]
    first, end = (
        None if options.get(name) is None else read_options.moment(options, name, now)
        for name in ("from", "until")
    )
    features = tuple(filter(None, map(str.strip, options.get("features", "").split(","))))
    return LogReadRequest(
        LogSelection(
            "" if workflow == "*" else workflow,
            options.get("branch") or MAIN_BRANCH,
            first,
            end,
            features,
        ),
        options.get("workspace") or None,
        options.get("token") or None,
    )


async def plan_log_read(settings: Settings, request: LogReadRequest) -> LogPlan:
    """Return the files and tails that may have selected rows; ReadFailed."""
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="fennel-read", size=1
    ) as pool:
        workspace = await read_options.workspace_of(
            pool, settings, request.workspace, request.token
        )
        erased = frozenset(
            query_log_blocks.subject(dataset, each.columns, key)
            for dataset, kinds in (await erasures.read(pool, workspace)).get(workspace, {}).items()
            for each in kinds
            for key in each.keys
        )
        async with pool.connection() as connection:
            found = await (await connection.execute(TOPIC, (workspace,))).fetchall()
        if not found:
            raise ReadFailed(
                f"workspace `{workspace}` has no query log yet: query with `log=True`, and read "
                "again some seconds later [read-query-log]"
            )
        topic = TopicName(str(found[0][0]))
        bounds = await asyncio.to_thread(TopicReader(settings).bounds, [topic])
        rows = PostgresHistoryFiles(pool)
        root = key_prefix(settings.s3_prefix, await installation_of(pool))
        parts: list[QueryLogPart] = []
        for partition, bound in sorted(bounds.items()):
            files = await rows.files(*partition, upto=bound.end)
            covered = files[-1].next_offset if files else Offset(0)
            parts += [
                QueryLogPart(partition, file, Offset(0), Offset(0), root)
                for file in files
                if file.min_ts is not None
                and file.max_ts is not None
                # A block is known by its last query.
                and request.selection.may_overlap(
                    file.min_ts - query_log_blocks.SPAN_US, file.max_ts
                )
            ]
            tail = max(covered, bound.first)
            if tail < bound.end:
                parts.append(QueryLogPart(partition, None, tail, bound.end, root))
    return LogPlan(tuple(parts), erased)


def read_schema(settings: Settings, request: LogReadRequest) -> StructType:
    """Return the columns of a read; ReadFailed if a feature has two types in it."""
    plan = _run(settings, request)
    client = s3.client(settings)
    frames = (
        frame.filter(request.selection.of_blocks())
        for part in plan.parts
        for frame in _selecting_columns(settings, client, part)
    )
    types: dict[str, tuple[pa.DataType, str]] = {}
    seen: set[tuple[bytes, str]] = set()
    for frame in frames:
        for features, commit in frame.select(FEATURES, COMMIT).unique().iter_rows():
            if (features, commit) not in seen:
                seen.add((features, commit))
                _merge_types(types, features, commit, request.selection.features)
    unknown = [name for name in request.selection.features if name not in types]
    if unknown:
        raise ReadFailed(
            f"no selected row has the feature `{unknown[0]}`; the selected rows have: "
            f"{read_options.listed(types)} [read-feature]"
        )
    names = request.selection.features or sorted(types)
    found: StructType = from_arrow_schema(
        pa.schema([*OWN_COLUMNS, *(pa.field(name, types[name][0]) for name in names)])
    )
    return found


def _merge_types(
    types: dict[str, tuple[pa.DataType, str]],
    features: bytes,
    commit: str,
    wanted: Sequence[str],
) -> None:
    for field in query_log_blocks.schema_of(features):
        known, of_commit = types.setdefault(field.name, (field.type, commit))
        if known != field.type and (not wanted or field.name in wanted):
            raise ReadFailed(
                f"the feature `{field.name}` is {known} in rows of commit `{of_commit}` and "
                f"{field.type} in rows of commit `{commit}`; read each with `from` and `until`, "
                "or leave it out with `features` [read-feature-type]"
            )


class QueryLogReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed for strict checking
    """One read: planned when it is created; `read` runs in Spark's Python workers."""

    def __init__(self, settings: Settings, request: LogReadRequest, schema: StructType) -> None:
        self._settings, self._selection, self._schema = settings, request.selection, schema
        self._plan = _run(settings, request)

    def partitions(self) -> Sequence[InputPartition]:
        return list(self._plan.parts)  # Spark refuses a tuple

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, QueryLogPart), "Spark passes the partitions of this reader"
        schema = to_arrow_schema(self._schema, timezone="UTC")
        client = s3.client(self._settings)
        for frame in _whole_blocks(self._settings, client, partition):
            for block in query_log_blocks.blocks_of(frame.filter(self._selection.of_blocks())):
                table = rows_as(schema, block, self._selection, self._plan.erased)
                yield from table.to_batches(max_chunksize=BATCH_ROWS)


def rows_as(
    schema: pa.Schema, block: LogBlock, selection: LogSelection, erased: frozenset[bytes]
) -> pa.Table:
    """Return the selected rows of a block with the columns of `schema`; null where it has none."""
    rows = query_log_blocks.rows_of(block, erased).filter(selection.of_rows())
    own = {
        WORKFLOW: block.workflow,
        BRANCH: block.branch,
        COMMIT: block.commit,
        SAMPLING_RATE: block.sampling_rate,
    }
    have = rows.with_columns(pl.lit(value).alias(name) for name, value in own.items()).to_arrow()
    columns = [
        have.column(field.name).cast(field.type)
        if field.name in have.column_names
        else pa.nulls(len(have), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _selecting_columns(
    settings: Settings, client: S3Client, part: QueryLogPart
) -> Iterable[pl.DataFrame]:
    """Yield the blocks of a partition without their rows."""
    if part.file is None:
        return (frame.select(SELECTING) for frame in _tail(settings, part))
    key = part.root + part.file.object_key
    opened = partial(s3.RangedObject, client, settings.s3_bucket, key, part.file.size_bytes)
    return _file_columns(opened(), key, settings.s3_bucket)


def _file_columns(source: s3.RangedObject, key: str, bucket: str) -> Iterator[pl.DataFrame]:
    try:
        table = pq.ParquetFile(source).read(columns=SELECTING)
    except FileNotFoundError as gone:
        raise _missing(key, bucket) from gone
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
    yield frame


def _whole_blocks(
    settings: Settings, client: S3Client, part: QueryLogPart
) -> Iterator[pl.DataFrame]:
    """Yield the blocks of a partition."""
    if part.file is None:
        yield from _tail(settings, part)
        return
    key = part.root + part.file.object_key
    body = s3.get(client, settings.s3_bucket, key)
    if body is None:
        raise _missing(key, settings.s3_bucket)
    yield parquet.decode_file(body)


def _tail(settings: Settings, part: QueryLogPart) -> Iterator[pl.DataFrame]:
    for message in TopicReader(settings).tail(part.partition, part.tail_first, part.tail_end):
        yield decode(message.value)


def _missing(key: str, bucket: str) -> ReadFailed:
    return ReadFailed(
        f"object {key} is missing from bucket `{bucket}`; restore it from a backup of the bucket, "
        "or read a younger time if it has expired [read-object]"
    )


def _run(settings: Settings, request: LogReadRequest) -> LogPlan:
    return read_options.run(plan_log_read(settings, request))
