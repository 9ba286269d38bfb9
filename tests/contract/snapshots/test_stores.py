"""What taking, restoring and pruning rely on, of the twins and of the real stores."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from datetime import timedelta
from pathlib import Path

import pytest

from fennel_core.snapshots.manifest import StatePosition
from fennel_core.snapshots.store import Objects, StoreError
from fennel_core.snapshots.transfer import (
    OwnershipLost,
    RestoredSnapshot,
    SnapshotContext,
    SnapshotSource,
    SnapshotTaken,
    SnapshotUnchanged,
    prune_snapshots,
    restore_snapshot,
    take_snapshot,
)
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName
from tests.contract.snapshots.conftest import Rows

NUMBERS = itertools.count()
JOB, PART = JobId("w.job.abc.1"), PartitionIndex(2)
PLACE = (JOB, PART)


async def test_an_object_is_written_once_and_never_changed(objects: Objects) -> None:
    await objects.put("a/1", b"first")
    await objects.put("a/1", b"first")
    with pytest.raises(StoreError):
        await objects.put("a/1", b"second")
    assert await objects.get("a/1") == b"first"
    assert await objects.get("a/2") is None


async def test_objects_are_listed_by_prefix_with_their_age_and_removed(objects: Objects) -> None:
    for key in ("p/2", "p/1", "q/1"):
        await objects.put(key, key.encode())
    listed = await objects.stored("p/")
    assert [each.key for each in listed] == ["p/1", "p/2"]
    assert all(each.written_at.utcoffset() == timedelta(0) for each in listed)
    await objects.remove(["p/1", "p/never"])
    assert [each.key for each in await objects.stored("")] == ["p/2", "q/1"]


async def test_files_go_up_and_come_down_with_their_checksum(
    objects: Objects, tmp_path: Path
) -> None:
    (tmp_path / "up").write_bytes(b"0123456789" * 300_000)
    await objects.upload("f/1", tmp_path / "up")
    await objects.upload("f/1", tmp_path / "up")
    assert (
        await objects.download("f/1", tmp_path / "down")
        == hashlib.sha256(b"0123456789" * 300_000).hexdigest()
    )
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()
    assert await objects.download("f/2", tmp_path / "none") is None
    (tmp_path / "up").write_bytes(b"other")
    with pytest.raises(StoreError):
        await objects.upload("f/1", tmp_path / "up")


async def test_a_pointer_is_added_only_by_the_current_owner(rows: Rows) -> None:
    assert not await rows.pointers.add(JOB, PART, Epoch(1), "m0", "x"), (
        "nobody knows this job partition"
    )
    await rows.own(PLACE, 3)
    assert not await rows.pointers.add(JOB, PART, Epoch(2), "m1", "x"), "an earlier owner"
    assert not await rows.pointers.add(JOB, PART, Epoch(4), "m2", "x"), (
        "an owner that is not one yet"
    )
    assert await rows.pointers.add(JOB, PART, Epoch(3), "m3", "x")
    assert [(p.manifest, p.epoch) for p in await rows.pointers.of(JOB, PART)] == [("m3", 3)]


async def test_pointers_are_newest_first_and_of_one_partition_each(rows: Rows) -> None:
    other = PartitionIndex(0)
    await rows.own(PLACE, 1)
    await rows.own((JOB, other), 1)
    for part, key in ((PART, "a"), (other, "b"), (PART, "c"), (PART, "d")):
        assert await rows.pointers.add(JOB, part, Epoch(1), key, "x")
    found = await rows.pointers.of(JOB, PART)
    assert [p.manifest for p in found] == ["d", "c", "a"]
    assert await rows.pointers.places() == [(JOB, other), PLACE]
    await rows.pointers.remove(found[1:])
    assert [p.manifest for p in await rows.pointers.of(JOB, PART)] == ["d"]


async def test_pointers_outlive_their_job_and_age_by_the_database_clock(rows: Rows) -> None:
    await rows.own(PLACE, 1)
    before = await rows.pointers.now()
    await rows.pointers.add(JOB, PART, Epoch(1), "a", "x")
    assert await rows.pointers.jobs() == {JOB}
    await rows.gone(JOB)
    assert await rows.pointers.jobs() == set()
    (pointer,) = await rows.pointers.of(JOB, PART)
    assert before <= pointer.taken_at <= await rows.pointers.now()


def subject(iteration: int, epoch: int = 1) -> SnapshotSource:
    return SnapshotSource(
        JOB,
        PART,
        Epoch(epoch),
        1,
        StatePosition(iteration, Offset(iteration), {TopicName("in"): Offset(iteration)}),
    )


async def snapshot(
    tools: SnapshotContext, folder: Path, contents: dict[str, bytes], iteration: int, epoch: int = 1
) -> SnapshotTaken | SnapshotUnchanged | OwnershipLost:
    """Take a snapshot of `contents`, said to be the state after `iteration`."""
    unique = f"n{next(NUMBERS)}"

    async def checkpoint() -> Path:
        made = folder / unique
        made.mkdir()
        for name, body in contents.items():
            (made / name).write_bytes(body)
        return made

    return await take_snapshot(tools, subject(iteration, epoch), checkpoint, unique)


async def back(
    tools: SnapshotContext, folder: Path
) -> tuple[RestoredSnapshot | None, dict[str, bytes]]:
    restored = await restore_snapshot(tools, await tools.pointers.of(JOB, PART), 1, folder)
    return restored, {
        path.name: path.read_bytes() for path in folder.iterdir()
    } if folder.exists() else {}


async def test_only_new_contents_are_uploaded_and_all_of_them_come_back(
    objects: Objects, rows: Rows, tmp_path: Path
) -> None:
    tools = SnapshotContext(objects, rows.pointers)
    await rows.own(PLACE, 1)
    first = await snapshot(tools, tmp_path, {"1.sst": b"one", "CURRENT": b"a"}, 1)
    assert isinstance(first, SnapshotTaken)
    assert (first.files, first.uploaded_files) == (2, 2)
    second = await snapshot(
        tools, tmp_path, {"1.sst": b"one", "2.sst": b"two!", "CURRENT": b"b"}, 2
    )
    assert isinstance(second, SnapshotTaken)
    assert (second.files, second.uploaded_files, second.uploaded_bytes) == (3, 2, 5)
    restored, contents = await back(tools, tmp_path / "back")
    assert contents == {"1.sst": b"one", "2.sst": b"two!", "CURRENT": b"b"}
    assert restored is not None
    assert (restored.pointer.manifest, restored.manifest.position.iteration) == (second.manifest, 2)
    assert await snapshot(
        tools, tmp_path, {"never": b"looked at"}, 2, epoch=2
    ) == SnapshotUnchanged(second.manifest)


async def test_a_damaged_snapshot_is_passed_over_for_an_older_one_and_not_built_upon(
    objects: Objects, rows: Rows, tmp_path: Path
) -> None:
    tools = SnapshotContext(objects, rows.pointers)
    await rows.own(PLACE, 1)
    await snapshot(tools, tmp_path, {"1.sst": b"one"}, 1)
    await snapshot(tools, tmp_path, {"1.sst": b"one", "2.sst": b"two"}, 2)
    await objects.remove(
        [each.key for each in await objects.stored("") if each.key.endswith("/2.sst")]
    )
    restored, contents = await back(tools, tmp_path / "back")
    assert restored is not None
    assert (restored.manifest.position.iteration, contents) == (1, {"1.sst": b"one"})
    third = await snapshot(tools, tmp_path, {"1.sst": b"one", "2.sst": b"two"}, 2)
    assert isinstance(third, SnapshotTaken), (
        "the same position is copied again, because its snapshot is damaged"
    )
    assert third.uploaded_files == 2


async def test_an_object_of_other_bytes_is_damage_and_without_any_good_snapshot_there_is_none(
    objects: Objects, rows: Rows, tmp_path: Path
) -> None:
    tools = SnapshotContext(objects, rows.pointers)
    await rows.own(PLACE, 1)
    await snapshot(tools, tmp_path, {"1.sst": b"one"}, 1)
    (key,) = [each.key for each in await objects.stored("") if each.key.endswith(".sst")]
    await objects.remove([key])
    await objects.put(key, b"eno")
    assert (await back(tools, tmp_path / "back"))[0] is None


async def test_a_former_owner_points_at_nothing(
    objects: Objects, rows: Rows, tmp_path: Path
) -> None:
    tools = SnapshotContext(objects, rows.pointers)
    await rows.own(PLACE, 2)
    assert await snapshot(tools, tmp_path, {"1.sst": b"zombie"}, 1, epoch=1) == OwnershipLost()
    assert (await back(tools, tmp_path / "back"))[0] is None


async def test_pruning_keeps_the_newest_and_what_they_share_with_older_ones(
    objects: Objects, rows: Rows, tmp_path: Path
) -> None:
    tools = SnapshotContext(objects, rows.pointers)
    await rows.own(PLACE, 1)
    for number in range(1, 5):
        await snapshot(
            tools,
            tmp_path,
            {"shared.sst": b"shared", f"{number}.sst": str(number).encode()},
            number,
        )
    assert (await prune_snapshots(tools, 2, timedelta(hours=1))).objects == 0, "it is too early"
    await asyncio.sleep(1.1)  # the store tells times in whole seconds
    done = await prune_snapshots(tools, 2, timedelta(0))
    assert (done.snapshots, done.objects) == (2, 4), (
        "two manifests and the contents only they named"
    )
    assert len(await rows.pointers.of(JOB, PART)) == 2
    assert (await back(tools, tmp_path / "back"))[1] == {"shared.sst": b"shared", "4.sst": b"4"}
    await rows.gone(JOB)
    assert (await prune_snapshots(tools, 2, timedelta(0))).snapshots == 2
    assert (await objects.stored(""), await rows.pointers.places()) == ([], [])


async def test_what_was_uploaded_and_never_pointed_at_goes_too_even_when_its_job_is_gone(
    objects: Objects, rows: Rows, tmp_path: Path
) -> None:
    tools = SnapshotContext(objects, rows.pointers)
    await rows.own(PLACE, 2)
    assert await snapshot(tools, tmp_path, {"1.sst": b"zombie"}, 1, epoch=1) == OwnershipLost()
    await rows.gone(JOB)
    assert await rows.pointers.places() == []
    assert (await prune_snapshots(tools, 2, timedelta(hours=1))).objects == 0, (
        "somebody may be about to point at it"
    )
    await asyncio.sleep(1.1)  # the store tells times in whole seconds
    assert (await prune_snapshots(tools, 2, timedelta(0))).objects == 2
    assert await objects.stored("") == []
