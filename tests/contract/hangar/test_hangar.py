"""The state store, in memory and on RocksDB: what runners and lookups rely on."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import Cache, Options

from fennel_core.hangar import rocks
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.rocks import FILE_BYTES, RocksHangar
from fennel_core.hangar.store import Hangar, HangarBusy, HangarClosed, HangarCorrupt, WriteBatch

Open = Callable[[Path], Hangar]


def open_memory(path: Path) -> Hangar:
    return MemoryHangar.restore(path) if path.exists() else MemoryHangar()


def open_rocks(path: Path) -> Hangar:
    return RocksHangar(path, Cache(8 * 1024 * 1024))


@pytest.fixture(params=[open_memory, open_rocks], ids=["memory", "rocks"])
def opener(request: pytest.FixtureRequest) -> Open:
    return request.param


@pytest.fixture
def hangar(opener: Open, tmp_path: Path) -> Iterator[Hangar]:
    store = opener(tmp_path / "state")
    yield store
    store.close()


def fill(store: Hangar, count: int) -> None:
    store.write(WriteBatch({b"k%05d" % i: b"v%d" % i for i in range(count)}))


def test_a_batch_puts_and_deletes_at_once(hangar: Hangar) -> None:
    hangar.write(WriteBatch({b"a": b"1", b"b": b"2"}))
    hangar.write(WriteBatch({b"c": b"3"}, frozenset([b"a"])))
    assert hangar.get_many([b"a", b"b", b"c", b"d"]) == [None, b"2", b"3", None]


def test_getting_no_keys_gives_no_values(hangar: Hangar) -> None:
    assert hangar.get_many([]) == []


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 18, 200, 5000])
def test_scans_are_half_open_in_both_directions_whatever_the_chunking(
    hangar: Hangar, count: int
) -> None:
    fill(hangar, count + 10)
    start, stop = b"k%05d" % 3, b"k%05d" % (3 + count)
    expected = [(b"k%05d" % i, b"v%d" % i) for i in range(3, 3 + count)]
    assert hangar.scan(start, stop) == expected
    assert hangar.scan(start, stop, reverse=True) == expected[::-1]


@pytest.mark.parametrize("limit", [0, 1, 2, 16, 17, 100, 1000])
def test_a_scan_stops_at_its_limit(hangar: Hangar, limit: int) -> None:
    fill(hangar, 300)
    forward = hangar.scan(b"k", b"l", limit=limit)
    backward = hangar.scan(b"k", b"l", reverse=True, limit=limit)
    assert [k for k, _ in forward] == [b"k%05d" % i for i in range(300)][:limit]
    assert [k for k, _ in backward] == [b"k%05d" % i for i in range(300)][::-1][:limit]


def test_a_checkpoint_opens_as_the_state_it_was_taken_from(
    hangar: Hangar, opener: Open, tmp_path: Path
) -> None:
    fill(hangar, 50)
    hangar.checkpoint(tmp_path / "checkpoint")
    hangar.write(WriteBatch({b"later": b"x"}))
    copy = opener(tmp_path / "checkpoint")
    assert copy.scan(b"", b"z") == [(b"k%05d" % i, b"v%d" % i) for i in range(50)]
    copy.close()


def test_a_checkpoint_of_a_closed_store_is_an_error(opener: Open, tmp_path: Path) -> None:
    store = opener(tmp_path / "state")
    store.close()
    with pytest.raises(HangarClosed):
        store.checkpoint(tmp_path / "checkpoint")


def test_reopening_rocks_finds_everything_and_keeps_its_cache(tmp_path: Path) -> None:
    cache = Cache(8 * 1024 * 1024)
    store = RocksHangar(tmp_path / "state", cache)
    fill(store, 1000)
    store.checkpoint(tmp_path / "flushed")
    store.close()
    again = RocksHangar(tmp_path / "state", cache)
    before = cache.get_usage()
    assert len(again.scan(b"k", b"l")) == 1000
    assert cache.get_usage() > before, (
        "reads of a reopened database must go through the shared cache"
    )
    again.close()


def spoil(path: Path) -> None:
    body = bytearray(path.read_bytes())
    for place in range(len(body) // 2, len(body) // 2 + 64):
        body[place] ^= 0xFF
    path.write_bytes(body)


def data_file(state: Path) -> Path:
    return max(state.glob("*.sst"), key=lambda file: file.stat().st_size)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_corrupt_block_is_not_taken_for_the_end_of_the_data(
    tmp_path: Path, reverse: bool
) -> None:
    store = open_rocks(tmp_path / "state")
    fill(store, 20_000)
    store.checkpoint(tmp_path / "flushed")
    store.close()
    spoil(data_file(tmp_path / "state"))
    store = open_rocks(tmp_path / "state")
    with pytest.raises(HangarCorrupt):
        store.scan(b"k", b"l", reverse=reverse)
    with pytest.raises(HangarCorrupt):
        store.get_many([b"k%05d" % i for i in range(20_000)])
    store.close()


@pytest.mark.parametrize("lost", ["*.sst", "CURRENT", "MANIFEST-*"])
def test_a_store_with_a_missing_file_is_not_opened(tmp_path: Path, lost: str) -> None:
    store = open_rocks(tmp_path / "state")
    fill(store, 1000)
    store.checkpoint(tmp_path / "flushed")
    store.close()
    for path in (tmp_path / "state").glob(lost):
        path.unlink()
    with pytest.raises(HangarCorrupt):
        open_rocks(tmp_path / "state")


def test_a_store_locked_by_another_process_is_not_reported_as_corrupt(tmp_path: Path) -> None:
    store = open_rocks(tmp_path / "state")
    with pytest.raises(Exception, match="lock") as refused:
        open_rocks(tmp_path / "state")
    assert not isinstance(refused.value, HangarCorrupt)
    store.close()


operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete"]), st.binary(min_size=1, max_size=3), st.binary(max_size=3)
    ),
    max_size=30,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    writes=st.lists(operations, max_size=4),
    start=st.binary(max_size=2),
    stop=st.binary(max_size=2),
    reverse=st.booleans(),
)
def test_rocks_equals_the_in_memory_implementation(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[list[tuple[str, bytes, bytes]]],
    start: bytes,
    stop: bytes,
    reverse: bool,
) -> None:
    twin, rocks = MemoryHangar(), open_rocks(tmp_path_factory.mktemp("rocks") / "state")
    for operations_of_one_batch in writes:
        final = {key: (kind, value) for kind, key, value in operations_of_one_batch}
        puts = {key: value for key, (kind, value) in final.items() if kind == "put"}
        batch = WriteBatch(puts, frozenset(final.keys() - puts.keys()))
        twin.write(batch)
        rocks.write(batch)
    assert rocks.scan(start, stop, reverse=reverse) == twin.scan(start, stop, reverse=reverse)
    rocks.close()


def test_no_file_of_a_large_state_is_much_larger_than_the_target_size(
    tmp_path: Path,
) -> None:
    store = open_rocks(tmp_path / "state")
    for _ in range(16):
        store.write(WriteBatch({os.urandom(8): os.urandom(10_000) for _ in range(500)}))
    store._db.compact_range(None, None)  # type: ignore[attr-defined]  # what happens by itself in time
    store.checkpoint(tmp_path / "copy")
    store.close()
    sizes = [path.stat().st_size for path in (tmp_path / "copy").glob("*.sst")]
    assert sum(sizes) > 4 * FILE_BYTES
    assert max(sizes) < 1.2 * FILE_BYTES


def test_a_write_that_would_wait_for_the_disk_fails_at_once_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = rocks.options

    def soon_busy(cache: Cache) -> Options:
        made = options(cache)
        made.set_write_buffer_size(64 * 1024)
        made.set_level_zero_file_num_compaction_trigger(2)
        made.set_level_zero_slowdown_writes_trigger(2)
        made.set_level_zero_stop_writes_trigger(2)
        return made

    monkeypatch.setattr(rocks, "options", soon_busy)
    store = open_rocks(tmp_path / "state")

    def is_busy(key: bytes) -> bool:
        filling = {os.urandom(16): os.urandom(4_000) for _ in range(4)}
        try:
            store.write(WriteBatch({key: b"", **filling}))
        except HangarBusy:
            return True
        return False

    refused = next(key for key in (b"key%d" % n for n in range(10_000)) if is_busy(key))
    assert store.get_many([refused]) == [None]
    while is_busy(refused):
        time.sleep(0.001)  # a compaction runs in RocksDB's own thread
    assert store.get_many([refused]) == [b""]
    store.close()


def test_a_staged_batch_is_visible_when_it_is_written_and_stays(
    hangar: Hangar, opener: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks, "STAGED_FILE_KEYS", 7)
    fill(hangar, 20)
    changed = {b"k%05d" % i: b"new%d" % i for i in range(10, 40)}
    batch = WriteBatch({**changed, b"\xffprogress": b"1"}, frozenset([b"k00003", b"unknown"]))
    hangar.stage(batch)
    assert hangar.get_many([b"k00003", b"k00010", b"k00030"]) == [b"v3", b"v10", None]
    hangar.write(batch)
    expected = {b"k%05d" % i: b"v%d" % i for i in range(20) if i != 3} | changed
    assert dict(hangar.scan(b"", b"\xff")) == expected
    hangar.write(WriteBatch({b"k00011": b"later"}))
    assert hangar.get_many([b"k00010", b"k00011", b"\xffprogress"]) == [b"new10", b"later", b"1"]
    hangar.checkpoint(tmp_path / "checkpoint")
    restored = opener(tmp_path / "checkpoint")
    assert dict(restored.scan(b"", b"\xff")) == expected | {b"k00011": b"later"}
    restored.close()


def test_a_batch_that_was_staged_and_not_written_leaves_nothing(
    opener: Open, tmp_path: Path
) -> None:
    path = tmp_path / "state"
    store = opener(path)
    fill(store, 3)
    store.stage(WriteBatch({b"lost": b"1"}))
    store.write(WriteBatch({b"other": b"2"}))
    assert store.get_many([b"lost", b"other"]) == [None, b"2"]
    store.close()
    if isinstance(store, RocksHangar):
        assert (path / "staged").exists()
        reopened = opener(path)
        assert reopened.get_many([b"lost", b"other"]) == [None, b"2"]
        assert not (path / "staged").exists()
        reopened.close()


def test_a_staged_batch_waits_as_long_as_a_flush_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksHangar(tmp_path / "state", Cache(8 * 1024 * 1024))
    batch = WriteBatch({b"a": b"1"})
    store.stage(batch)
    with monkeypatch.context() as patch:
        patch.setattr(
            rocks, "_STALLS", ("rocksdb.num-immutable-mem-table", "rocksdb.block-cache-capacity")
        )
        with pytest.raises(HangarBusy):
            store.write(batch)
    assert store.get_many([b"a"]) == [None]
    store.write(batch)
    assert store.get_many([b"a"]) == [b"1"]
    store.close()
