"""The parts of a read: what each task of Spark reads. Pure.

Theory. What must be computed together decides where a read may be cut. The versions of a key have
one key group, so keyed reads are cut between key groups, and every part reads the row groups that
have its own. Other rows stand alone, so such reads are cut between files; only rows that were
retracted somewhere are left to the first part of their partition.

Example. A partition has 3 million versions of a keyed dataset in files and owns key groups 0 to 63.
With a million rows per part, the parts have groups 0–20, 21–41 and 42–63.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fennel_core.dataframes.contents import AggregateRead, ContentRead, DatasetRead
from fennel_core.history.conditions import AnyOf, Condition, Conditions, groups_of_keys
from fennel_core.history.parquet import GROUP
from fennel_core.history.roll import TopicLayout
from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.operators.rows import frame_columns
from fennel_core.vocab.keys import KEY_GROUPS, partition_of_group

PART_ROWS: Final = 1_000_000
"""Versions that a task reads if it can: some hundred megabytes of memory."""


@dataclass(frozen=True, slots=True)
class TopicInput:
    """The topic that a read reads: a slice of every partition, and the layout of its files."""

    slices: tuple[TopicSlice, ...]
    layout: TopicLayout


@dataclass(frozen=True, slots=True)
class ReadPart:
    """What a task reads: the rows of `own` that satisfy `conditions`.

    `whole`: everything of the partition that is read. `first`: the part that computes the rows of
    the partition that were retracted somewhere.
    """

    conditions: Conditions
    own: TopicSlice
    whole: TopicSlice
    first: bool


def parts_of(
    read: DatasetRead, pushed: Sequence[Condition], topic: TopicInput, part_rows: int = PART_ROWS
) -> Iterator[ReadPart]:
    """Yield the parts of a read. `pushed`: what all versions satisfy that are of interest."""
    keys = topic.layout.keys
    conditions = Conditions((*pushed, *read.within), keys)
    first, last = conditions.span(topic.layout.timestamp)
    groups = groups_of_keys(pushed, keys, frame_columns(read.schema))
    for each in topic.slices:
        whole = each.between(first, last)
        owned = _owned_groups(each, len(topic.slices)) if keys else frozenset()
        wanted = owned if groups is None else owned & groups
        if not _has_records(whole) or (keys and not wanted):
            continue
        if groups is not None:
            selected = conditions.also(AnyOf(GROUP, tuple(sorted(wanted))))
        else:
            selected = conditions
        match read:
            case ContentRead() if read.schema.keyed:
                yield from _by_groups(selected, whole, sorted(wanted), part_rows)
            case AggregateRead():
                yield from _by_groups(selected, whole, sorted(wanted), part_rows)
            case _:
                yield from _by_files(selected, whole, part_rows)


def _by_groups(
    conditions: Conditions, whole: TopicSlice, groups: Sequence[int], part_rows: int
) -> Iterator[ReadPart]:
    count = min(max(-(-_rows(whole) // part_rows), 1), max(len(groups), 1))
    if count == 1:
        yield ReadPart(conditions, whole, whole, first=True)
        return
    for number in range(count):
        begin, stop = (n * len(groups) // count for n in (number, number + 1))
        own = AnyOf(GROUP, tuple(groups[begin:stop]))
        yield ReadPart(conditions.also(own), whole, whole, first=number == 0)


def _by_files(conditions: Conditions, whole: TopicSlice, part_rows: int) -> Iterator[ReadPart]:
    runs: list[list[HistoryFile]] = [[]]
    for file in whole.files:
        if runs[-1] and sum(each.row_count for each in runs[-1]) + file.row_count > part_rows:
            runs.append([])
        runs[-1].append(file)
    for number, files in enumerate(runs):
        # The tail is read with the last files.
        tail = whole.tail_first if number == len(runs) - 1 else whole.end
        own = replace(whole, files=tuple(files), tail_first=tail)
        yield ReadPart(conditions, own, whole, first=number == 0)


def _rows(part: TopicSlice) -> int:
    """Return how many versions a slice has about: a record of the tail has one or more."""
    return sum(file.row_count for file in part.files) + part.end - part.tail_first


def _has_records(part: TopicSlice) -> bool:
    return bool(part.files) or part.tail_first < part.end


def _owned_groups(part: TopicSlice, partitions: int) -> frozenset[int]:
    number = part.partition[1]
    return frozenset(g for g in range(KEY_GROUPS) if partition_of_group(g, partitions) == number)
