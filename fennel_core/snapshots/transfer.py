"""Taking, restoring and pruning snapshots, over any bucket and any pointer rows.

Theory. Order is what makes this safe. Taking: contents, then the manifest, then the pointer:
whatever a pointer leads to is complete. Pruning: the pointer, then the contents. Restoring goes
from the newest snapshot to the oldest until one passes every check; state is never built from a
part of one. Keys are `snapshots/<job>/<part>/<epoch>-<unique>/...`: no two writers ever share one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from fennel_core.snapshots import transfer_plan
from fennel_core.snapshots.checksums import Checksums
from fennel_core.snapshots.manifest import (
    FORMAT,
    ManifestFile,
    ManifestInvalid,
    SnapshotManifest,
    StatePosition,
    decode_manifest,
    encode_manifest,
)
from fennel_core.snapshots.store import Objects, Pointer, Pointers, Stored, StoreError
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex

PREFIX: Final = "snapshots"
TRANSFER_CONCURRENCY: Final = 4
"""Objects on their way at one time: enough to hide the store's latency, few enough to leave a slot
its core.
"""
log = structlog.get_logger(__name__)


class SnapshotCorrupt(Exception):
    """A snapshot that cannot be used: something is missing, is not what was written, or is of
    another format.
    """


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    objects: Objects
    pointers: Pointers


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """Whose state is copied, by which owner, and how far it has come at least."""

    job: JobId
    part: PartitionIndex
    epoch: Epoch
    state_format: int
    position: StatePosition


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    manifest: str
    files: int
    uploaded_files: int
    uploaded_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotUnchanged:
    """The newest snapshot holds this state already."""

    manifest: str


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """Another owner has the job partition now: what was uploaded is nobody's, and pruning removes
    it.
    """


@dataclass(frozen=True, slots=True)
class RestoredSnapshot:
    pointer: Pointer
    manifest: SnapshotManifest


@dataclass(frozen=True, slots=True)
class PrunedSnapshots:
    snapshots: int
    objects: int


async def take_snapshot(
    tools: SnapshotContext,
    subject: SnapshotSource,
    checkpoint: Callable[[], Awaitable[Path]],
    unique: str,
    sums: Checksums | None = None,
    distrusted: Collection[int] = (),
) -> SnapshotTaken | SnapshotUnchanged | OwnershipLost:
    """Copy a state to the bucket, if it changed. `checkpoint` makes a folder of files that nobody
    changes. StoreError passes through.

    `sums` remembers checksums from one snapshot of the same folder to the next. `distrusted`:
    numbers of snapshots to which this state is the answer: where the newest is one of them, the
    state is copied as a whole, even if it stands where that stands.
    """
    newest = await _newest(tools, subject.job, subject.part, distrusted)
    if newest is not None and transfer_plan.is_unchanged(
        newest[1], subject.state_format, subject.position
    ):
        return SnapshotUnchanged(newest[0].manifest)
    folder = await checkpoint()
    local = await asyncio.to_thread((sums or Checksums()).of_folder, folder)
    plan = transfer_plan.plan_uploads(local, None if newest is None else newest[1])
    base = f"{_base(subject.job, subject.part)}{subject.epoch:010d}-{unique}"
    fresh = [
        ManifestFile(file.name, file.size_bytes, file.sha256, f"{base}/files/{file.name}")
        for file in plan.fresh
    ]
    await _all(tools.objects.upload(file.object, folder / file.name) for file in fresh)
    files = tuple(sorted([*plan.reused, *fresh], key=lambda file: file.name))
    body = encode_manifest(
        SnapshotManifest(
            FORMAT,
            subject.job,
            subject.part,
            subject.epoch,
            subject.state_format,
            subject.position,
            files,
        )
    )
    key = f"{base}/manifest.json"
    await tools.objects.put(key, body)
    if not await tools.pointers.add(subject.job, subject.part, subject.epoch, key, _sha256(body)):
        return OwnershipLost()
    return SnapshotTaken(key, len(files), len(fresh), sum(file.size_bytes for file in fresh))


async def restore_snapshot(
    tools: SnapshotContext, pointers: Sequence[Pointer], state_format: int, target: Path
) -> RestoredSnapshot | None:
    """Fill the new folder `target` from the first of `pointers` that passes every check; None
    without one (`target` may hold rubbish).

    StoreError passes through: a bucket that is away says nothing about snapshots, and an older one
    would mean more replay for nothing.
    """
    for pointer in pointers:
        try:
            return RestoredSnapshot(
                pointer, await download_snapshot(tools, pointer, state_format, target)
            )
        except SnapshotCorrupt as damaged:
            log.error(
                "snapshot cannot be used",
                job=pointer.job,
                part=pointer.part,
                snapshot=pointer.manifest,
                error=str(damaged),
            )
    return None


async def download_snapshot(
    tools: SnapshotContext, pointer: Pointer, state_format: int, target: Path
) -> SnapshotManifest:
    """Fill the folder `target` from one snapshot. Damaged when it is not whole; StoreError passes
    through.
    """
    manifest = await _manifest(tools.objects, pointer)
    if manifest.state_format != state_format:
        raise SnapshotCorrupt(
            f"its state format is {manifest.state_format}, this version reads {state_format}"
        )
    await _download(tools.objects, manifest, target)
    return manifest


async def with_newest_position(
    tools: SnapshotContext, pointers: Sequence[Pointer]
) -> list[Pointer]:
    """`pointers`, of which the newest says where it stands, if that can be learnt: its manifest may
    be damaged, or the bucket away.
    """
    if not pointers or pointers[0].position is not None:
        return list(pointers)
    try:
        manifest = await _manifest(tools.objects, pointers[0])
    except (SnapshotCorrupt, StoreError) as unknown:
        log.warning(
            "it is not known where the newest snapshot stands",
            snapshot=pointers[0].manifest,
            error=str(unknown),
        )
        return list(pointers)
    return [replace(pointers[0], position=manifest.position), *pointers[1:]]


async def prune_snapshots(tools: SnapshotContext, keep: int, grace: timedelta) -> PrunedSnapshots:
    """Delete what nobody needs: snapshots beyond the newest `keep`, those of jobs that are gone,
    and objects that no snapshot names.

    The whole bucket is looked at, so what was uploaded for a snapshot that never got its pointer
    goes too, whatever became of its job.
    """
    # Listed before the pointers are read: what is listed then and named by a later snapshot is
    # reused from a kept one.
    stored: dict[JobPartition, list[Stored]] = {
        place: [] for place in await tools.pointers.places()
    }
    for each in await tools.objects.stored(f"{PREFIX}/"):
        if (place := _place(each.key)) is not None:
            stored.setdefault(place, []).append(each)
    jobs, now = await tools.pointers.jobs(), await tools.pointers.now()
    done = []
    for place, there in stored.items():
        if place[0] in jobs:
            done.append(await _prune(tools, place, there, keep, grace, now))
        else:
            done.append(await _clear(tools, place, there, grace, now))
    return PrunedSnapshots(sum(each.snapshots for each in done), sum(each.objects for each in done))


async def _prune(
    tools: SnapshotContext,
    place: JobPartition,
    stored: Sequence[Stored],
    keep: int,
    grace: timedelta,
    now: datetime,
) -> PrunedSnapshots:
    plan = transfer_plan.plan_pruning(await tools.pointers.of(*place), keep, grace, now)
    await tools.pointers.remove(plan.surplus)
    named: set[str] = set()
    for pointer in plan.kept:
        try:
            manifest = await _manifest(tools.objects, pointer)
        except SnapshotCorrupt as damaged:
            # What it names is unknown, so nothing goes until it is surplus itself.
            log.error(
                "snapshot is damaged, nothing of its partition is deleted",
                snapshot=pointer.manifest,
                error=str(damaged),
            )
            return PrunedSnapshots(len(plan.surplus), 0)
        named |= {pointer.manifest, *(file.object for file in manifest.files)}
    unnamed = transfer_plan.garbage(stored, named, grace, now)
    await tools.objects.remove(unnamed)
    return PrunedSnapshots(len(plan.surplus), len(unnamed))


async def _clear(
    tools: SnapshotContext,
    place: JobPartition,
    stored: Sequence[Stored],
    grace: timedelta,
    now: datetime,
) -> PrunedSnapshots:
    """Nothing of a job that is gone is needed; its pointers go last: they say what is not deleted
    yet.
    """
    unnamed = transfer_plan.garbage(stored, (), grace, now)
    await tools.objects.remove(unnamed)
    if len(unnamed) < len(stored):
        return PrunedSnapshots(0, len(unnamed))
    pointers = await tools.pointers.of(*place)
    await tools.pointers.remove(pointers)
    return PrunedSnapshots(len(pointers), len(unnamed))


async def _newest(
    tools: SnapshotContext, job: JobId, part: PartitionIndex, distrusted: Collection[int]
) -> tuple[Pointer, SnapshotManifest] | None:
    """The newest snapshot, if it can be built upon: a damaged one is answered with a complete new
    one.
    """
    pointers = await tools.pointers.of(job, part)
    if not pointers or pointers[0].number in distrusted:
        return None
    try:
        manifest = await _manifest(tools.objects, pointers[0])
    except SnapshotCorrupt as damaged:
        log.error(
            "snapshot is damaged, the next one is complete",
            snapshot=pointers[0].manifest,
            error=str(damaged),
        )
        return None
    stored = {each.key for each in await tools.objects.stored(_base(job, part))}
    if missing := sorted({file.object for file in manifest.files} - stored):
        log.error(
            "snapshot is damaged, the next one is complete",
            snapshot=pointers[0].manifest,
            error=f"{missing[0]} is missing",
        )
        return None
    return pointers[0], manifest


async def _manifest(objects: Objects, pointer: Pointer) -> SnapshotManifest:
    body = await objects.get(pointer.manifest)
    if body is None:
        raise SnapshotCorrupt("its manifest is missing")
    if _sha256(body) != pointer.sha256:
        raise SnapshotCorrupt("its manifest is not the one that was written")
    try:
        manifest = decode_manifest(body)
    except ManifestInvalid as wrong:
        raise SnapshotCorrupt(str(wrong)) from wrong
    if (manifest.job, manifest.part) != (pointer.job, pointer.part):
        raise SnapshotCorrupt(f"it is of {manifest.job}[{manifest.part}]")
    return manifest


async def _download(objects: Objects, manifest: SnapshotManifest, target: Path) -> None:
    await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
    for path in await asyncio.to_thread(lambda: list(target.iterdir())):
        await asyncio.to_thread(path.unlink)  # of an attempt at a newer snapshot

    async def download_snapshot(file: ManifestFile) -> None:
        found = await objects.download(file.object, target / file.name)
        if found is None:
            raise SnapshotCorrupt(f"{file.object} is missing")
        if found != file.sha256:
            raise SnapshotCorrupt(f"{file.object} is not what was written")

    await _all(download_snapshot(file) for file in manifest.files)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Do all, a few at a time; when any failed, say why only after every other has ended: nobody
    writes on behind the caller's back.
    """
    gate = asyncio.Semaphore(TRANSFER_CONCURRENCY)

    async def gated(work: Awaitable[None]) -> None:
        async with gate:
            await work

    ended = await asyncio.gather(*(gated(work) for work in works), return_exceptions=True)
    failed = [each for each in ended if isinstance(each, BaseException)]
    for each in sorted(failed, key=lambda error: isinstance(error, SnapshotCorrupt)):
        raise each  # a bucket that is away comes before damage: it may be the reason


def _base(job: JobId, part: PartitionIndex) -> str:
    return f"{PREFIX}/{job}/{part}/"


def _place(key: str) -> JobPartition | None:
    """Whose object this is; None for a key that is none of ours."""
    match key.split("/", 3):
        case [_, job, part, _] if part.isdecimal():
            return JobId(job), PartitionIndex(int(part))
        case _:
            return None


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
