"""Decide which files of a checkpoint to upload, and from which snapshot to restore. Pure.

An uploader reuses only objects of the newest snapshot, which pruning always keeps, so an object
that is reused is never deleted at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fennel_core.snapshots.manifest import ManifestFile, SnapshotManifest, StatePosition
from fennel_core.snapshots.store import Pointer


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file of a checkpoint on this machine."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """`reused` files have an object already; `fresh` files must be uploaded."""

    reused: tuple[ManifestFile, ...]
    fresh: tuple[LocalFile, ...]


def plan_uploads(files: Sequence[LocalFile], newest: SnapshotManifest | None) -> UploadPlan:
    """Return which of `files` to upload, given the newest snapshot of the same job partition.

    Contents are compared by checksum, never by name: a restored store may give an old name to new
    content.
    """
    known = (
        {}
        if newest is None
        else {(file.size_bytes, file.sha256): file.object for file in newest.files}
    )
    contents = [(file, known.get((file.size_bytes, file.sha256))) for file in files]
    reused = tuple(
        ManifestFile(file.name, file.size_bytes, file.sha256, found)
        for file, found in contents
        if found is not None
    )
    return UploadPlan(reused, tuple(file for file, found in contents if found is None))


def is_unchanged(
    newest: SnapshotManifest | None, state_format: int, position: StatePosition
) -> bool:
    """Return whether the newest snapshot holds exactly this state already."""
    return newest is not None and (newest.state_format, newest.position) == (state_format, position)


def restore_candidates(
    local: StatePosition | None, pointers: Sequence[Pointer]
) -> tuple[Pointer, ...]:
    """Return the snapshots to try before the local state at `local` (None: there is none).

    The order is that of `pointers`: newest first. A snapshot is preferred if it has applied
    anything that the local state has not, because the log may have been deleted up to the snapshot.
    With several inputs each of the two may be ahead in one; then too the snapshot is preferred, and
    they are never mixed.
    """
    if local is None:
        return tuple(pointers)
    return tuple(p for p in pointers if p.position is not None and not local.covers(p.position))
