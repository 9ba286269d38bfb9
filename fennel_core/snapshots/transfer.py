"""Take snapshots and restore them, over any object store and any pointer rows.

Theory. The order of writes makes this safe. Taking writes contents, then the manifest, then the
pointer, so everything that a pointer refers to is complete. Restoring tries snapshots in order
until one passes every check; state is never built from a part of a snapshot.

Example: a checkpoint has the files `1.sst` and `2.sst`, and the newest snapshot already refers to
the content of `1.sst`. Only `2.sst` is uploaded; the new manifest refers to the old object of
`1.sst` and to the new object of `2.sst`.

Keys are `snapshots/<job>/<part>/<epoch>-<unique>/...`: two writers never share a key.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.object_store import ObjectStore
from fennel_core.snapshots import transfer_plan
from fennel_core.snapshots.checksums import Checksums
from fennel_core.snapshots.errors import ManifestMalformed, SnapshotCorrupt
from fennel_core.snapshots.manifest import (
    FORMAT,
    ManifestFile,
    SnapshotManifest,
    StatePosition,
    decode_manifest,
    encode_manifest,
)
from fennel_core.snapshots.store import Pointer, Pointers
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex

PREFIX: Final = "snapshots"
TRANSFER_CONCURRENCY: Final = 4
"""Concurrent transfers of one snapshot: enough to hide the store's latency, few enough to leave a
slot its core.
"""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """The object store and the pointer rows that snapshots are kept in."""

    objects: ObjectStore
    pointers: Pointers


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """The state to copy: its job partition, its owner, and its position (a lower bound)."""

    job: JobId
    part: PartitionIndex
    epoch: Epoch
    state_format: int
    position: StatePosition


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A new snapshot exists; `manifest` is the key of its manifest."""

    manifest: str
    files: int
    uploaded_files: int
    uploaded_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotUnchanged:
    """The newest snapshot, with the manifest key `manifest`, holds this state already."""

    manifest: str


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """Another owner has the job partition now: the uploaded objects are orphans until pruned."""


@dataclass(frozen=True, slots=True)
class RestoredSnapshot:
    """The snapshot that a folder was filled from."""

    pointer: Pointer
    manifest: SnapshotManifest


async def take_snapshot(
    context: SnapshotContext,
    source: SnapshotSource,
    checkpoint: Callable[[], Awaitable[Path]],
    unique: str,
    sums: Checksums | None = None,
    unusable: Collection[int] = (),
) -> SnapshotTaken | SnapshotUnchanged | OwnershipLost:
    """Copy a state to the object store, unless the newest snapshot holds it already.

    `checkpoint` creates a folder of files that nothing changes afterwards. `sums` remembers
    checksums between snapshots of the same store. `unusable`: numbers of snapshots that failed to
    restore; if the newest one is among them, the state is copied completely, even if its position
    has not changed. Raises ConnectionsError.
    """
    newest = await _newest_usable(context, source.job, source.part, unusable)
    if newest is not None and transfer_plan.is_unchanged(
        newest[1], source.state_format, source.position
    ):
        return SnapshotUnchanged(newest[0].manifest)
    folder = await checkpoint()
    local = await asyncio.to_thread((sums or Checksums()).of_folder, folder)
    plan = transfer_plan.plan_uploads(local, None if newest is None else newest[1])
    base = f"{_partition_prefix(source.job, source.part)}{source.epoch:010d}-{unique}"
    fresh = [
        ManifestFile(file.name, file.size_bytes, file.sha256, f"{base}/files/{file.name}")
        for file in plan.fresh
    ]
    await _run_all(
        partial(context.objects.upload, file.object, folder / file.name) for file in fresh
    )
    files = tuple(sorted([*plan.reused, *fresh], key=lambda file: file.name))
    body = encode_manifest(
        SnapshotManifest(
            FORMAT,
            source.job,
            source.part,
            source.epoch,
            source.state_format,
            source.position,
            files,
        )
    )
    key = f"{base}/manifest.json"
    await context.objects.put(key, body)
    if not await context.pointers.add(source.job, source.part, source.epoch, key, _sha256(body)):
        return OwnershipLost()
    return SnapshotTaken(key, len(files), len(fresh), sum(file.size_bytes for file in fresh))


async def restore_snapshot(
    context: SnapshotContext, pointers: Sequence[Pointer], state_format: int, target: Path
) -> RestoredSnapshot | None:
    """Fill the new folder `target` from the first of `pointers` that passes every check.

    Returns None if none does; `target` may then hold partial files. Raises SystemUnavailable: an
    unreachable bucket says nothing about the snapshots, and an older snapshot would only mean more
    replay.
    """
    for pointer in pointers:
        try:
            manifest = await download_snapshot(context, pointer, state_format, target)
        except SnapshotCorrupt as corrupt:
            log.error(
                "snapshot cannot be used",
                job=pointer.job,
                part=pointer.part,
                snapshot=pointer.manifest,
                error=str(corrupt),
            )
        else:
            return RestoredSnapshot(pointer, manifest)
    return None


