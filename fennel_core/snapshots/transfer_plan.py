"""What is decided about snapshots without touching anything: what to upload, what to keep, what may
be deleted.

Theory. Deleting is the only dangerous act here, so it is late twice. A snapshot counts as kept
until it has been beyond the newest `keep` for a whole grace period: somebody may have begun to
restore from it just before. An object goes only when no kept snapshot names it and it is older than
the grace period: it may belong to a snapshot whose manifest is not written yet. An uploader reuses
only objects that the newest snapshot names, which is always among the kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fennel_core.snapshots.manifest import ManifestFile, SnapshotManifest, StatePosition
from fennel_core.snapshots.store import Pointer, Stored


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file of a checkpoint on this machine."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """`reused` files have an object already, `fresh` ones need one."""

    reused: tuple[ManifestFile, ...]
    fresh: tuple[LocalFile, ...]


@dataclass(frozen=True, slots=True)
class PruningPlan:
    kept: tuple[Pointer, ...]
    surplus: tuple[Pointer, ...]


def plan_uploads(files: Sequence[LocalFile], newest: SnapshotManifest | None) -> UploadPlan:
    """Which of `files` must be uploaded, given the newest snapshot of the same job partition.

    Equal contents are recognized by checksum, never by name: a store that was restored may give an
    old name to a new content.
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
    """Does the newest snapshot hold exactly this state already?"""
    return newest is not None and (newest.state_format, newest.position) == (state_format, position)


def covers(one: StatePosition, other: StatePosition) -> bool:
    """Has a state at `one` seen everything that a state at `other` has?"""
    return one.replayed >= other.replayed and all(
        one.offsets.get(topic, 0) >= offset for topic, offset in other.offsets.items()
    )


def restore_candidates(
    local: StatePosition | None, pointers: Sequence[Pointer]
) -> tuple[Pointer, ...]:
    """The snapshots to try before local state at `local` (None: there is none), in the order of
    `pointers`, newest first.

    A snapshot that has seen something the local state has not is better: the log may have been
    deleted behind the snapshot. States of several inputs may each have seen something that the
    other has not; then too the snapshot wins, and the two are never mixed.
    """
    if local is None:
        return tuple(pointers)
    return tuple(p for p in pointers if p.position is not None and not covers(local, p.position))


def plan_pruning(
    pointers: Sequence[Pointer], keep: int, grace: timedelta, now: datetime
) -> PruningPlan:
    """Which snapshots of one job partition stay; `pointers` newest first. One is surplus since the
    one `keep` places newer exists.
    """
    assert keep >= 1, "the newest snapshot always stays"
    assert list(pointers) == sorted(pointers, key=lambda pointer: -pointer.number), "newest first"
    surplus = [
        pointer
        for place, pointer in enumerate(pointers)
        if place >= keep and pointers[place - keep].taken_at < now - grace
    ]
    return PruningPlan(tuple(p for p in pointers if p not in surplus), tuple(surplus))


def garbage(
    stored: Sequence[Stored], named: Collection[str], grace: timedelta, now: datetime
) -> list[str]:
    """Keys of the objects that no kept snapshot names and that nobody can be about to name."""
    return [each.key for each in stored if each.key not in named and each.written_at < now - grace]
