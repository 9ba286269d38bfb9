"""The state store on RocksDB (rocksdict 0.3.29), one database per job partition.

The contract suite pins these properties of rocksdict, on which this module relies:

- Re-opening ignores `options` for the default column family unless it is named, so it is named.
- `items` ignores the iterate bounds of ReadOptions, so a scan reads ahead in chunks and cuts at its
  bound.
- An iterator of a snapshot shows the latest data, so there are no views.
- An iterator keeps the database open, so none outlives its scan.
- A write keeps the interpreter: 500,000 keys for seconds. A staged batch is written to table files
  instead, key by key on another thread, and all of them are ingested at once, which is atomic.
- A list `get` is one call for many keys.
- A write that would have to wait for compactions fails at once with `no_slowdown`. It would keep
  the interpreter while it waits, and so the lease of the whole slot.
- Errors are bare `Exception`s that differ only in their text.
- `items` takes a corrupt block for the end of the data, so at the end of a scan a second iterator
  checks that it is the end.

The write-ahead log is not fsynced: a write survives the death of the process. Snapshots and the
replaylog cover the death of the machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
    WriteOptions,
)
from rocksdict import WriteBatch as RocksBatch

from fennel_core.hangar.store import HangarBusy, HangarClosed, HangarCorrupt, WriteBatch, in_order

BLOOM_BITS_PER_KEY = 10
WRITE_BUFFER_BYTES = 16 * 1024 * 1024
FILE_BYTES = 16 * 1024 * 1024
"""Size of a table file. A snapshot uploads it as one object, and again when one of its entries
changes; object stores may hold it in memory.
"""
MAX_LOG_FILES = 1
STAGED_FILE_KEYS = 50_000
"""Keys of one file of a staged batch."""
_FIRST_CHUNK = 16
_LARGEST_CHUNK = 4096
_CURRENT = "CURRENT"
_STAGED = "staged"
"""Folder in a store's folder for the files of staged batches; it has one folder for each."""
_STALLS = ("rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate")
"""Properties that are not 0 while a flush would have to wait for compactions."""
_STALLED = "Result incomplete"
_CORRUPTION = ("Corruption", "IO error: No such file or directory")
"""Prefixes of RocksDB's error texts when a file is corrupt or missing. A full disk or a held lock
has another text.
"""


def options(cache: Cache) -> Options:
    """Return the options of one database; all databases of a process share the block cache."""
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


def _raise_if_corrupt(failed: Exception) -> None:
    """Raise HangarCorrupt if RocksDB's bare exception means corruption."""
    if str(failed).startswith(_CORRUPTION):
        raise HangarCorrupt(str(failed)) from failed


class RocksHangar:
    """The state of one job partition in the directory `path`.

    `closed` is called once, after the store has closed. Raises HangarCorrupt if the directory has
    files but not a complete store.
    """

    def __init__(self, path: Path, cache: Cache, closed: Callable[[], None] = lambda: None) -> None:
        if path.exists() and any(path.iterdir()) and not (path / _CURRENT).exists():
            raise HangarCorrupt(
                f"{path.name} has files but no {_CURRENT}: opening it would create an empty store"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        rmtree(path / _STAGED, ignore_errors=True)  # of an owner that died in between
        self._path, self._cache = path, cache
        self._staged: tuple[WriteBatch, Path] | None = None
        opts = options(cache)
        self._closed: Callable[[], None] | None = closed
        try:
            self._db = Rdict(str(path), opts, column_families={"default": opts})
            self._write_options = WriteOptions()
            self._write_options.no_slowdown = True
        except Exception as failed:
            _raise_if_corrupt(failed)
            raise

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        try:
            found: list[bytes | None] = self._db.get(list(keys))
        except Exception as failed:
            _raise_if_corrupt(failed)
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
            # One more than requested: in reverse, `stop` itself may come first and is not part of
            # the range.
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
        """Raise HangarCorrupt if the iterator ended early; `last` is the last key it returned."""
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
            _raise_if_corrupt(failed)
            raise

    def stage(self, batch: WriteBatch) -> None:
        (self._path / _STAGED).mkdir(exist_ok=True)
        folder = Path(mkdtemp(dir=self._path / _STAGED))
        keys = list(in_order([*batch.puts, *batch.deletes]))
        for number, first in enumerate(range(0, len(keys), STAGED_FILE_KEYS)):
            file = SstFileWriter(options=options(self._cache))
            file.open(str(folder / f"{number:06d}.sst"))
            for key in keys[first : first + STAGED_FILE_KEYS]:
                if key in batch.deletes:
                    del file[key]
                else:
                    file[key] = batch.puts[key]
            file.finish()
        self._staged = (batch, folder)

    def write(self, batch: WriteBatch) -> None:
        assert not batch.deletes & batch.puts.keys(), "a key is put or deleted, never both"
        if self._staged is not None and self._staged[0] is batch:
            self._ingest(self._staged[1])
            self._staged = None
            return
        rocks = RocksBatch(raw_mode=True)
        for key, value in batch.puts.items():
            rocks.put(key, value)
        for key in batch.deletes:
            rocks.delete(key)
        try:
            self._db.write(rocks, self._write_options)
        except Exception as failed:
            if str(failed).startswith(_STALLED):
                raise HangarBusy(str(failed)) from failed
            _raise_if_corrupt(failed)
            raise

    def _ingest(self, folder: Path) -> None:
        """Add the files of a staged batch to the store, all or none."""
        if any(self._db.property_int_value(name) for name in _STALLS):
            raise HangarBusy("a flush would have to wait for compactions")
        moved = IngestExternalFileOptions()
        moved.set_move_files(True)
        try:
            self._db.ingest_external_file([str(p) for p in sorted(folder.iterdir())], moved)
        except Exception as failed:
            _raise_if_corrupt(failed)
            raise
        rmtree(folder, ignore_errors=True)

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
            _raise_if_corrupt(failed)
            raise

    def close(self) -> None:
        self._db.close()
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()
