"""The changes of a Delta table from any place on, in pieces that fit into a transaction.

Theory. A version of a table never changes, and the files of a version are read in one order. So
(version, file, row) is a place that means the same to every reader, and is all that is remembered.
The first full read is the rows of the newest version; then come the changes of each version behind
it, in order.

Rows of keyed datasets are versions of their keys in event time, and a delete is one at the time of
its commit. So a version must not both delete a key and put it: its row could be older than the
delete, and the key would stay absent. An overwrite, and an update that is written as a delete and
an insert, do that to every row. Therefore the keys that a version puts are read first, and deletes
of these keys are none. What is left are the keys that the version really removed, also those that
an update has changed to another key.

Without keys, a table may only grow: a version that changes or removes rows stops the source.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fennel_core.connections.delta_log import (
    FEED,
    DataFile,
    LogUnreadable,
    TableCommit,
    TableHead,
    TableShape,
    parse_commit,
)
from fennel_core.connections.external_s3 import FileChanged
from fennel_core.sources.delta_keys import PutKeys, partitioned
from fennel_core.sources.errors import StreamReplaced, TableVersionsGone, TableVersionUnfit
from fennel_core.sources.file_rows import (
    FileFormat,
    FileUnreadable,
    file_pieces,
    open_parquet,
)
from fennel_core.sources.read_rows import ArrowRows
from fennel_core.vocab.delta_feed import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    POSTIMAGE,
    PREIMAGE,
)

PUTS: Final = (INSERT, POSTIMAGE)
CHANGES: Final = (*PUTS, PREIMAGE, DELETE)
KEYS: Final = 10_000_000
"""Keys that one version may put beside deletes: 16 bytes each are remembered while it is read."""
PARQUET: Final = FileFormat("parquet")


class DeltaCursor(msgspec.Struct, frozen=True):
    """The version that is being read, or was if `done`; the file in it, and its rows passed.

    `snapshot`: of the version all rows are read, and not its changes. `columns`: of the table then.
    """

    version: int
    snapshot: bool = False
    file: int = 0
    row: int = 0
    done: bool = False
    columns: dict[str, str] = {}


_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(DeltaCursor).decode


def encode_cursor(cursor: DeltaCursor) -> str:
    """Return the text that is stored with a position."""
    return _encode(cursor).decode()


def decode_cursor(text: str) -> DeltaCursor | None:
    """Return the cursor of a position; None before the first row."""
    return _decode(text.encode()) if text else None


@dataclass(frozen=True, slots=True)
class DeltaStore:
    """A table's log and files. Each blocks, and raises `ExternalTableUnusable`.

    `snapshot`: the files of a version. `commit`: the text of one. `body`: a file. Both are None
    if it is gone.
    """

    title: str
    head: Callable[[], TableHead]
    snapshot: Callable[[int], tuple[DataFile, ...]]
    commit: Callable[[int], tuple[bytes, int] | None]
    """Also when the object was written, in µs."""
    body: Callable[[str], io.RawIOBase | None]


@dataclass(frozen=True, slots=True)
class DeltaPiece:
    """Rows up to a place. `rows`: how many of a file were passed for it."""

    parts: tuple[ArrowRows, ...]
    cursor: DeltaCursor
    rows: int
    size_bytes: int


class DeltaChanges:
    """The changes behind a cursor. `keys`: the columns that name a row; empty: it may only grow."""

    def __init__(
        self, store: DeltaStore, table_id: str, keys: tuple[str, ...], cursor: DeltaCursor | None
    ) -> None:
        self._store, self._table_id, self._keys = store, table_id, keys
        self._from = cursor
        self.newest = 0

    def pieces(self) -> Iterator[DeltaPiece]:
        """Yield the changes, up to the newest version. Blocks; raises `TableVersionsGone`,
        `TableVersionUnfit`, `StreamReplaced` and what the store raises.
        """
        head = self._store.head()
        self.newest = head.version
        self._require_same(head.shape)
        if head.unserved is not None:
            raise TableVersionUnfit(f"{self._store.title} {head.unserved}")
        cursor = self._from
        if cursor is None:
            if self._keys and not head.shape.has_feed:
                raise TableVersionUnfit(
                    f"{self._store.title} has no change data feed, without which later changes "
                    f"cannot be read; set `{FEED}` to true"
                )
            cursor = DeltaCursor(head.version, snapshot=True, columns=dict(head.shape.columns))
        if cursor.version > head.version:
            raise TableVersionsGone(
                f"{self._store.title} is at version {head.version}, and version {cursor.version} "
                "of it was read: it was restored from a copy, or its log was cut. To go on, "
                f"{_again()}"
            )
        if not cursor.done:
            for piece in self._rest(cursor):
                cursor = piece.cursor
                yield piece
        while cursor.version < head.version:
            for piece in self._rest(DeltaCursor(cursor.version + 1, columns=cursor.columns)):
                cursor = piece.cursor
                yield piece

    def _rest(self, cursor: DeltaCursor) -> Iterator[DeltaPiece]:
        """Yield what is left of the version of a cursor."""
        commit = (self._whole if cursor.snapshot else self._commit)(cursor.version)
        if commit.shape is not None:
            self._require_columns(commit, cursor.columns, commit.shape.columns)
            cursor = msgspec.structs.replace(cursor, columns=dict(commit.shape.columns))
        put = self._put_keys(commit)
        for place in range(cursor.file, len(commit.files)):
            row = cursor.row if place == cursor.file else 0
            for part, end, size in self._rows(commit, commit.files[place], row):
                kept = _changes(part, commit, commit.files[place], put)
                at = msgspec.structs.replace(cursor, file=place, row=end)
                passed = end - row
                row = end
                yield DeltaPiece((kept,) if kept.rows.num_rows else (), at, passed, size)
        ended = msgspec.structs.replace(cursor, file=0, row=0, done=True, snapshot=False)
        yield DeltaPiece((), ended, 0, 0)

    def _whole(self, version: int) -> TableCommit:
        """Return a version as a commit that reads all of its rows."""
        try:
            files = self._store.snapshot(version)
            found = self._store.commit(version)
            made_us = None
            if found is not None:
                made_us = parse_commit(version, found[0]).timestamp_us or found[1]
        except LogUnreadable as wrong:
            raise TableVersionUnfit(
                f"{self._store.title}: version {version} is not read: {wrong}"
            ) from wrong
        return TableCommit(version, made_us, "", files, None, None)

    def _commit(self, version: int) -> TableCommit:
        found = self._store.commit(version)
        if found is None:
            raise TableVersionsGone(
                f"{self._store.title}: version {version} of its log was deleted before it was "
                f"read, and the table is at version {self.newest}; what versions {version} to "
                f"{self.newest} changed cannot be read. To go on, {_again()}"
            )
        text, written_us = found
        title = f"{self._store.title}: version {version}"
        try:
            commit = parse_commit(version, text)
        except LogUnreadable as wrong:
            raise TableVersionUnfit(f"{title} is not read: {wrong}") from wrong
        if commit.unserved is not None:
            raise TableVersionUnfit(f"{title} {commit.unserved}")
        if commit.shape is not None:
            self._require_same(commit.shape)
            if self._keys and not commit.shape.has_feed:
                raise TableVersionUnfit(
                    f"{title} ends the change data feed, without which changes cannot be "
                    f"read; set `{FEED}` to true. To go on, {_again()}"
                )
        return replace(commit, timestamp_us=commit.timestamp_us or written_us)

    def _require_same(self, shape: TableShape) -> None:
        if shape.table_id != self._table_id:
            raise StreamReplaced(
                self._store.title, origin_of(self._table_id), origin_of(shape.table_id)
            )

    def _require_columns(
        self, commit: TableCommit, before: Mapping[str, str], now: Mapping[str, str]
    ) -> None:
        gone = sorted(before.keys() - now.keys())
        changed = sorted(name for name in before if now.get(name, before[name]) != before[name])
        if gone or changed:
            what = [f"removes column `{name}`" for name in gone]
            what += [f"makes `{name}` {now[name]}, which was {before[name]}" for name in changed]
            raise TableVersionUnfit(
                f"{self._store.title}: version {commit.version} {', '.join(what)}, and rows of "
                f"both forms are not read as one. To go on, {_again()}"
            )

    def _put_keys(self, commit: TableCommit) -> PutKeys | None:
        """Return the keys that a version puts, if it may also delete; None if it deletes nothing.

        Without keys, raises `TableVersionUnfit` unless the version only adds rows.
        """
        if not (commit.from_feed or commit.deletes):
            return None
        if not self._keys and commit.deletes:
            raise self._changed(commit)
        found = PutKeys(self._keys)
        for file in commit.files:
            if file.change == DELETE:
                continue
            for rows in self._key_rows(commit, file):
                put = rows
                if not file.change:
                    kinds = rows.column(CHANGE_TYPE)
                    if not self._keys and not pc.all(pc.equal(kinds, INSERT)).as_py():
                        raise self._changed(commit)
                    put = rows.filter(pc.is_in(kinds, pa.array(PUTS, kinds.type)))
                if self._keys:
                    found.add(put)
                if len(found) > KEYS:
                    raise self._too_many(commit)
        return found.ended() if self._keys else None

    def _too_many(self, commit: TableCommit) -> TableVersionUnfit:
        return TableVersionUnfit(
            f"{self._store.title}: version {commit.version} ({commit.operation}) has more than "
            f"{KEYS:,} rows beside deletes, and their keys are kept in memory while it is read. "
            f"Write it in several commits; to go on, {_again()}"
        )

    def _key_rows(self, commit: TableCommit, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield what of a file says which rows it has, and what became of them."""
        with self._file(commit, file) as body:
            try:
                parquet = open_parquet(body)
                there = parquet.schema_arrow.names
                names = {*self._keys, *([] if file.change else [CHANGE_TYPE])}
                own = [name for name in there if name in names]
                for rows in parquet.iter_batches(columns=own or there[:1]):
                    yield partitioned(rows, file)
            except FileChanged as changed:
                raise self._gone(commit, file) from changed
            except (pa.ArrowException, OSError) as wrong:
                raise TableVersionUnfit(
                    f"{self._store.title}: `{file.path}` of version {commit.version} cannot be "
                    f"read: {wrong}"
                ) from wrong

    def _changed(self, commit: TableCommit) -> TableVersionUnfit:
        return TableVersionUnfit(
            f"{self._store.title}: version {commit.version} ({commit.operation}) changes or "
            "removes rows, and a dataset without keys cannot follow that: it would have rows "
            "twice, or rows that are gone. Give the dataset keys, and the table a change data "
            f"feed; {_again()}"
        )

    def _file(self, commit: TableCommit, file: DataFile) -> io.RawIOBase:
        body = self._store.body(file.path)
        if body is None:
            raise self._gone(commit, file)
        return body

    def _gone(self, commit: TableCommit, file: DataFile) -> TableVersionsGone:
        return TableVersionsGone(
            f"{self._store.title}: file `{file.path}` of version {commit.version} was deleted, as "
            f"by VACUUM, before it was read; the table is at version {self.newest}. To go on, "
            f"{_again()}"
        )

    def _rows(
        self, commit: TableCommit, file: DataFile, first: int
    ) -> Iterator[tuple[ArrowRows, int, int]]:
        """Yield the rows of a file from row `first` on, where they end, and their bytes."""
        title = f"{self._store.title}: version {commit.version}, `{file.path}`"
        with self._file(commit, file) as body:
            try:
                for piece in file_pieces(PARQUET, title, file.path, body, first):
                    for part in piece.parts:
                        assert isinstance(part, ArrowRows), "rows of Parquet are columns"
                        yield part, piece.end, piece.size_bytes
            except FileUnreadable as wrong:
                raise TableVersionUnfit(f"{title} cannot be read: {wrong}") from wrong
            except FileChanged as changed:
                raise self._gone(commit, file) from changed


