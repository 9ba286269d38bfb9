"""A run searches files of so many bytes for rows that leave, and the next run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.history.erasing import TopicErasures
from fennel_core.history.erasing_run import ErasedRowsRemoval
from fennel_core.history.expired_topics import Expiries, ReadExpiries, workspace_of
from fennel_core.history.expiring import TopicExpiry
from fennel_core.history.expiring_run import ExpiredRowsRemoval
from fennel_core.history.maintenance import MaintenanceResult
from fennel_core.history.memory import MemoryHistoryFiles
from fennel_core.history.removals import RemovedRows, Replacer, split_run
from fennel_core.history.store import HistoryFile, Readers
from fennel_core.vocab.ids import DatasetName, Micros, Offset, PartitionIndex, TopicName

PART, HOUR = PartitionIndex(0), timedelta(hours=1)
BIG, SMALL = TopicName("w.topic.big.1"), TopicName("w.topic.small.1")
OLDEST = Micros(1_000)


class Worker:
    """Notes the files that it searches; every third loses a row."""

    def __init__(self) -> None:
        self.searched: list[str] = []

    async def remove_erased(
        self, files: Sequence[HistoryFile], erasures: Mapping[TopicName, TopicErasures]
    ) -> list[HistoryFile]:
        return [
            replace(
                self.made(file, "removed_rows"),
                searched_for=erasures[file.topic].dataset,
                searched_to=erasures[file.topic].newest,
            )
            for file in files
        ]

    async def remove_expired(
        self, files: Sequence[HistoryFile], expiries: Mapping[TopicName, TopicExpiry]
    ) -> list[HistoryFile]:
        return [
            replace(self.made(file, "expired_rows"), expiry_searched_to=expiries[file.topic].oldest)
            for file in files
        ]

    def made(self, file: HistoryFile, lost: str) -> HistoryFile:
        self.searched.append(file.object_key)
        if file.first_offset % 3 or not file.row_count:
            return file
        fewer = {"row_count": file.row_count - 1, lost: getattr(file, lost) + 1}
        return replace(file, object_key=f"{file.object_key}+", **fewer)  # type: ignore[arg-type]  # both are integers


async def written(**sizes: Sequence[int]) -> MemoryHistoryFiles:
    """Return an index of files with these sizes by topic; a file has the name of its topic and its
    number.
    """
    files = MemoryHistoryFiles()
    for topic, of_topic in sizes.items():
        for n, size in enumerate(of_topic):
            name = TopicName(f"w.topic.{topic}.1")
            place = (name, PART, Offset(n), Offset(n + 1), f"{topic}{n}")
            assert await files.add(HistoryFile(*place, 5, size, Micros(1), Micros(2)))
    return files


async def erase(
    files: MemoryHistoryFiles, most_bytes: int, **newest: int
) -> tuple[RemovedRows, list[str]]:
    """Run once; `newest`: the number of the newest erasure of each topic."""
    worker = Worker()
    erasures = {
        TopicName(f"w.topic.{topic}.1"): TopicErasures(DatasetName(topic), (), number)
        for topic, number in newest.items()
    }
    bounds = {(topic, PART): Offset(1_000) for topic in (BIG, SMALL)}
    run = ErasedRowsRemoval(Replacer(files, HOUR), worker, erasures, bounds, HOUR, most_bytes)
    return await run.run(), worker.searched


async def test_each_run_searches_so_many_bytes_and_reports_what_is_left() -> None:
    files = await written(big=[10] * 5)
    done, searched = await erase(files, 25, big=1)
    assert searched == ["big0", "big1"]
    assert done == RemovedRows(searched=2, rewritten=1, rows=1, left=3, left_bytes=30)
    done, searched = await erase(files, 25, big=1)
    assert (searched, done.left, done.left_bytes) == (["big2", "big3"], 1, 10)
    done, searched = await erase(files, 25, big=1)
    assert (searched, done.left) == (["big4"], 0)
    assert await erase(files, 25, big=1) == (RemovedRows(), [])


async def test_no_topic_waits_for_ever_behind_one_with_an_erasure_before_each_run() -> None:
    files = await written(big=[10] * 4, small=[10])
    searched = [(await erase(files, 20, big=n, small=1))[1] for n in range(1, 5)]
    assert searched == [["big0", "big1"], ["big2", "big3"], ["small0", "big0+"], ["big1", "big2"]]


async def test_a_file_larger_than_the_limit_is_searched_alone() -> None:
    files = await written(big=[99, 1])
    assert (await erase(files, 10, big=1))[1] == ["big0"]
    assert (await erase(files, 10, big=1))[1] == ["big1"]


def reads(topics: Mapping[TopicName, TopicExpiry]) -> ReadExpiries:
    """Return a function that returns these, for a workspace without readers."""

    async def read() -> Expiries:
        return Expiries(topics, {workspace_of(BIG): Readers(workspace_of(BIG), frozenset())})

    return read


async def test_runs_that_remove_old_rows_have_the_limit_too() -> None:
    files, worker = await written(big=[10] * 3, small=[10]), Worker()
    expiries = {topic: TopicExpiry("at", OLDEST, 10) for topic in (BIG, SMALL)}
    bounds = {(topic, PART): Offset(1_000) for topic in (BIG, SMALL)}
    run = ExpiredRowsRemoval(Replacer(files, HOUR), worker, reads(expiries), bounds, HOUR, 20)
    done = await run.run()
    assert worker.searched == ["big0", "big1"]
    assert done == {
        BIG: RemovedRows(searched=2, rewritten=1, rows=1, left=1, left_bytes=10),
        SMALL: RemovedRows(left=1, left_bytes=10),
    }
    done = await run.run()
    assert worker.searched[2:] == ["big2", "small0"]
    assert sum(each.left for each in done.values()) == 0
    later = dict.fromkeys((BIG, SMALL), TopicExpiry("at", Micros(OLDEST + 5), 10))
    worker.searched.clear()
    await replace(run, expiries=reads(later)).run()
    newest = {BIG: TopicExpiry("at", Micros(OLDEST + 9), 10), SMALL: later[SMALL]}
    await replace(run, expiries=reads(newest), most_bytes=10).run()
    assert worker.searched == ["big0+", "big1", "big2"], "those that were searched last come last"


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 30))
def test_a_run_has_as_many_files_as_fit_and_no_file_is_lost(sizes: list[int], most: int) -> None:
    place = (BIG, PART, Offset(0), Offset(1))
    files = [
        HistoryFile(*place, f"{n}", 1, size, Micros(1), Micros(1)) for n, size in enumerate(sizes)
    ]
    planned, left = split_run(files, most)
    taken = sum(file.size_bytes for file in planned)
    assert list(planned) == files[: len(planned)]
    assert len(planned) == 1 or taken <= most
    assert (len(planned) + left.left, taken + left.left_bytes) == (len(files), sum(sizes))
    assert planned or not files
    assert not left.left or taken + files[len(planned)].size_bytes > most


@pytest.mark.parametrize(("left", "said"), [(0, False), (3, True)])
def test_a_result_says_what_is_left(left: int, said: bool) -> None:
    erased = RemovedRows(searched=2, left=left, left_bytes=10 * left)
    expired = {BIG: RemovedRows(left=left, left_bytes=10 * left)}
    text = str(MaintenanceResult(erased, expired, None, retention=True))
    assert (f"left to the next run by FENNEL_HISTORY_REWRITE_BYTES: {2 * left}" in text) == said
    assert ("(60 bytes)" in text) == said
