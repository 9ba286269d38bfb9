"""Taking, restoring and pruning snapshots, over all implementations of the stores."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fennel_core.connections.garbage import DeletionLimit, DeletionRefused, MemoryGarbageMarks
from fennel_core.connections.object_store import ObjectStore
from fennel_core.snapshots.errors import SnapshotCorrupt
from fennel_core.snapshots.manifest import StatePosition
from fennel_core.snapshots.pruning import PrunedSnapshots, prune_snapshots
from fennel_core.snapshots.transfer import (
    OwnershipLost,
    RestoredSnapshot,
    SnapshotContext,
    SnapshotSource,
    SnapshotTaken,
    SnapshotUnchanged,
    read_manifest,
    restore_snapshot,
    take_snapshot,
)
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName
from tests.contract.snapshots.conftest import Rows

NUMBERS = itertools.count()
LIMIT = DeletionLimit(20, 20)
NOTHING = PrunedSnapshots(0, 0)
JOB, PART = JobId("w.job.abc.1"), PartitionIndex(2)
PARTITION = (JOB, PART)


def beginning() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_pointer_is_added_only_by_the_current_owner(rows: Rows) -> None:
    assert not await rows.pointers.add(JOB, PART, Epoch(1), "m0", "x"), (
        "the job partition does not exist"
    )
    await rows.own(PARTITION, 3)
    assert not await rows.pointers.add(JOB, PART, Epoch(2), "m1", "x"), "an earlier owner"
    assert not await rows.pointers.add(JOB, PART, Epoch(4), "m2", "x"), (
        "an owner that is not one yet"
    )
    assert await rows.pointers.add(JOB, PART, Epoch(3), "m3", "x")
    assert [(p.manifest, p.epoch) for p in await rows.pointers.of(JOB, PART)] == [("m3", 3)]


async def test_pointers_of_a_partition_are_listed_newest_first(rows: Rows) -> None:
    other = PartitionIndex(0)
    await rows.own(PARTITION, 1)
    await rows.own((JOB, other), 1)
    for part, key in ((PART, "a"), (other, "b"), (PART, "c"), (PART, "d")):
        assert await rows.pointers.add(JOB, part, Epoch(1), key, "x")
    found = await rows.pointers.of(JOB, PART)
    assert [p.manifest for p in found] == ["d", "c", "a"]
    assert await rows.pointers.partitions() == [(JOB, other), PARTITION]
    assert await rows.pointers.all() == {
        PARTITION: found,
        (JOB, other): await rows.pointers.of(JOB, other),
    }
    await rows.pointers.remove(found[1:])
    assert [p.manifest for p in await rows.pointers.of(JOB, PART)] == ["d"]


async def test_pointers_outlive_their_job_and_age_by_the_database_clock(rows: Rows) -> None:
    await rows.own(PARTITION, 1)
    before = await rows.pointers.now()
    await rows.pointers.add(JOB, PART, Epoch(1), "a", "x")
    assert await rows.pointers.jobs() == {JOB}
    await rows.gone(JOB)
    assert await rows.pointers.jobs() == set()
    (pointer,) = await rows.pointers.of(JOB, PART)
    assert before <= pointer.taken_at <= await rows.pointers.now()


def source(iteration: int, epoch: int = 1) -> SnapshotSource:
    return SnapshotSource(
        JOB,
        PART,
        Epoch(epoch),
        1,
        StatePosition(iteration, Offset(iteration), {TopicName("in"): Offset(iteration)}),
    )


async def snapshot(
    context: SnapshotContext,
    folder: Path,
    contents: dict[str, bytes],
    iteration: int,
    epoch: int = 1,
) -> SnapshotTaken | SnapshotUnchanged | OwnershipLost:
    """Take a snapshot of `contents` as the state after `iteration`."""
    unique = f"n{next(NUMBERS)}"

    async def checkpoint() -> Path:
        made = folder / unique
        made.mkdir()
        for name, body in contents.items():
            (made / name).write_bytes(body)
        return made

    return await take_snapshot(context, source(iteration, epoch), checkpoint, unique)


async def back(
    context: SnapshotContext, folder: Path
) -> tuple[RestoredSnapshot | None, dict[str, bytes]]:
    restored = await restore_snapshot(context, await context.pointers.of(JOB, PART), 1, folder)
    return restored, {
        path.name: path.read_bytes() for path in folder.iterdir()
    } if folder.exists() else {}


async def test_only_new_contents_are_uploaded_and_all_are_restored(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    context = SnapshotContext(objects, rows.pointers)
    await rows.own(PARTITION, 1)
    first = await snapshot(context, tmp_path, {"1.sst": b"one", "CURRENT": b"a"}, 1)
    assert isinstance(first, SnapshotTaken)
    assert (first.files, first.uploaded_files) == (2, 2)
    second = await snapshot(
        context, tmp_path, {"1.sst": b"one", "2.sst": b"two!", "CURRENT": b"b"}, 2
    )
    assert isinstance(second, SnapshotTaken)
    assert (second.files, second.uploaded_files, second.uploaded_bytes) == (3, 2, 5)
    restored, contents = await back(context, tmp_path / "back")
    assert contents == {"1.sst": b"one", "2.sst": b"two!", "CURRENT": b"b"}
    assert restored is not None
    assert (restored.pointer.manifest, restored.manifest.position.iteration) == (second.manifest, 2)
    assert await snapshot(
        context, tmp_path, {"never": b"looked at"}, 2, epoch=2
    ) == SnapshotUnchanged(second.manifest)


async def test_a_corrupt_snapshot_is_skipped_and_its_objects_are_not_reused(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    context = SnapshotContext(objects, rows.pointers)
    await rows.own(PARTITION, 1)
    await snapshot(context, tmp_path, {"1.sst": b"one"}, 1)
    await snapshot(context, tmp_path, {"1.sst": b"one", "2.sst": b"two"}, 2)
    await objects.delete(
        [each.key for each in await objects.list_objects("") if each.key.endswith("/2.sst")]
    )
    restored, contents = await back(context, tmp_path / "back")
    assert restored is not None
    assert (restored.manifest.position.iteration, contents) == (1, {"1.sst": b"one"})
    marks = MemoryGarbageMarks(lambda: datetime.now(UTC))
    assert await prune_snapshots(context, marks, 2, timedelta(hours=1), LIMIT) == NOTHING
    assert [each.incomplete for each in await rows.pointers.of(JOB, PART)] == [True, False]
    third = await snapshot(context, tmp_path, {"1.sst": b"one", "2.sst": b"two"}, 2)
    assert isinstance(third, SnapshotTaken), (
        "the same position is copied again, because its snapshot is corrupt"
    )
    assert third.uploaded_files == 2
    assert await prune_snapshots(context, marks, 3, timedelta(hours=1), LIMIT) == NOTHING
    found = [each.incomplete for each in await rows.pointers.of(JOB, PART)]
    assert found == [False, True, False]


async def test_a_snapshot_whose_objects_are_back_is_used_again(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    context, marks = SnapshotContext(objects, rows.pointers), MemoryGarbageMarks(beginning)
    await rows.own(PARTITION, 1)
    taken = await snapshot(context, tmp_path, {"1.sst": b"one"}, 1)
    (key,) = [each.key for each in await objects.list_objects("") if each.key.endswith(".sst")]
    for lost in (True, False):
        await (objects.delete([key]) if lost else objects.put(key, b"one"))
        await prune_snapshots(context, marks, 2, timedelta(hours=1), LIMIT)
        assert [each.incomplete for each in await rows.pointers.of(JOB, PART)] == [lost]
    assert isinstance(taken, SnapshotTaken)
    assert await snapshot(context, tmp_path, {}, 1) == SnapshotUnchanged(taken.manifest)


async def test_an_object_with_other_bytes_makes_its_snapshot_corrupt(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    context = SnapshotContext(objects, rows.pointers)
    await rows.own(PARTITION, 1)
    await snapshot(context, tmp_path, {"1.sst": b"one"}, 1)
    (key,) = [each.key for each in await objects.list_objects("") if each.key.endswith(".sst")]
    await objects.delete([key])
    await objects.put(key, b"eno")
    assert (await back(context, tmp_path / "back"))[0] is None


FILE = b'{"name":"1.sst","size_bytes":1,"sha256":"a","object":"o/1"}'
MALFORMED = {
    "empty": (b"", "not a manifest"),
    "cut off": (b'{"format":1,"job":', "not a manifest"),
    "no object": (b"[]", "not a manifest"),
    "no fields": (b"{}", "not a manifest: .* `format`"),
    "a field of another type": (b'{"format":"one"}', "not a manifest: .*int"),
    "another format": (b'"format":2', "manifest format 2 is not 1"),
    "another job": (b'"job":"other"', r"a snapshot of other\[2\]"),
    "another partition": (b'"part":3', r"a snapshot of w.job.abc.1\[3\]"),
    "a path for a file name": (FILE.replace(b"1.sst", b"../x"), "must be plain and distinct"),
    "a file name twice": (FILE + b"," + FILE, "must be plain and distinct"),
}
"""Malformed manifests, or the part of a good one that is replaced; and the error's text."""


