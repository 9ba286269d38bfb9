"""Read the query log of a workspace as a Spark DataFrame: `option("query_log", workflow)`.

    served = (
        spark.read.format("fennel")
        .option("query_log", "fraud")
        .option("url", "http://fennel:7410")
        .option("token", token)
        .option("from", "2026-05-01T00:00:00Z")
        .option("until", "2026-05-02T00:00:00Z")
        .load()
    )

Theory. The log is its history and its topic's tail, split at one offset per partition as for a
dataset (`datasource.py`), and read from the same places: through the API with a token, or from the
stores with the platform's settings. Its rows are independent of each other, so each file of history
is a Spark partition of its own. Which features exist is a property of the logged queries and not of
the branch's present version, so planning reads the types of the selected blocks: of files only the
footer and the small columns, not the rows. A feature that a query did not have is null in its rows.

Rows that were computed from an erased key are left out (`vocab.query_log_blocks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fennel_core.connections import postgres
from fennel_core.dataframes import read_options
from fennel_core.dataframes.log_source import LogSelection, LogSource, find_log
from fennel_core.dataframes.part_rows import VersionStore
from fennel_core.dataframes.planning import slice_reader
from fennel_core.history.errors import ReadFailed
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.settings.model import Settings
from fennel_core.vocab import query_log_blocks
from fennel_core.vocab.ids import MAIN_BRANCH
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

OPTIONS: Final = (
    *("query_log", "url", "token", "workspace", "branch", "from", "until", "features"),
    "env_file",
)
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
SELECTING: Final = (WORKFLOW, BRANCH, COMMIT, FIRST, LAST, FEATURES)
"""Columns of a block that decide whether it is read, and what it has."""
BATCH_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SelectedBlocks:
    """Selects blocks while they are read. Implements `parquet.RowFilter`."""

    selection: LogSelection

    @property
    def names(self) -> tuple[str, ...]:
        """See `RowFilter.names`."""
        return WORKFLOW, BRANCH, FIRST, LAST

    def kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """See `RowFilter.kept`."""
        return rows.filter(self.selection.of_blocks())

    def may_keep(self, group: pq.RowGroupMetaData) -> bool:  # noqa: ARG002  # as the protocol has it
        """See `RowFilter.may_keep`: files are selected by time before."""
        return True


@dataclass(frozen=True, slots=True)
class LogReadRequest:
    """The parsed options of a read. `url`: as in `ReadRequest`."""

    selection: LogSelection
    workspace: str | None
    token: str | None
    url: str | None = None


@dataclass
class QueryLogPart(InputPartition):  # type: ignore[misc]  # pyspark is not typed for strict checking
    """A file, or the tail of a partition of the topic."""

    piece: TopicSlice


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """What there is to read of a query log, and where it is."""

    source: LogSource
    versions: VersionStore


def parse_log_options(options: Mapping[str, str], now: datetime) -> LogReadRequest:
    """Return the parsed options; ReadFailed if one is unknown or malformed."""
    read_options.check_known(options, OPTIONS)
    read_options.check_access(options)
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
        options.get("url") or None,
    )


async def plan_log_read(settings: Settings, request: LogReadRequest) -> LogSource:
    """Return what there is to read as of now; ReadFailed if it cannot be read."""
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="fennel-read", size=1
    ) as pool:
        workspace = await read_options.workspace_of(
            pool, settings, request.workspace, request.token
        )
        return await find_log(pool, workspace, slice_reader(settings, pool))


def read_schema(opened: OpenedLog, selection: LogSelection) -> StructType:
    """Return the columns of a read; ReadFailed if a feature has two types in it."""
    types: dict[str, tuple[pa.DataType, str]] = {}
    seen: set[tuple[bytes, str]] = set()
    for piece in opened.source.pieces(selection):
        for frame in opened.versions.batches(piece, SELECTING, SelectedBlocks(selection)):
            for features, commit in frame.select(FEATURES, COMMIT).unique().iter_rows():
                if (features, commit) not in seen:
                    seen.add((features, commit))
                    _merge_types(types, features, commit, selection.features)
    unknown = [name for name in selection.features if name not in types]
    if unknown:
        raise ReadFailed(
            f"no selected row has the feature `{unknown[0]}`; the selected rows have: "
            f"{read_options.listed(types)} [read-feature]"
        )
    names = selection.features or sorted(types)
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
    """One read, which is planned; `read` runs in Spark's Python workers."""

    def __init__(self, opened: OpenedLog, selection: LogSelection, schema: StructType) -> None:
        self._opened, self._selection, self._schema = opened, selection, schema

    def partitions(self) -> Sequence[InputPartition]:
        pieces = self._opened.source.pieces(self._selection)
        return [QueryLogPart(piece) for piece in pieces]  # Spark refuses a tuple

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, QueryLogPart):
            return  # Spark makes a partition without a value if a read has none.
        schema = to_arrow_schema(self._schema, timezone="UTC")
        erased = self._opened.source.erased
        chosen = SelectedBlocks(self._selection)
        batches = self._opened.versions.batches(partition.piece, query_log_blocks.COLUMNS, chosen)
        for frame in batches:
            for block in query_log_blocks.blocks_of(frame):
                table = rows_as(schema, block, self._selection, erased)
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
