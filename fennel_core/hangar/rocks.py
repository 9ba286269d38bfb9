"""Hangar on RocksDB (rocksdict 0.3.29), one database per job partition.

Facts this file stands on, each pinned by the contract suite: re-opening ignores `options` for the
default column family unless it is named, so it is named; iterate bounds of ReadOptions are ignored
by `items`, so a scan reads ahead in chunks and cuts at its bound; an iterator of a snapshot shows
the latest data, so there are no views; an iterator keeps the database open, so none outlives its
scan; list- get is one call for many keys; errors are bare `Exception`s that only their text tells
apart; `items` takes a damaged block for the end of the data, so a scan that comes to an end asks a
second iterator whether it is one. The write-ahead log is not fsynced: a write survives the death of
the process; the death of the machine is what snapshots and the replaylog are for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
)
from rocksdict import WriteBatch as RocksBatch

from fennel_core.hangar.store import HangarClosed, HangarCorrupt, WriteBatch

BLOOM_BITS_PER_KEY = 10
WRITE_BUFFER_BYTES = 16 * 1024 * 1024
FILE_BYTES = 16 * 1024 * 1024
"""Of a table file: what a snapshot uploads as one object, and uploads again when one entry of it
changes; stores may hold it in memory.
"""
MAX_LOG_FILES = 1
_FIRST_CHUNK = 16
_LARGEST_CHUNK = 4096
_CURRENT = "CURRENT"
_DAMAGE = ("Corruption", "IO error: No such file or directory")
"""How RocksDB's texts begin when a file is not what was written, or is not there. A full disk or a
held lock begins otherwise.
"""


def options(cache: Cache) -> Options:
    """Options of one job partition's database; the block cache is shared by all of a process."""
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    opts = Options(raw_mode=True)
    opts.create_if_missing(True)
    opts.set_block_based_table_factory(table)
    opts.set_write_buffer_size(WRITE_BUFFER_BYTES)
    opts.set_target_file_size_base(FILE_BYTES)
    opts.set_compression_type(DBCompressionType.lz4())
    opts.set_keep_log_file_num(MAX_LOG_FILES)
    return opts


def _below(ascending: list[tuple[bytes, bytes]], stop: bytes) -> list[tuple[bytes, bytes]]:
    if ascending and ascending[-1][0] >= stop:
        return ascending[: bisect_left(ascending, stop, key=lambda entry: entry[0])]
    return ascending


def _above(
    descending: list[tuple[bytes, bytes]], start: bytes, stop: bytes
) -> list[tuple[bytes, bytes]]:
    if descending and descending[0][0] >= stop:
        descending = descending[1:]
    if descending and descending[-1][0] < start:
        ascending = descending[::-1]
        return ascending[bisect_left(ascending, start, key=lambda entry: entry[0]) :][::-1]
    return descending


def _tell_damage(failed: Exception) -> None:
    """Raise HangarDamaged if that is what a bare exception of RocksDB means."""
    if str(failed).startswith(_DAMAGE):
        raise HangarCorrupt(str(failed)) from failed


class RocksHangar:
    """The state of one job partition in the directory `path`; HangarDamaged when that holds
    something that is no whole store.
    """

    def __init__(self, path: Path, cache: Cache) -> None:
        if path.exists() and any(path.iterdir()) and not (path / _CURRENT).exists():
            raise HangarCorrupt(
                f"{path.name} holds files and no {_CURRENT}: opening it would make "
                "an empty store of it"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        opts = options(cache)
        try:
            self._db = Rdict(str(path), opts, column_families={"default": opts})
        except Exception as failed:
            _tell_damage(failed)
            raise

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        try:
            found: list[bytes | None] = self._db.get(list(keys))
        except Exception as failed:
            _tell_damage(failed)
            raise
        return found

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        if start >= stop:
            return []
        found: list[tuple[bytes, bytes]] = []
        chunk = min(_FIRST_CHUNK, limit) if limit is not None else _FIRST_CHUNK
        entries: Iterator[tuple[bytes, bytes]] = self._db.items(
            backwards=reverse, from_key=stop if reverse else start
        )
        while limit is None or len(found) < limit:
            # One more than asked for: walking backwards, `stop` itself may come first and is not
            # part of the range.
            read = list(islice(entries, chunk + 1))
            inside = _above(read, start, stop) if reverse else _below(read, stop)
            found += inside
            dropped_stop = bool(reverse and read and read[0][0] >= stop)
            if len(inside) < len(read) - dropped_stop:
                break
            if len(read) <= chunk:
                self._require_end(found[-1][0] if found else None, start, stop, reverse=reverse)
                break
            chunk = min(chunk * 8, _LARGEST_CHUNK)
        return found[:limit]

    def _require_end(self, last: bytes | None, start: bytes, stop: bytes, *, reverse: bool) -> None:
        """HangarDamaged unless there really is nothing behind `last`, the last key that an iterator
        gave.
        """
        second = self._db.iter()
        if reverse:
            second.seek_for_prev(last if last is not None else stop)
        else:
            second.seek(last if last is not None else start)
        if last is not None and second.valid():
            second.prev() if reverse else second.next()
        try:
            second.status()
        except Exception as failed:
            _tell_damage(failed)
            raise

    def write(self, batch: WriteBatch) -> None:
        assert not batch.deletes & batch.puts.keys(), "a key is put or deleted, never both"
        rocks = RocksBatch(raw_mode=True)
        for key, value in batch.puts.items():
            rocks.put(key, value)
        for key in batch.deletes:
            rocks.delete(key)
        try:
            self._db.write(rocks)
        except Exception as failed:
            _tell_damage(failed)
            raise

    def checkpoint(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db.flush()
            Checkpoint(self._db).create_checkpoint(str(target))
        except DbClosedError as closed:
            raise HangarClosed(
                f"the store was closed before its checkpoint {target.name}"
            ) from closed
        except Exception as failed:
            _tell_damage(failed)
            raise

    def close(self) -> None:
        self._db.close()