def malformed(change: bytes) -> bytes:
    good = (
        b'{"format":1,"job":"w.job.abc.1","part":2,"epoch":1,"state_format":1,'
        b'"position":{"iteration":2,"replayed":2,"offsets":{"in":2}},"files":[%s]}' % FILE
    )
    name = change.partition(b":")[0]
    if name == b'{"name"':
        return good.replace(FILE, change)
    if name in (b'"format"', b'"job"', b'"part"'):
        replaced = good[good.index(name) :].partition(b",")[0]
        return good.replace(replaced, change, 1)
    return change


async def test_a_malformed_manifest_makes_its_snapshot_corrupt_and_the_one_before_is_restored(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    """Also if its checksum is right, because a process of another version wrote it."""
    context = SnapshotContext(objects, rows.pointers)
    await rows.own(PARTITION, 1)
    await snapshot(context, tmp_path, {"1.sst": b"one"}, 1)
    for kind, (change, told) in MALFORMED.items():
        body = malformed(change)
        await objects.put(kind, body)
        sha256 = hashlib.sha256(body).hexdigest()
        assert await rows.pointers.add(JOB, PART, Epoch(1), kind, sha256)
        newest, *_ = await rows.pointers.of(JOB, PART)
        with pytest.raises(SnapshotCorrupt, match=told):
            await read_manifest(objects, newest)
    restored, contents = await back(context, tmp_path / "back")
    assert restored is not None
    assert (restored.manifest.position.iteration, contents) == (1, {"1.sst": b"one"})
    third = await snapshot(context, tmp_path, {"1.sst": b"one"}, 2)
    assert isinstance(third, SnapshotTaken)
    assert third.uploaded_files == 1, "nothing of a malformed manifest is reused"


async def test_a_manifest_that_differs_from_its_pointer_or_is_missing_makes_its_snapshot_corrupt(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    context = SnapshotContext(objects, rows.pointers)
    await rows.own(PARTITION, 1)
    await snapshot(context, tmp_path, {"1.sst": b"one"}, 1)
    (pointer,) = await rows.pointers.of(JOB, PART)
    await objects.delete([pointer.manifest])
    await objects.put(pointer.manifest, malformed(b'"part":2'))
    with pytest.raises(SnapshotCorrupt, match="another checksum than its pointer"):
        await read_manifest(objects, pointer)
    await objects.delete([pointer.manifest])
    with pytest.raises(SnapshotCorrupt, match="its manifest is missing"):
        await read_manifest(objects, pointer)
    assert (await back(context, tmp_path / "back"))[0] is None


async def test_a_former_owner_cannot_add_a_pointer(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    context = SnapshotContext(objects, rows.pointers)
    await rows.own(PARTITION, 2)
    assert await snapshot(context, tmp_path, {"1.sst": b"zombie"}, 1, epoch=1) == OwnershipLost()
    assert (await back(context, tmp_path / "back"))[0] is None


async def test_pruning_keeps_the_newest_and_objects_they_share_with_older_ones(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    context = SnapshotContext(objects, rows.pointers)
    marks = MemoryGarbageMarks(lambda: datetime.now(UTC))
    await rows.own(PARTITION, 1)
    for number in range(1, 5):
        await snapshot(
            context,
            tmp_path,
            {"shared.sst": b"shared", f"{number}.sst": str(number).encode()},
            number,
        )
    assert (await prune_snapshots(context, marks, 2, timedelta(hours=1), LIMIT)).objects == 0, (
        "it is too early"
    )
    await asyncio.sleep(1.1)  # the store's times are in whole seconds
    done = await prune_snapshots(context, marks, 2, timedelta(0), LIMIT)
    assert (done.snapshots, done.objects) == (2, 4), (
        "two manifests and the contents that only they refer to"
    )
    assert len(await rows.pointers.of(JOB, PART)) == 2
    assert (await back(context, tmp_path / "back"))[1] == {"shared.sst": b"shared", "4.sst": b"4"}
    await rows.gone(JOB)
    assert (await prune_snapshots(context, marks, 2, timedelta(0), LIMIT)).snapshots == 0, (
        "the first run only marks the job"
    )
    assert (await prune_snapshots(context, marks, 2, timedelta(0), LIMIT)).snapshots == 2
    assert (await objects.list_objects(""), await rows.pointers.partitions()) == ([], [])


async def test_uploads_without_a_pointer_are_pruned_even_if_their_job_is_deleted(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    context = SnapshotContext(objects, rows.pointers)
    marks = MemoryGarbageMarks(lambda: datetime.now(UTC))
    await rows.own(PARTITION, 2)
    assert await snapshot(context, tmp_path, {"1.sst": b"zombie"}, 1, epoch=1) == OwnershipLost()
    await rows.gone(JOB)
    assert await rows.pointers.partitions() == []
    assert (await prune_snapshots(context, marks, 2, timedelta(hours=1), LIMIT)).objects == 0, (
        "a pointer may be about to be added"
    )
    await asyncio.sleep(1.1)  # the store's times are in whole seconds
    assert (await prune_snapshots(context, marks, 2, timedelta(0), LIMIT)).objects == 2
    assert await objects.list_objects("") == []


async def test_a_database_without_jobs_deletes_nothing_beyond_the_limit(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    context = SnapshotContext(objects, rows.pointers)
    marks = MemoryGarbageMarks(lambda: datetime.now(UTC))
    await rows.own(PARTITION, 1)
    await snapshot(context, tmp_path, {"1.sst": b"one"}, 1)
    before = await objects.list_objects("")
    await rows.gone(JOB)
    strict = DeletionLimit(0, 20)
    await prune_snapshots(context, marks, 2, timedelta(0), strict)
    with pytest.raises(DeletionRefused, match="1 of 1 items of kind `snapshot-job`"):
        await prune_snapshots(context, marks, 2, timedelta(0), strict)
    assert await objects.list_objects("") == before
    assert await rows.pointers.partitions() == [PARTITION]


async def test_a_job_that_returns_keeps_its_snapshots(
    objects: ObjectStore, rows: Rows, tmp_path: Path
) -> None:
    now = [datetime.now(UTC)]
    context, marks = SnapshotContext(objects, rows.pointers), MemoryGarbageMarks(lambda: now[0])
    await rows.own(PARTITION, 1)
    await snapshot(context, tmp_path, {"1.sst": b"one"}, 1)
    for present in (False, True, False):
        await (rows.own(PARTITION, 1) if present else rows.gone(JOB))
        now[0] += timedelta(minutes=40)
        assert await prune_snapshots(context, marks, 2, timedelta(hours=1), LIMIT) == NOTHING
    assert (await back(context, tmp_path / "back"))[1] == {"1.sst": b"one"}
