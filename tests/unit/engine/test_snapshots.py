"""The state that a job partition starts from: local state, a snapshot or the log, never a mix."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest
from rocksdict import Cache

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.object_store import MemoryObjectStore
from fennel_core.engine import state_progress
from fennel_core.engine.errors import RebuildRequested, ReplayMismatch, StateDiscarded
from fennel_core.engine.runner_factory import RocksStores
from fennel_core.engine.snapshots import RebuildExhausted, Snapshots
from fennel_core.engine.state_folders import HeldFolder, StateFolders
from fennel_core.engine.state_progress import STATE_FORMAT, StateProgress
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.hangar.store import Hangar, HangarCorrupt
from fennel_core.operators.step import Outcome
from fennel_core.snapshots import transfer
from fennel_core.snapshots.manifest import StatePosition
from fennel_core.snapshots.memory import MemoryPointers
from fennel_core.snapshots.transfer import SnapshotContext, SnapshotSource, SnapshotTaken
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName
from tests.support.polling import eventually

T = TypeVar("T")
JOB, PART = JobId("w.job.abc.1"), PartitionIndex(2)
PLACE = (JOB, PART)
FIRST = Epoch(1)
IN = TopicName("in")


class SameThread:
    async def run(self, work: Callable[[], T]) -> T:
        return work()


@dataclass
class Slot:
    """A machine's folder of local state, and slots that come and go on it."""

    root: Path
    objects: MemoryObjectStore = field(
        default_factory=lambda: MemoryObjectStore(lambda: datetime.now(UTC))
    )
    pointers: MemoryPointers = field(
        default_factory=lambda: MemoryPointers(lambda: datetime.now(UTC), {PLACE: Epoch(1)})
    )
    epoch: Epoch = FIRST

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.stores, self.folders = RocksStores(1 << 20), StateFolders(self.root)
        self.snapshots = Snapshots(
            SnapshotContext(self.objects, self.pointers),
            self.folders,
            SameThread(),
            lambda: "unique",
        )

    @property
    def folder(self) -> Path:
        return self.folders.state(PLACE, self.epoch)

    async def open(self) -> Hangar:
        return await self.snapshots.open(JOB, PART, self.epoch, self.stores.open)

    def local(self) -> Hangar:
        """Open the local state, or an empty one if there is none."""
        held = self.folders.take_over(PLACE, self.epoch)
        return self.stores.open(held or self.folders.create(PLACE, self.epoch))

    async def found(self) -> int:
        """The iteration of the state that a runner would start from; every entry of it is there and
        of no other state.
        """
        hangar = await self.open()
        try:
            known = state_progress.load(hangar)
            entries = hangar.scan(b"k", b"l")
            assert entries == [
                (b"k%03d" % n, b"%d" % known.iteration)
                for n in range(100 if known.iteration else 0)
            ]
            return known.iteration
        finally:
            hangar.close()

    def write(self, iteration: int) -> None:
        """Local state as iteration `iteration` leaves it: every entry carries its number."""
        hangar = self.local()
        after = StateProgress(iteration, Offset(iteration), {IN: Offset(iteration)}, 0, Epoch(1))
        hangar.write(
            state_progress.write_batch(
                after, Outcome({b"k%03d" % n: b"%d" % iteration for n in range(100)})
            )
        )
        hangar.close()

    async def snapshot(self, iteration: int) -> str:
        """Bring local state to `iteration` and copy it; the manifest's key."""
        made = await self.copied(iteration)
        assert isinstance(made, SnapshotTaken)
        return made.manifest

    async def copied(self, iteration: int, distrusted: tuple[int, ...] = ()) -> object:
        self.write(iteration)
        copy = self.root.parent / f"copy-{iteration}-{os.urandom(4).hex()}"
        hangar = self.local()
        hangar.checkpoint(copy)
        hangar.close()

        async def checkpoint() -> Path:
            return copy

        position = StatePosition(iteration, Offset(iteration), {IN: Offset(iteration)})
        subject = SnapshotSource(JOB, PART, Epoch(1), STATE_FORMAT, position)
        return await transfer.take_snapshot(
            SnapshotContext(self.objects, self.pointers),
            subject,
            checkpoint,
            copy.name,
            None,
            distrusted,
        )

    async def spoil(self, manifest: str) -> None:
        await self.objects.delete(
            [
                key
                for key in self.objects.contents
                if key.startswith(manifest.rpartition("/")[0]) and key != manifest
            ]
        )

    def quarantined(self) -> int:
        """Return the iteration of the quarantined state."""
        kept = RocksHangar(self.folders.quarantined(PLACE), Cache(1 << 20))
        try:
            return state_progress.load(kept).iteration
        finally:
            kept.close()


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(tmp_path / "state")


