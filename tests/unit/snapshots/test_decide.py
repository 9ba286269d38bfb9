"""What is uploaded, kept and deleted."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.snapshots.manifest import (
    FORMAT,
    ManifestFile,
    ManifestInvalid,
    SnapshotManifest,
    StatePosition,
    decode_manifest,
    encode_manifest,
)
from fennel_core.snapshots.store import Pointer, Stored
from fennel_core.snapshots.transfer_plan import (
    LocalFile,
    garbage,
    is_unchanged,
    plan_pruning,
    plan_uploads,
    restore_candidates,
)
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
POSITION = StatePosition(7, Offset(9), {TopicName("in"): Offset(5)})


def manifest(*files: ManifestFile) -> SnapshotManifest:
    return SnapshotManifest(FORMAT, JobId("j"), PartitionIndex(0), Epoch(3), 1, POSITION, files)


def pointer(number: int, taken_at: datetime) -> Pointer:
    return Pointer(JobId("j"), PartitionIndex(0), number, Epoch(1), f"m{number}", "", taken_at)


def standing(number: int, replayed: int, **offsets: int) -> Pointer:
    position = StatePosition(
        number,
        Offset(replayed),
        {TopicName(topic): Offset(offset) for topic, offset in offsets.items()},
    )
    return dataclasses.replace(pointer(number, NOW), position=position)


def test_a_name_that_came_back_with_another_content_is_uploaded_again() -> None:
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


def test_a_snapshot_stays_for_a_grace_period_after_it_became_one_too_many() -> None:
    rows = [
        pointer(4, NOW - HOUR / 2),
        pointer(3, NOW - 2 * HOUR),
        pointer(2, NOW - 5 * HOUR),
        pointer(1, NOW - 9 * HOUR),
    ]
    plan = plan_pruning(rows, 2, HOUR, NOW)
    assert [p.number for p in plan.surplus] == [1], (
        "2 is one too many only since 4 was taken, half an hour ago"
    )
    assert [p.number for p in plan_pruning(rows, 2, HOUR, NOW + HOUR).surplus] == [2, 1]


@given(
    ages=st.lists(st.integers(0, 1000), max_size=8),
    keep=st.integers(1, 4),
    grace=st.integers(0, 100),
)
def test_the_newest_are_never_surplus_and_everything_is_kept_or_surplus(
    ages: list[int], keep: int, grace: int
) -> None:
    times = sorted(ages)
    rows = [
        pointer(len(times) - place, NOW - timedelta(minutes=age)) for place, age in enumerate(times)
    ]
    plan = plan_pruning(rows, keep, timedelta(minutes=grace), NOW)
    assert plan.kept[:keep] == tuple(rows[:keep])
    assert list(plan.kept + plan.surplus) == rows


def test_only_old_objects_that_no_snapshot_names_are_garbage() -> None:
    stored = [
        Stored("named", NOW - 9 * HOUR),
        Stored("old", NOW - 2 * HOUR),
        Stored("being written", NOW - HOUR / 2),
    ]
    assert garbage(stored, {"named"}, HOUR, NOW) == ["old"]


def test_a_manifest_comes_back_as_it_was_written() -> None:
    written = manifest(ManifestFile("1.sst", 1, "a", "o/1"), ManifestFile("2.sst", 2, "b", "o/2"))
    assert decode_manifest(encode_manifest(written)) == written


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"null", encode_manifest(manifest()).replace(b'"format":1', b'"format":2')]
)
def test_what_is_no_manifest_of_this_format_is_refused(body: bytes) -> None:
    with pytest.raises(ManifestInvalid):
        decode_manifest(body)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc/passwd"])
def test_a_manifest_names_no_file_outside_its_folder(name: str) -> None:
    with pytest.raises(ManifestInvalid):
        encode_manifest(manifest(ManifestFile(name, 1, "a", "o/1")))


def test_local_state_is_preferred_to_snapshots_that_have_seen_no_more() -> None:
    local = StatePosition(9, Offset(20), {TopicName("a"): Offset(7), TopicName("b"): Offset(7)})
    newer, same, older = standing(3, 21, a=7, b=7), standing(2, 20, a=7, b=7), standing(1, 20, a=6)
    assert restore_candidates(local, [newer, same, older]) == (newer,)
    assert restore_candidates(None, [newer, same, older]) == (newer, same, older)


def test_a_snapshot_that_has_seen_more_of_any_input_comes_first() -> None:
    local = StatePosition(9, Offset(0), {TopicName("a"): Offset(7)})
    assert restore_candidates(local, [standing(2, 0, a=2, b=1)]) == (standing(2, 0, a=2, b=1),)
    assert restore_candidates(StatePosition(0, Offset(0), {}), [standing(1, 1)]) == (
        standing(1, 1),
    )


def test_local_state_is_not_left_for_a_snapshot_of_which_nobody_knows_where_it_stands() -> None:
    assert restore_candidates(StatePosition(1, Offset(1), {}), [pointer(2, NOW)]) == ()
    assert restore_candidates(None, [pointer(2, NOW)]) == (pointer(2, NOW),)
