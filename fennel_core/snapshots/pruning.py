"""Delete snapshots beyond the newest few, snapshots of deleted jobs, and orphaned objects.

Theory. Deletion is the only dangerous step, so it is delayed twice. A job that the registry does
not list, or of which no snapshot is known, is marked by one run and deleted by a later one that
still finds it so after the grace period, within the limit of `connections.garbage` unless the
database has deleted the job itself: it may be the wrong one. A snapshot stays until it has been
beyond the newest `keep` for a whole grace period: a restore from it may have started just before.
An object is deleted only when no kept snapshot refers to it and it is older than the grace period:
it may belong to a snapshot whose manifest is not written yet. The pointer goes before the contents,
so a pointer never refers to deleted objects.

The same listing shows which snapshots lack an object that was lost. They are marked, not deleted:
the next snapshot of the partition is a complete copy, and a restore tries another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from fennel_core.connections.garbage import DeletionLimit, GarbageMarks, due_for_deletion
from fennel_core.connections.object_store import StoredObject, orphans
from fennel_core.snapshots.errors import SnapshotCorrupt
from fennel_core.snapshots.store import Pointer
from fennel_core.snapshots.transfer import PREFIX, SnapshotContext, partition_of_key, read_manifest
from fennel_core.vocab.ids import JobPartition

log = structlog.get_logger(__name__)

JOBS: Final = "snapshot-job"


@dataclass(frozen=True, slots=True)
class PruningPlan:
    """The snapshots of one job partition: those that stay and those to delete."""

    kept: tuple[Pointer, ...]
    surplus: tuple[Pointer, ...]


@dataclass(frozen=True, slots=True)
class PrunedSnapshots:
    """How many snapshots and objects were deleted."""

    snapshots: int
    objects: int


def plan_pruning(
    pointers: Sequence[Pointer], keep: int, grace: timedelta, now: datetime
) -> PruningPlan:
    """Return which snapshots of one job partition stay; `pointers` are newest first.

    A snapshot is surplus since the one that is `keep` places newer exists.
    """
    assert keep >= 1, "the newest snapshot always stays"
    assert list(pointers) == sorted(pointers, key=lambda pointer: -pointer.number), "newest first"
    surplus = [
        pointer
        for index, pointer in enumerate(pointers)
        if index >= keep and pointers[index - keep].taken_at < now - grace
    ]
    return PruningPlan(tuple(p for p in pointers if p not in surplus), tuple(surplus))


async def prune_snapshots(
    context: SnapshotContext,
    marks: GarbageMarks,
    keep: int,
    grace: timedelta,
    limit: DeletionLimit,
) -> PrunedSnapshots:
    """Delete surplus snapshots, snapshots of deleted jobs, and objects without a reference.

    All objects are listed, so those of an upload that never got its pointer are deleted too,
    whether their job still exists or not. Raises SystemUnavailable, and DeletionRefused before
    anything is deleted.
    """
    # All objects of a snapshot existed when its pointer was added: of those that are known now, the
    # listing must show everything.
    listed = {p.number for each in (await context.pointers.all()).values() for p in each}
    # Objects are listed before the pointers are read: what is listed now and referenced by a later
    # snapshot is reused from a snapshot that is kept.
    stored: dict[JobPartition, list[StoredObject]] = {}
    for each in await context.objects.list_objects(f"{PREFIX}/"):
        if (partition := partition_of_key(each.key)) is not None:
            stored.setdefault(partition, []).append(each)
    pointed = set(await context.pointers.partitions())
    jobs, now = await context.pointers.jobs(), await context.pointers.now()
    present = {job for job, _ in stored.keys() | pointed}
    known = jobs & {job for job, _ in pointed}
    absent_for = await marks.mark(JOBS, present - known)
    deleted = await marks.deleted(JOBS)
    gone = set(due_for_deletion(JOBS, absent_for, len(present), grace, limit, deleted))
    done = []
    for partition in sorted(stored.keys() | pointed):
        objects = stored.get(partition, [])
        if partition[0] in gone:
            done.append(await _delete_partition(context, partition, objects, grace, now))
        elif partition[0] in known:
            done.append(
                await _prune_partition(context, partition, objects, listed, keep, grace, now)
            )
    return PrunedSnapshots(sum(each.snapshots for each in done), sum(each.objects for each in done))


async def _prune_partition(
    context: SnapshotContext,
    partition: JobPartition,
    stored: Sequence[StoredObject],
    listed: Collection[int],
    keep: int,
    grace: timedelta,
    now: datetime,
) -> PrunedSnapshots:
    """Delete what is surplus; mark what lacks an object, of the snapshots that were `listed`."""
    plan = plan_pruning(await context.pointers.of(*partition), keep, grace, now)
    await context.pointers.remove(plan.surplus)
    referenced: set[str] = set()
    for pointer in plan.kept:
        try:
            manifest = await read_manifest(context.objects, pointer)
        except SnapshotCorrupt as corrupt:
            # The objects it refers to are unknown, so delete none until it is surplus itself.
            log.error(
                "snapshot is corrupt; no object of its partition is deleted",
                snapshot=pointer.manifest,
                error=str(corrupt),
            )
            return PrunedSnapshots(len(plan.surplus), 0)
        needed = {pointer.manifest, *(file.object for file in manifest.files)}
        referenced |= needed
        if pointer.number in listed:
            await _mark(context, pointer, needed - {each.key for each in stored})
    orphaned = orphans(stored, referenced, grace, now)
    await context.objects.delete(orphaned)
    return PrunedSnapshots(len(plan.surplus), len(orphaned))


async def _mark(context: SnapshotContext, pointer: Pointer, missing: Collection[str]) -> None:
    """Record whether objects of a snapshot are missing, if that has changed."""
    if bool(missing) == pointer.incomplete:
        return
    if missing:
        log.error(
            "snapshot lacks an object; the next one is complete",
            snapshot=pointer.manifest,
            missing=min(missing),
        )
    await context.pointers.mark_incomplete([pointer.number], bool(missing))


async def _delete_partition(
    context: SnapshotContext,
    partition: JobPartition,
    stored: Sequence[StoredObject],
    grace: timedelta,
    now: datetime,
) -> PrunedSnapshots:
    """Delete everything of a deleted job; pointers last, as they record what is left to delete."""
    orphaned = orphans(stored, (), grace, now)
    await context.objects.delete(orphaned)
    if len(orphaned) < len(stored):
        return PrunedSnapshots(0, len(orphaned))
    pointers = await context.pointers.of(*partition)
    await context.pointers.remove(pointers)
    return PrunedSnapshots(len(pointers), len(orphaned))
