"""Scratch state: in memory up to a limit, on disk beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import HangarBusy, WriteBatch
from fennel_core.offline import scratch
from fennel_core.offline.scratch import ScratchStore, open_spill


def test_entries_beyond_the_limit_are_read_from_disk_and_deleted_with_the_store(
    tmp_path: Path,
) -> None:
    store = ScratchStore(lambda: open_spill(tmp_path), limit_bytes=100)
    keys = [b"k%03d" % n for n in range(50)]
    for key in keys:
        store.put({key: b"old" + key})
    assert [path.name.startswith("scratch-") for path in tmp_path.iterdir()] == [True]

    store.put({b"k000": b"new"})

    assert store.get_many([*keys, b"none"]) == [b"new", *(b"old" + key for key in keys[1:]), None]
    assert store.scan(b"k000", b"k002") == [(b"k000", b"new"), (b"k001", b"oldk001")]
    assert store.scan(b"", b"z", reverse=True, limit=1) == [(b"k049", b"oldk049")]
    store.clear()
    assert list(tmp_path.iterdir()) == []
    assert store.get_many(keys) == [None] * 50


def test_replaced_entries_count_once() -> None:
    opened: list[MemoryHangar] = []

    def opener() -> MemoryHangar:
        opened.append(MemoryHangar())
        return opened[-1]

    store = ScratchStore(opener, limit_bytes=100)
    for n in range(100):
        store.put({b"key": b"%90d" % n})
    assert not opened
    store.put({b"another key": b""})
    assert len(opened) == 1


class BusyHangar(MemoryHangar):
    """A store that is busy for its first writes."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def write(self, batch: WriteBatch) -> None:
        if self.left:
            self.left -= 1
            raise HangarBusy("busy")
        super().write(batch)


def test_a_busy_store_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "BUSY_ATTEMPTS", 4)
    pauses: list[float] = []
    store = ScratchStore(lambda: BusyHangar(3), limit_bytes=1, sleep=pauses.append)
    store.put({b"k": b"value"})
    assert store.get_many([b"k"]) == [b"value"]
    assert len(pauses) == 3

    hopeless = ScratchStore(lambda: BusyHangar(4), limit_bytes=1, sleep=pauses.append)
    with pytest.raises(HangarBusy):
        hopeless.put({b"k": b"value"})