async def test_local_state_as_recent_as_the_newest_snapshot_is_used(slot: Slot) -> None:
    await slot.snapshot(5)
    assert await slot.found() == 5
    slot.write(8)
    assert await slot.found() == 8


async def test_stale_local_state_is_quarantined_for_a_newer_snapshot(
    slot: Slot, tmp_path: Path
) -> None:
    slot.write(3)
    shutil.copytree(slot.folder, tmp_path / "long ago")
    await slot.snapshot(9)
    shutil.rmtree(slot.folder)
    shutil.copytree(tmp_path / "long ago", slot.folder)
    assert await slot.found() == 9
    assert slot.quarantined() == 3


async def test_local_state_is_preferred_to_older_snapshots_if_the_newest_is_corrupt(
    slot: Slot, tmp_path: Path
) -> None:
    await slot.snapshot(2)
    slot.write(3)
    shutil.copytree(slot.folder, tmp_path / "long ago")
    newest = await slot.snapshot(9)
    shutil.rmtree(slot.folder)
    shutil.copytree(tmp_path / "long ago", slot.folder)
    await slot.spoil(newest)
    assert await slot.found() == 3


@pytest.mark.parametrize("lost", ["CURRENT", "MANIFEST-*", "*.sst"])
async def test_corrupt_local_state_is_quarantined_and_the_snapshot_used(
    slot: Slot, lost: str
) -> None:
    await slot.snapshot(5)
    hangar = slot.local()
    hangar.checkpoint(slot.root.parent / "flushed")
    hangar.close()
    for path in slot.folder.glob(lost):
        path.unlink()
    assert await slot.found() == 5
    assert (slot.root / JOB / f"quarantined-{PART}").exists()
    assert await slot.found() == 5, "what was restored is local state like any other"


