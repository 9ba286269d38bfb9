"""Requests leave history when no dataset promises to keep them, and when no replay needs them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.connections.object_store import MemoryObjectStore
from fennel_core.history.memory import MemoryHistoryFiles
from fennel_core.history.request_pruning import PrunedRequests, expired_files, prune_requests
from fennel_core.history.store import HistoryFile
from fennel_core.history.topics import request_history_us
from fennel_core.ledger.store import HistoryRange
from fennel_core.ledger.topic_amounts import unreadable_messages
from fennel_core.vocab.ids import DatasetName, Micros, Offset, PartitionIndex, TopicName
from tests.support import ingest_world

TOPIC = TopicName("w.raw.e.1")
PART = PartitionIndex(0)


def catalog_of(**datasets: tuple[TopicName, int]) -> Catalog:
    """Return a version with source datasets: raw topic and `history` of each."""
    sources, views = [], []
    for name, (raw, history_us) in datasets.items():
        dataset = DatasetName(name)
        made = replace(ingest_world.binding(), dataset=dataset, raw_topic=raw)
        sources.append(made)
        views.append(
            DatasetView(dataset, 1, made.schema, made.topic, None, True, True, (), True, history_us)
        )
    return Catalog(ingest_world.WORKSPACE, tuple(views), tuple(sources), (), 1)


def file(number: int, first: int, following: int, youngest_us: int | None) -> HistoryFile:
    at = None if youngest_us is None else Micros(youngest_us)
    rows = 0 if at is None else following - first
    key = f"history/{TOPIC}/0/{number}"
    return HistoryFile(TOPIC, PART, Offset(first), Offset(following), key, rows, 9, at, at)


@st.composite
def partitions(draw: st.DrawFn) -> list[HistoryFile]:
    """Draw the files of a partition; their times are mostly ascending."""
    lengths = draw(st.lists(st.integers(1, 5), max_size=6))
    times = [draw(st.none() | st.integers(10 * n, 10 * n + 25)) for n in range(len(lengths))]
    firsts = [sum(lengths[:n]) for n in range(len(lengths))]
    return [
        file(n, first, first + length, at)
        for n, (first, length, at) in enumerate(zip(firsts, lengths, times, strict=True))
    ]


@given(files=partitions(), oldest=st.integers(0, 90), needed=st.none() | st.integers(0, 30))
def test_only_old_requests_that_no_reader_needs_are_deleted(
    files: list[HistoryFile], oldest: int, needed: int | None
) -> None:
    limit = None if needed is None else Offset(needed)
    gone = expired_files(files, Micros(oldest), limit)
    assert gone == files[: len(gone)]
    assert not files or files[-1] not in gone
    assert all(each.max_ts is None or each.max_ts < oldest for each in gone)
    assert needed is None or all(each.next_offset <= needed for each in gone)
    # Nothing that may go stays, besides what is behind something that must stay.
    if len(gone) < len(files) - 1:
        kept = files[len(gone)]
        young = kept.max_ts is not None and kept.max_ts >= oldest
        assert young or (needed is not None and kept.next_offset > needed)


@given(files=partitions(), oldest=st.integers(0, 90), start=st.integers(0, 30))
def test_a_plan_counts_what_pruning_deleted(
    files: list[HistoryFile], oldest: int, start: int
) -> None:
    gone = expired_files(files, Micros(oldest), None)
    left = files[len(gone) :]
    held = {(TOPIC, PART): HistoryRange(left[0].first_offset, left[-1].next_offset)} if left else {}
    readable = {n for each in left for n in range(each.first_offset, each.next_offset)}
    lost = [n for n in range(start) if n not in readable]
    assert unreadable_messages({(TOPIC, PART): Offset(start)}, held) == {TOPIC: len(lost)}


@pytest.fixture
async def files() -> MemoryHistoryFiles:
    """Three files of the topic, received at 10, 20 and 30, and one of another topic."""
    made = MemoryHistoryFiles()
    for number in range(3):
        assert await made.add(file(number, 4 * number, 4 * number + 4, 10 * number + 10))
    return made


async def test_expired_files_lose_row_and_object(files: MemoryHistoryFiles) -> None:
    objects = MemoryObjectStore(lambda: datetime.now(UTC))
    for key in await files.keys(TOPIC):
        await objects.put(key, b"rows")
    kept_us = {TOPIC: 25}

    async def prune(now_us: int, needed: int) -> PrunedRequests:
        at = {(TOPIC, PART): Offset(needed)}
        return await prune_requests(files, objects, kept_us, at, Micros(now_us))

    assert await prune(35, needed=99) == PrunedRequests(0, 0), "received exactly 25 ago"
    assert await prune(36, needed=3) == PrunedRequests(0, 0), "a replay may read it again"
    assert await prune(36, needed=99) == PrunedRequests(1, 4)
    assert await prune(999, needed=99) == PrunedRequests(1, 4), "the last file stays"
    (left,) = await files.files(TOPIC, PART)
    assert [each.key for each in await objects.list_objects("history/")] == [left.object_key]


async def test_an_endpoint_that_no_version_reads_keeps_its_requests(
    files: MemoryHistoryFiles,
) -> None:
    objects = MemoryObjectStore(lambda: datetime.now(UTC))
    assert await prune_requests(files, objects, {}, {}, Micros(10**12)) == PrunedRequests(0, 0)


def test_requests_are_kept_for_the_longest_history_of_the_datasets_of_all_branches() -> None:
    short, long = catalog_of(Users=(TOPIC, 5)), catalog_of(Users=(TOPIC, 3), Orders=(TOPIC, 9))
    assert request_history_us([short]) == {TOPIC: 5}
    assert request_history_us([short, long]) == request_history_us([long, short]) == {TOPIC: 9}


def test_a_history_that_is_not_known_keeps_everything() -> None:
    unknown = catalog_of(Users=(TOPIC, 0), Orders=(TopicName("other"), 4))
    known = catalog_of(Users=(TOPIC, 9))
    assert request_history_us([known, unknown, known]) == {TopicName("other"): 4}
