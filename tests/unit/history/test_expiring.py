"""Which files are searched for expired rows, and what is left of them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from fennel_core.blueprints.row_retention import RowRetention
from fennel_core.history import parquet
from fennel_core.history.compaction import Merge
from fennel_core.history.expired_topics import expiries
from fennel_core.history.expiring import TopicExpiry, remove_expired
from fennel_core.history.merging import MergeRefused, merge_files
from fennel_core.history.row_needs import RowClock, RowNeeds
from fennel_core.history.store import HistoryFile
from fennel_core.vocab import position
from fennel_core.vocab.ids import (
    DatasetName,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.vocab.position import Hlc
from tests.support.history_world import LAYOUT, TOPIC, batch

MS = 1000


def stored(first: int, rows: int, objects: dict[str, bytes], accepted_ms: int = 0) -> HistoryFile:
    """Store a file of one record, with rows at 10 * first and the next microseconds."""
    frame = parquet.file_frame([(Offset(first), batch(10 * first, rows))], LAYOUT.keys)
    stamp = Hlc(accepted_ms << position.COUNTER_BITS)
    stamps = pl.Series("__pos", position.stamp(stamp, 1, rows).to_pylist(), pl.Binary)
    frame = frame.with_columns(stamps)
    body = objects[f"{first}"] = parquet.encode_file(frame)
    place = (TOPIC, PartitionIndex(0), Offset(first), Offset(first + 1), f"{first}")
    times = (Micros(10 * first), Micros(10 * first + rows - 1)) if rows else (None, None)
    return HistoryFile(*place, rows, len(body), *times, min_stamp=stamp)


def removed(file: HistoryFile, oldest: int, objects: dict[str, bytes]) -> HistoryFile:
    expiry = TopicExpiry("at", Micros(oldest), 10)
    made = remove_expired(file, expiry, objects.get, objects.__setitem__)
    assert isinstance(made, HistoryFile)
    assert made.expiry_searched_to == oldest
    assert made.expired_to == (oldest if made.expired_rows > file.expired_rows else 0)
    assert (made.first_offset, made.next_offset) == (file.first_offset, file.next_offset)
    return made


def test_only_rows_before_the_oldest_time_leave_and_the_bounds_are_those_of_the_others() -> None:
    objects: dict[str, bytes] = {}
    file = stored(0, 10, objects)
    made = removed(file, 4, objects)
    assert (made.row_count, made.expired_rows, made.min_ts, made.max_ts) == (6, 4, 4, 9)
    assert (made.size_bytes, made.min_stamp) == (len(objects[made.object_key]), file.min_stamp)
    before = parquet.decode_file(objects[file.object_key])
    left = parquet.decode_file(objects[made.object_key])
    assert left.equals(before.filter(pl.col("at").to_physical() >= 4))
    again = removed(made, 7, objects)
    assert (again.row_count, again.expired_rows, again.removed_rows) == (3, 7, 0)


def test_a_row_that_was_accepted_later_stays_however_old_its_event_is() -> None:
    objects: dict[str, bytes] = {}
    for accepted_ms, oldest, left in ((5, 5 * MS, 3), (5, 5 * MS + 1, 0), (5, 6 * MS, 0)):
        file = stored(0, 3, objects, accepted_ms)
        assert removed(file, oldest, objects).row_count == left
        assert TopicExpiry("at", Micros(oldest), 0).is_due(file) == (left == 0)


def test_a_file_without_expired_rows_stays_as_it_is() -> None:
    objects: dict[str, bytes] = {}
    file = stored(1, 3, objects)
    assert removed(file, 10, objects) == replace(file, expiry_searched_to=Micros(10))


def test_a_file_that_lost_all_rows_is_merged_like_any_other() -> None:
    objects: dict[str, bytes] = {}
    made = removed(stored(0, 5, objects), 9, objects)
    assert (made.row_count, made.expired_rows, made.min_ts, made.max_ts) == (0, 5, None, None)
    assert not TopicExpiry("at", Micros(99), 0).is_due(made), "there is nothing to remove"
    merged = merge_files(Merge((made, stored(1, 3, objects))), objects.get, objects.__setitem__)
    assert isinstance(merged, HistoryFile)
    assert (merged.row_count, merged.expired_rows, merged.expired_to) == (3, 5, 9)
    assert merged.expiry_searched_to == 0, "the file with rows was not searched"


def test_a_merged_file_was_searched_as_far_as_each_of_its_files() -> None:
    objects: dict[str, bytes] = {}
    searched = [
        replace(stored(first, 1, objects), expiry_searched_to=Micros(to))
        for first, to in ((0, 9), (1, 5))
    ]
    merged = merge_files(Merge(tuple(searched)), objects.get, objects.__setitem__)
    assert isinstance(merged, HistoryFile)
    assert merged.expiry_searched_to == 5


def test_a_file_is_searched_when_a_tenth_of_the_time_has_passed_and_once_in_it() -> None:
    file = stored(10, 3, {})
    due = [at for at in range(90, 120) if TopicExpiry("at", Micros(at), 50).is_due(file)]
    assert due == list(range(106, 120))
    searched = replace(file, expiry_searched_to=Micros(110))
    due = [at for at in range(90, 130) if TopicExpiry("at", Micros(at), 50).is_due(searched)]
    assert due == list(range(115, 130))


def test_a_missing_object_is_refused() -> None:
    expiry = TopicExpiry("at", Micros(9), 10)
    found = remove_expired(stored(0, 5, {}), expiry, {}.get, {}.__setitem__)
    assert found == MergeRefused("object 0 is missing from the bucket")


def test_rows_age_by_the_slowest_clock() -> None:
    clicks, users = TopicName("w.topic.clicks.1"), TopicName("w.topic.users.1")
    idle = TopicName("idle.topic.clicks.1")
    of = (DatasetName("Clicks"),)
    kept = {
        clicks: RowRetention(30, "at", None, of),
        users: RowRetention(0, "at", "it is keyed", of),
        idle: RowRetention(30, "at", None, of),
    }
    shop = WorkspaceId("w")

    def oldest(
        clock: RowClock, now: int, *changing: WorkspaceId, dry_run: bool = False
    ) -> int | None:
        needs = RowNeeds(kept, {}, {shop: clock}, frozenset(changing))
        found = expiries(needs, now, dry_run=dry_run).topics
        assert all(found[each] == TopicExpiry("at", found[each].oldest, 30) for each in found)
        assert found.keys() <= {clicks}
        return found[clicks].oldest if found else None

    assert oldest(RowClock(110, 100), 90) == 60, "this machine's"
    assert oldest(RowClock(110, 80), 90) == 50, "that of the last rows"
    assert oldest(RowClock(70, 80), 90) == 40, "that which runs move on"
    ahead = RowClock(70, 80, step_us=7)
    assert oldest(ahead, 90) == 40
    assert oldest(ahead, 90, dry_run=True) == 47, "a dry run counts what the next one removes"
    assert oldest(RowClock(70, 80, keeps_old_rows=True), 90) is None
    kept_back = replace(ahead, keeps_old_rows=True)
    assert oldest(kept_back, 90, shop, dry_run=True) == 47, "so it counts this"
    assert oldest(RowClock(70, 80), 90, shop) is None, "a commit is between T1 and T2"
    assert expiries(RowNeeds(kept, {}, {}), 90).topics == {}