async def test_state_of_another_format_is_quarantined_and_the_snapshot_used(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slot.snapshot(5)
    with monkeypatch.context() as patched:
        patched.setattr("fennel_core.engine.state_progress.STATE_FORMAT", 99)
        slot.write(7)
    assert await slot.found() == 5


async def test_corruption_found_later_restores_the_same_snapshot(slot: Slot) -> None:
    await slot.snapshot(5)
    for why in (HangarCorrupt("a block"), StateDiscarded("a reader met a damaged block")):
        slot.write(7)
        slot.snapshots.discard_state(JOB, PART, why)
        assert await slot.found() == 5
        assert slot.quarantined() == 7


async def test_corruption_that_returns_with_a_snapshot_restores_the_one_before(slot: Slot) -> None:
    await slot.snapshot(5)
    await slot.snapshot(6)
    seen = []
    for _ in range(4):
        slot.snapshots.discard_state(JOB, PART, HangarCorrupt("a block"))
        seen.append(await slot.found())
    assert seen == [6, 6, 5, 5], "the local state; the newest, twice; then what was before it"


async def test_a_snapshot_of_corrupt_files_is_skipped_for_the_one_before(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slot.snapshot(5)
    with monkeypatch.context() as patched:
        patched.setattr("fennel_core.engine.state_progress.STATE_FORMAT", 99)
        await slot.snapshot(7)
    shutil.rmtree(slot.folder)
    assert await slot.found() == 5
    assert await slot.found() == 5


async def test_local_state_is_put_back_if_the_newer_snapshot_cannot_be_opened(
    slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slot.snapshot(2)
    slot.write(3)
    shutil.copytree(slot.folder, tmp_path / "local")
    with monkeypatch.context() as patched:
        patched.setattr("fennel_core.engine.state_progress.STATE_FORMAT", 99)
        await slot.snapshot(7)
    shutil.rmtree(slot.folder)
    shutil.copytree(tmp_path / "local", slot.folder)
    assert await slot.found() == 3


async def test_a_failed_replay_tries_older_snapshots_then_the_log_alone_then_gives_up(
    slot: Slot,
) -> None:
    for iteration in (2, 4, 6):
        await slot.snapshot(iteration)
    slot.write(8)
    seen = []
    for _ in range(5):
        seen.append(await slot.found())
        slot.snapshots.discard_state(JOB, PART, ReplayMismatch("other mutations"))
    assert seen == [8, 6, 4, 2, 0]
    with pytest.raises(RebuildExhausted):
        await slot.open()
    slot.restart()
    assert await slot.found() == 6, "another process, perhaps of another version, tries again"


async def test_a_requested_rebuild_discards_local_state_and_retries_rejected_snapshots(
    slot: Slot,
) -> None:
    await slot.snapshot(4)
    await slot.snapshot(6)
    slot.snapshots.discard_state(JOB, PART, RebuildRequested("a person asked"))
    assert await slot.found() == 6
    assert slot.quarantined() == 6
    slot.snapshots.discard_state(JOB, PART, ReplayMismatch("other mutations"))
    assert await slot.found() == 4
    slot.snapshots.discard_state(JOB, PART, RebuildRequested("a person asked"))
    assert await slot.found() == 6
    assert slot.snapshots.origin(JOB, PART).startswith("snapshot #")


async def test_a_rebuild_can_exclude_snapshots_and_the_next_snapshot_is_a_full_copy(
    slot: Slot,
) -> None:
    for iteration in (2, 4, 6):
        await slot.snapshot(iteration)
    newest, middle, _ = await slot.pointers.of(JOB, PART)
    slot.snapshots.discard_state(JOB, PART, RebuildRequested("a person asked", middle.number))
    assert await slot.found() == 2
    slot.snapshots.discard_state(JOB, PART, RebuildRequested("a person asked", 1))
    assert await slot.found() == 0
    assert slot.snapshots.origin(JOB, PART) == "the start of its log"
    made = await slot.copied(6, distrusted=(newest.number,))
    assert isinstance(made, SnapshotTaken), (
        "although the newest snapshot has the position of this state"
    )
    assert made.uploaded_files == made.files
    slot.restart()
    assert await slot.found() == 6, "what is newer than the order is not meant by it"


async def test_a_task_cancelled_during_quarantine_leaves_the_state_to_be_discarded(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slot.snapshot(5)
    slot.write(7)
    slot.snapshots.discard_state(JOB, PART, RebuildRequested("a person asked"))

    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(slot.snapshots, "_quarantine", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await slot.open()
    assert await slot.found() == 5


async def test_an_unreachable_bucket_leaves_local_state_usable(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slot.snapshot(5)

    async def away(key: str) -> bytes:
        raise SystemUnavailable("S3: no answer")

    with monkeypatch.context() as patched:
        patched.setattr(slot.objects, "get", away)
        assert await slot.found() == 5
        shutil.rmtree(slot.folder)
        with pytest.raises(SystemUnavailable):
            await slot.open()
    assert await slot.found() == 5


async def test_a_partial_restore_is_not_taken_for_state(slot: Slot) -> None:
    await slot.snapshot(5)
    shutil.rmtree(slot.folder)
    half = slot.root / JOB / f"restoring-{PART}-1"
    half.mkdir()
    (half / "000009.sst").write_bytes(b"half of it")
    assert await slot.found() == 5
    assert not half.exists()


async def test_a_cancelled_open_leaves_the_store_free_for_the_next_owner(
    slot: Slot,
) -> None:
    slot.write(3)
    going, go_on = asyncio.Event(), asyncio.Event()

    class Slow(SameThread):
        async def run(self, work: Callable[[], T]) -> T:
            going.set()
            await go_on.wait()
            return work()

    kept: list[Hangar] = []

    def opener(held: HeldFolder) -> Hangar:
        kept.append(slot.stores.open(held))  # as a reference cycle would keep it
        return kept[-1]

    slow = Snapshots(
        SnapshotContext(slot.objects, slot.pointers), slot.folders, Slow(), lambda: "unique"
    )
    task = asyncio.create_task(slow.open(JOB, PART, Epoch(1), opener))
    await going.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    go_on.set()
    await eventually(lambda: kept)
    await asyncio.sleep(0.01)  # time for the cancelled call to close what it opened
    assert await slot.found() == 3


OWNER = """
import sys, time
from pathlib import Path
from fennel_core.engine.runner_factory import RocksStores
from fennel_core.engine.state_folders import StateFolders
from fennel_core.vocab.ids import Epoch, JobId, PartitionIndex
folders = StateFolders(Path(sys.argv[1]))
held = folders.take_over((JobId(sys.argv[2]), PartitionIndex(int(sys.argv[3]))), Epoch(1))
store = RocksStores(1 << 20).open(held)
print("open", flush=True)
sys.stdin.readline()
store.close()
print("closed", flush=True)
"""


@contextmanager
def frozen_owner(slot: Slot) -> Iterator[Callable[[], None]]:
    """A process of the first epoch that has its store open and is frozen; yields its wake-up."""
    command = [sys.executable, "-c", OWNER, str(slot.root), JOB, str(PART)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as owner:  # noqa: S603  # a program of this test, and no shell
        assert owner.stdout is not None

        def wakes_and_closes() -> None:
            os.kill(owner.pid, signal.SIGCONT)
            assert owner.communicate("\n")[0] == "closed\n"

        try:
            assert owner.stdout.readline() == "open\n"
            os.kill(owner.pid, signal.SIGSTOP)
            yield wakes_and_closes
        finally:
            owner.kill()


async def test_a_new_owner_does_not_wait_for_a_frozen_one_on_the_same_machine(slot: Slot) -> None:
    await slot.snapshot(5)
    slot.write(8)
    first = slot.folder
    with frozen_owner(slot) as wakes_and_closes:
        slot.restart()  # another process of this machine
        slot.epoch = Epoch(2)
        assert await slot.found() == 5, "the snapshot: what the frozen process holds is not read"
        slot.write(9)
        assert await slot.found() == 9
        assert not slot.folders.delete_free(first)
        wakes_and_closes()
    slot.epoch = Epoch(3)
    assert await slot.found() == 9, "the state of the newer owner, although the other one is free"
    assert slot.folders.superseded({PLACE: slot.epoch}) == [first]
    assert slot.folders.delete_free(first)
    assert await slot.found() == 9


async def test_without_a_snapshot_a_frozen_owners_successor_starts_from_the_log(slot: Slot) -> None:
    slot.write(8)
    with frozen_owner(slot) as wakes_and_closes:
        slot.restart()
        slot.epoch = Epoch(2)
        assert await slot.found() == 0
        assert slot.snapshots.origin(JOB, PART) == "the start of its log"
        wakes_and_closes()


async def test_the_state_of_a_dead_owner_is_taken_over_as_it_is(slot: Slot) -> None:
    slot.write(8)
    with frozen_owner(slot):
        pass  # it is killed
    slot.restart()
    slot.epoch = Epoch(2)
    assert await slot.found() == 8
    assert slot.snapshots.origin(JOB, PART) == "its local state"


async def test_discarded_state_is_not_replaced_by_older_local_state(slot: Slot) -> None:
    slot.write(8)
    with frozen_owner(slot):
        slot.restart()
        slot.epoch = Epoch(2)
        assert await slot.found() == 0
    slot.snapshots.discard_state(JOB, PART, RebuildRequested("a person asked"))
    assert await slot.found() == 0, "the first owner's state is free now, and stays unused"
    assert slot.snapshots.origin(JOB, PART) == "the start of its log"
