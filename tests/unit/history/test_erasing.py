"""What a file of history has left of its rows when keys are erased."""

from __future__ import annotations

import io
from dataclasses import replace

import polars as pl
import pytest

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.history import parquet
from fennel_core.history.compaction import Merge
from fennel_core.history.erasing import TopicErasures, remove_erased
from fennel_core.history.merging import MergeRefused, merge_files
from fennel_core.history.store import HistoryFile
from fennel_core.vocab.ids import DatasetName, Micros, Offset, PartitionIndex
from fennel_core.vocab.keys import key_bytes
from tests.support.history_world import LAYOUT, TOPIC, batch

DATASET = DatasetName("Users")
COLUMNS = ["k", "at", "__pos"]


def stored(first: int, rows: int, objects: dict[str, bytes]) -> HistoryFile:
    """Store a file of one record, whose rows have the keys 0 to 4 in turn."""
    frame = parquet.file_frame([(Offset(first), batch(10 * first, rows))], LAYOUT.keys)
    body = objects[f"{first}"] = parquet.encode_file(frame)
    place = (TOPIC, PartitionIndex(0), Offset(first), Offset(first + 1), f"{first}")
    times = (Micros(1), Micros(2)) if rows else (None, None)
    return HistoryFile(*place, rows, len(body), *times, min_stamp=7)


def erasing(*kinds: tuple[list[str], pl.DataFrame]) -> TopicErasures:
    keys = (ErasedKeys(tuple(by), frozenset(key_bytes(rows, by))) for by, rows in kinds)
    return TopicErasures(DATASET, tuple(keys), 9)


def numbers(*values: int) -> pl.DataFrame:
    return pl.DataFrame({"k": values}, schema={"k": pl.Int64})


def removed(file: HistoryFile, erasures: TopicErasures, objects: dict[str, bytes]) -> HistoryFile:
    made = remove_erased(file, erasures, objects.get, objects.__setitem__)
    assert isinstance(made, HistoryFile)
    assert (made.searched_for, made.searched_to, made.min_stamp) == (DATASET, 9, 7)
    assert (made.first_offset, made.next_offset) == (file.first_offset, file.next_offset)
    return made


def test_rows_leave_and_the_others_keep_their_order() -> None:
    objects: dict[str, bytes] = {}
    file = stored(0, 10, objects)
    made = removed(file, erasing((["k"], numbers(1, 3, 99))), objects)
    assert (made.row_count, made.removed_rows, made.min_ts, made.max_ts) == (6, 4, 1, 2)
    assert made.size_bytes == len(objects[made.object_key])
    before = parquet.decode_file(objects[file.object_key])
    left = parquet.decode_file(objects[made.object_key])
    assert left.equals(before.filter(~pl.col("k").is_in([1, 3])))


def test_a_file_without_such_rows_stays_as_it_is() -> None:
    objects: dict[str, bytes] = {}
    file = stored(0, 10, objects)
    unknown = pl.DataFrame({"other": [1]})
    for erasures in (erasing((["k"], numbers(99))), erasing((["other"], unknown)), erasing()):
        assert removed(file, erasures, objects).object_key == file.object_key
    empty = stored(5, 0, {})
    made = remove_erased(empty, erasing((["k"], numbers(1))), {}.get, {}.__setitem__)
    assert isinstance(made, HistoryFile), "its object is not read"
    assert (made.object_key, made.searched_to) == ("5", 9)


def test_keys_of_several_columns_and_of_several_kinds_are_erased() -> None:
    objects: dict[str, bytes] = {}
    file = stored(0, 10, objects)
    rows = parquet.decode_file(objects[file.object_key]).sort("at")
    both = ["at", "k"]
    made = removed(file, erasing((both, rows[2:4]), (["k"], numbers(0))), objects)
    left = parquet.decode_file(objects[made.object_key]).sort("at")
    assert left["at"].to_physical().to_list() == [1, 4, 6, 7, 8, 9]


def test_a_file_that_lost_all_rows_is_read_and_merged_like_any_other() -> None:
    objects: dict[str, bytes] = {}
    made = removed(stored(0, 5, objects), erasing((["k"], numbers(*range(5)))), objects)
    assert (made.row_count, made.removed_rows, made.min_ts, made.max_ts) == (0, 5, None, None)
    source = io.BytesIO(objects[made.object_key])
    assert sum(each.height for each in parquet.file_batches(source, COLUMNS)) == 0
    merged = merge_files(Merge((made, stored(1, 3, objects))), objects.get, objects.__setitem__)
    assert isinstance(merged, HistoryFile)
    assert (merged.row_count, merged.removed_rows, merged.searched_to) == (3, 5, 0)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (("Users", 5, "Users", 3), ("Users", 3)),
        (("Users", 5, "Customers", 5), ("", 0)),
        (("Users", 5, "", 0), ("", 0)),
    ],
)
def test_a_merged_file_was_searched_as_far_as_each_of_its_files_with_rows(
    known: tuple[str, int, str, int], expected: tuple[str, int]
) -> None:
    objects: dict[str, bytes] = {}
    files = [stored(n, rows, objects) for n, rows in enumerate((3, 2, 0))]
    for n in (0, 1):
        dataset, upto = DatasetName(str(known[2 * n])), int(known[2 * n + 1])
        files[n] = replace(files[n], searched_for=dataset, searched_to=upto, min_stamp=4 + n)
    files[2] = replace(files[2], min_stamp=0)
    merged = merge_files(Merge(tuple(files)), objects.get, objects.__setitem__)
    assert isinstance(merged, HistoryFile)
    assert (merged.searched_for, merged.searched_to, merged.min_stamp) == (*expected, 4)


def test_a_missing_object_is_refused() -> None:
    file = stored(0, 5, {})
    found = remove_erased(file, erasing((["k"], numbers(1))), {}.get, {}.__setitem__)
    assert found == MergeRefused("object 0 is missing from the bucket")