async def download_snapshot(
    context: SnapshotContext, pointer: Pointer, state_format: int, target: Path
) -> SnapshotManifest:
    """Fill the folder `target` from one snapshot.

    Raises SnapshotCorrupt if it is not complete, SystemUnavailable if the store cannot be reached.
    """
    manifest = await read_manifest(context.objects, pointer)
    if manifest.state_format != state_format:
        raise SnapshotCorrupt(
            f"its state format is {manifest.state_format}, this version reads {state_format}"
        )
    await _download_files(context.objects, manifest, target)
    return manifest


async def with_newest_position(
    context: SnapshotContext, pointers: Sequence[Pointer]
) -> list[Pointer]:
    """Return `pointers` with the position of the newest one read from its manifest.

    The position stays None if the manifest is corrupt or the store cannot be reached.
    """
    if not pointers or pointers[0].position is not None:
        return list(pointers)
    try:
        manifest = await read_manifest(context.objects, pointers[0])
    except (SnapshotCorrupt, SystemUnavailable) as unknown:
        log.warning(
            "position of the newest snapshot is unknown",
            snapshot=pointers[0].manifest,
            error=str(unknown),
        )
        return list(pointers)
    return [replace(pointers[0], position=manifest.position), *pointers[1:]]


async def read_manifest(objects: ObjectStore, pointer: Pointer) -> SnapshotManifest:
    """Return the manifest of a snapshot; SnapshotCorrupt if it is not the one that was written."""
    body = await objects.get(pointer.manifest)
    if body is None:
        raise SnapshotCorrupt("its manifest is missing")
    if _sha256(body) != pointer.sha256:
        raise SnapshotCorrupt("its manifest has another checksum than its pointer")
    try:
        manifest = decode_manifest(body)
    except ManifestMalformed as wrong:
        raise SnapshotCorrupt(str(wrong)) from wrong
    if (manifest.job, manifest.part) != (pointer.job, pointer.part):
        raise SnapshotCorrupt(f"it is a snapshot of {manifest.job}[{manifest.part}]")
    return manifest


def partition_of_key(key: str) -> JobPartition | None:
    """Return the job partition that an object belongs to; None if the key is not a snapshot's."""
    match key.split("/", 3):
        case [_, job, part, _] if part.isdecimal():
            return JobId(job), PartitionIndex(int(part))
        case _:
            return None


async def _newest_usable(
    context: SnapshotContext, job: JobId, part: PartitionIndex, unusable: Collection[int]
) -> tuple[Pointer, SnapshotManifest] | None:
    """Return the newest snapshot if a new one may reuse its objects.

    It costs no listing: which snapshots lack an object is recorded when snapshots are pruned, which
    lists all objects once per round.
    """
    pointers = await context.pointers.of(job, part)
    if not pointers or pointers[0].number in unusable:
        return None
    try:
        if pointers[0].incomplete:
            raise SnapshotCorrupt("an object of it is missing")
        return pointers[0], await read_manifest(context.objects, pointers[0])
    except SnapshotCorrupt as corrupt:
        log.error(
            "snapshot is corrupt; the next one is complete",
            snapshot=pointers[0].manifest,
            error=str(corrupt),
        )
        return None


async def _download_files(objects: ObjectStore, manifest: SnapshotManifest, target: Path) -> None:
    await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
    # Files of an attempt at a newer snapshot must not become part of this state.
    for path in await asyncio.to_thread(lambda: list(target.iterdir())):
        await asyncio.to_thread(path.unlink)

    async def download(file: ManifestFile) -> None:
        found = await objects.download(file.object, target / file.name)
        if found is None:
            raise SnapshotCorrupt(f"{file.object} is missing")
        if found != file.sha256:
            raise SnapshotCorrupt(f"{file.object} has another checksum than its manifest")

    await _run_all(partial(download, file) for file in manifest.files)


async def _run_all(transfers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run all, a few at a time; raise the first failure only after every transfer has ended.

    So no transfer writes to the folder after the caller has seen the failure.
    """
    gate = asyncio.Semaphore(TRANSFER_CONCURRENCY)

    async def gated(transfer: Callable[[], Awaitable[None]]) -> None:
        async with gate:
            await transfer()

    ended = await asyncio.gather(*(gated(each) for each in transfers), return_exceptions=True)
    failed = [each for each in ended if isinstance(each, BaseException)]
    # An unreachable store is reported before corruption, which it may be the cause of.
    for each in sorted(failed, key=lambda error: isinstance(error, SnapshotCorrupt)):
        raise each


def _partition_prefix(job: JobId, part: PartitionIndex) -> str:
    return f"{PREFIX}/{job}/{part}/"


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
