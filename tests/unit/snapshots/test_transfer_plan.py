"""Which files are uploaded, and which snapshots are preferred to local state."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

from fennel_core.snapshots.manifest import FORMAT, ManifestFile, SnapshotManifest, StatePosition
from fennel_core.snapshots.store import Pointer
from fennel_core.snapshots.transfer_plan import (
    LocalFile,
    is_unchanged,
    plan_uploads,
    restore_candidates,
)
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POSITION = StatePosition(7, Offset(9), {TopicName("in"): Offset(5)})


def manifest(*files: ManifestFile) -> SnapshotManifest:
    return SnapshotManifest(FORMAT, JobId("j"), PartitionIndex(0), Epoch(3), 1, POSITION, files)


def pointer(number: int, taken_at: datetime) -> Pointer:
    return Pointer(JobId("j"), PartitionIndex(0), number, Epoch(1), f"m{number}", "", taken_at)


def positioned(number: int, replayed: int, **offsets: int) -> Pointer:
    position = StatePosition(
        number,
        Offset(replayed),
        {TopicName(topic): Offset(offset) for topic, offset in offsets.items()},
    )
    return dataclasses.replace(pointer(number, NOW), position=position)


def test_a_known_name_with_new_content_is_uploaded_again() -> None:
    newest = manifest(
        ManifestFile("8.sst", 3, "old", "o/8"), ManifestFile("9.sst", 3, "same", "o/9")
    )
    plan = plan_uploads(
        [
            LocalFile("8.sst", 3, "new"),
            LocalFile("10.sst", 3, "same"),
            LocalFile("9.sst", 4, "same"),
        ],
        newest,
    )
    assert plan.fresh == (LocalFile("8.sst", 3, "new"), LocalFile("9.sst", 4, "same"))
    assert plan.reused == (ManifestFile("10.sst", 3, "same", "o/9"),)


def test_a_state_is_unchanged_only_at_the_same_position_and_format() -> None:
    assert is_unchanged(manifest(), 1, POSITION)
    assert not is_unchanged(manifest(), 2, POSITION)
    assert not is_unchanged(manifest(), 1, StatePosition(7, Offset(10), POSITION.offsets))
    assert not is_unchanged(None, 1, POSITION)


def test_local_state_is_preferred_to_snapshots_that_have_applied_no_more() -> None:
    local = StatePosition(9, Offset(20), {TopicName("a"): Offset(7), TopicName("b"): Offset(7)})
    newer, same, older = (
        positioned(3, 21, a=7, b=7),
        positioned(2, 20, a=7, b=7),
        positioned(1, 20, a=6),
    )
    assert restore_candidates(local, [newer, same, older]) == (newer,)
    assert restore_candidates(None, [newer, same, older]) == (newer, same, older)


def test_a_snapshot_that_is_ahead_in_any_input_comes_first() -> None:
    local = StatePosition(9, Offset(0), {TopicName("a"): Offset(7)})
    assert restore_candidates(local, [positioned(2, 0, a=2, b=1)]) == (positioned(2, 0, a=2, b=1),)
    assert restore_candidates(StatePosition(0, Offset(0), {}), [positioned(1, 1)]) == (
        positioned(1, 1),
    )


def test_local_state_is_preferred_to_a_snapshot_of_unknown_position() -> None:
    assert restore_candidates(StatePosition(1, Offset(1), {}), [pointer(2, NOW)]) == ()
    assert restore_candidates(None, [pointer(2, NOW)]) == (pointer(2, NOW),)