def _again() -> str:
    return (
        "`source rewind --to earliest` reads the newest version as a whole; keys that were deleted "
        "in between stay"
    )


def origin_of(table_id: str) -> str:
    """Return what the positions of a table are positions in."""
    return f"delta/{table_id}"


def _changes(
    part: ArrowRows, commit: TableCommit, file: DataFile, put: PutKeys | None
) -> ArrowRows:
    """Return the changes among rows of a file, with the columns that say which they are."""
    rows = partitioned(part.rows, file)
    count = rows.num_rows
    if file.change:
        kinds = pa.repeat(pa.scalar(file.change), count)
    else:
        kinds = rows.column(CHANGE_TYPE).cast(pa.string())
        if not pc.all(pc.is_in(kinds, pa.array(CHANGES))).as_py():
            raise TableVersionUnfit(f"{part.title} has a `{CHANGE_TYPE}` that is not known")
    deletes = pc.is_in(kinds, pa.array([DELETE, PREIMAGE]))
    kept = np.ones(count, dtype=np.bool_)
    if put is not None:
        kept = ~(deletes.to_numpy(zero_copy_only=False) & put.has(rows))
    names = [name for name in rows.schema.names if name != CHANGE_TYPE]
    made = pa.scalar(commit.timestamp_us, pa.timestamp("us", "UTC"))
    whole = pa.RecordBatch.from_arrays(
        [
            *(rows.column(name) for name in names),
            pc.if_else(deletes, DELETE, kinds),
            pa.repeat(pa.scalar(commit.version, pa.int64()), count),
            pa.repeat(made, count),
        ],
        names=[*names, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP],
    )
    return ArrowRows(part.title, whole.filter(pa.array(kept)), part.places[kept])
