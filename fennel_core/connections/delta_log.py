"""Parse the log of a Delta table: what one commit did, and what a table needs of its readers.

A commit is one object, `_delta_log/<version>.json`, with an action per line. Which rows it changed
follows from its actions by the protocol: if there are `cdc` files, from these alone; otherwise rows
of added files are inserts and rows of removed files deletes, where the action changes data. So
OPTIMIZE, which moves rows to other files, changes none.

The newest version, its schema and its files are found by the library (delta-rs), which reads
checkpoints; the actions of one commit it does not give out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from fennel_core.connections.errors import ConnectionsError
from fennel_core.vocab.delta_feed import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    READ,
)

FEED: Final = "delta.enableChangeDataFeed"
MAPPING: Final = "delta.columnMapping.mode"
VECTORS: Final = "delta.enableDeletionVectors"
SERVED: Final = frozenset(
    ["columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"]
)
"""Features of a table that do not change how its files are read, as long as it does not use them:
see `unserved`."""
OWN: Final = frozenset([CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION])
MICROS_PER_MS: Final = 1000


class LogUnreadable(ConnectionsError):
    """A commit is no text of actions, or names what is not read; the text is about the commit."""

    code = "delta-log-unreadable"


class _File(msgspec.Struct):
    path: str
    dataChange: bool = True
    partitionValues: dict[str, str | None] | None = None
    deletionVector: dict[str, Any] | None = None


class _Metadata(msgspec.Struct):
    id: str
    schemaString: str
    partitionColumns: list[str] = []
    configuration: dict[str, str] = {}


class _Protocol(msgspec.Struct):
    minReaderVersion: int
    readerFeatures: list[str] | None = None


class _CommitInfo(msgspec.Struct):
    timestamp: int | None = None
    inCommitTimestamp: int | None = None
    operation: str | None = None


class _Action(msgspec.Struct):
    add: _File | None = None
    remove: _File | None = None
    cdc: _File | None = None
    metaData: _Metadata | None = None
    protocol: _Protocol | None = None
    commitInfo: _CommitInfo | None = None


_decode = msgspec.json.Decoder(_Action).decode


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a version. `path`: below the table. `partition`: values of columns that it lacks.

    `change`: what all of its rows are; empty if a column of it says so.
    """

    path: str
    partition: tuple[tuple[str, str | None], ...]
    change: str


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a version says about its table. `columns`: the type of each, as JSON."""

    table_id: str
    columns: Mapping[str, str]
    configuration: Mapping[str, str]

    @property
    def has_feed(self) -> bool:
        return self.configuration.get(FEED, "").lower() == "true"


@dataclass(frozen=True, slots=True)
class TableCommit:
    """What one version changed. `files`: whose rows are its changes, deletes first.

    `operation`: for people. `shape` and `unserved`: if the commit changed them.
    """

    version: int
    timestamp_us: int | None
    operation: str
    files: tuple[DataFile, ...]
    shape: TableShape | None
    unserved: str | None

    @property
    def from_feed(self) -> bool:
        return any(not file.change for file in self.files)

    @property
    def deletes(self) -> bool:
        """Whether rows of whole files are deletes."""
        return any(file.change == DELETE for file in self.files)


def parse_commit(version: int, text: bytes) -> TableCommit:
    """Return what a commit did. Raises `LogUnreadable`."""
    try:
        actions = [_decode(line) for line in text.splitlines() if line.strip()]
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise LogUnreadable(f"it cannot be read: {wrong}") from wrong
    if not actions:
        raise LogUnreadable("it has no actions")
    info = next((a.commitInfo for a in actions if a.commitInfo is not None), _CommitInfo())
    metadata = next((a.metaData for a in actions if a.metaData is not None), None)
    protocol = next((a.protocol for a in actions if a.protocol is not None), None)
    made_ms = info.inCommitTimestamp if info.inCommitTimestamp is not None else info.timestamp
    shape = None if metadata is None else _shape(metadata)
    return TableCommit(
        version,
        None if made_ms is None else made_ms * MICROS_PER_MS,
        info.operation or "unknown",
        tuple(_files(actions)),
        shape,
        unserved(
            () if protocol is None else protocol.readerFeatures or (),
            {} if shape is None else shape.configuration,
            () if shape is None else shape.columns,
        ),
    )


def unserved(
    features: Any, configuration: Mapping[str, str], columns: Collection[str] = ()
) -> str | None:
    """Return what of a table is not read, as the end of a sentence about it; None if all is."""
    if own := sorted(OWN & set(columns)):
        return (
            f"has a column `{own[0]}`, and rows are given one by this name when they are read; "
            "rename it in the table"
        )
    other = sorted(set(features) - SERVED)
    if other:
        return f"needs a reader with {', '.join(other)}, which this platform is not"
    if configuration.get(MAPPING, "none") != "none":
        return (
            f"has `{MAPPING}`, so its files have other column names, which this platform does "
            "not read; copy it into a table without column mapping"
        )
    if configuration.get(VECTORS, "").lower() == "true":
        return (
            f"has `{VECTORS}`, and deletion vectors are not read; set it to false, and "
            "run `REORG TABLE … APPLY (PURGE)`"
        )
    return None


def columns_of(schema: str) -> dict[str, str]:
    """Return the columns of a schema of Delta, each with its type as JSON.

    Comments, and whether values may be null, are no part of a type.
    """
    fields = json.loads(schema)["fields"]
    return {each["name"]: _type_text(each["type"]) for each in fields}


def _type_text(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(_bare(given), sort_keys=True)


def _bare(given: Any) -> Any:
    """Return a type without what may differ between columns of one type."""
    if not isinstance(given, dict):
        return given
    if given["type"] == "struct":
        return {"struct": {each["name"]: _bare(each["type"]) for each in given["fields"]}}
    parts = ("elementType", "keyType", "valueType")
    return {name: _bare(given[name]) for name in ("type", *parts) if name in given}


def file_of(path: str, partition: Mapping[str, str | None], change: str) -> DataFile:
    """Return a file of an action. Raises `LogUnreadable` for one that is not below the table."""
    decoded = unquote(path)
    if "://" in decoded or decoded.startswith("/") or ".." in decoded.split("/"):
        raise LogUnreadable(f"its file `{decoded}` is not below the table, as of a shallow clone")
    # An empty text is null, by the protocol.
    values = tuple(sorted((name, value or None) for name, value in partition.items()))
    return DataFile(decoded, values, change)


def _shape(metadata: _Metadata) -> TableShape:
    try:
        columns = columns_of(metadata.schemaString)
    except (ValueError, KeyError, TypeError) as wrong:
        raise LogUnreadable(f"its schema cannot be read: {wrong}") from wrong
    return TableShape(metadata.id, columns, metadata.configuration)


def _files(actions: list[_Action]) -> Iterator[DataFile]:
    """Yield the files whose rows are the changes of a commit, in an order of their own."""
    feed = [a.cdc for a in actions if a.cdc is not None]
    removed = [a.remove for a in actions if a.remove is not None and a.remove.dataChange]
    added = [a.add for a in actions if a.add is not None and a.add.dataChange]
    if feed:
        removed, added = [], []
    for files, change in ((feed, ""), (removed, DELETE), (added, INSERT)):
        for each in sorted(files, key=lambda file: file.path):
            if each.deletionVector is not None:
                raise LogUnreadable(
                    f"its file `{each.path}` has a deletion vector, which is not read"
                )
            if each.partitionValues is None and change == DELETE:
                raise LogUnreadable(
                    f"it removes `{each.path}` without saying its partition; enable the table's "
                    f"`{FEED}`"
                )
            yield file_of(each.path, each.partitionValues or {}, change)


@dataclass(frozen=True, slots=True)
class TableHead:
    """The newest version of a table. `unserved`: see the function of this name."""

    version: int
    shape: TableShape
    unserved: str | None


def table_head(table: DeltaTable) -> TableHead:
    """Return what an opened table is."""
    metadata = table.metadata()
    shape = TableShape(
        str(metadata.id), columns_of(table.schema().to_json()), dict(metadata.configuration)
    )
    features = table.protocol().reader_features or ()
    return TableHead(table.version(), shape, unserved(features, shape.configuration, shape.columns))


def table_files(table: DeltaTable) -> tuple[DataFile, ...]:
    """Return the files of the version that is open, in one order. Raises `LogUnreadable`."""
    if pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all().num_rows:
        raise LogUnreadable("it has deletion vectors; run `REORG TABLE … APPLY (PURGE)`")
    added = pa.table(table.get_add_actions()).combine_chunks()
    paths = added.column("path").to_pylist()
    values: list[dict[str, str | None]] = [{} for _ in paths]
    if paths and "partition" in added.schema.names:
        given = pa.RecordBatch.from_struct_array(added.column("partition").combine_chunks())
        texts = [column.cast(pa.string()) for column in given.columns]
        values = pa.RecordBatch.from_arrays(texts, names=given.schema.names).to_pylist()
    return tuple(
        sorted(
            (file_of(path, own, READ) for path, own in zip(paths, values, strict=True)),
            key=lambda file: file.path,
        )
    )
