"""Law: history has each record of the topic once, wherever writers die, for all batch and file
sizes and any number of writers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.history.backlog import RollRule
from fennel_core.history.errors import RollFailed
from fennel_core.history.memory import MemoryHistoryFiles
from fennel_core.history.store import HistoryFiles
from fennel_core.history.writer import HistoryWriter
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.versions import decode
from tests.support.history_world import LAYOUT, TOPIC, Died, MemoryLog, MemoryRoller, content

PARTS = 2
NOON = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = st.tuples(st.integers(1, 9), st.sampled_from([1, 1500, 4000]))
"""Messages of a batch and bytes of a file: writers with other settings make other files."""
SIZES = st.lists(st.none() | st.integers(0, 3), max_size=8)


class OneTopic:
    async def with_history(self) -> dict[TopicName, Any]:
        return {TOPIC: LAYOUT}

    async def alive(self) -> list[TopicName]:
        return [TOPIC]


def process(
    log: MemoryLog,
    files: HistoryFiles,
    objects: dict[str, bytes],
    limits: tuple[int, int],
    fate: Iterator[bool],
) -> HistoryWriter:
    """Return a writer that has just started and has only the stored rows."""
    roller = MemoryRoller(log, objects, limits[0], limits[1], fate)
    return HistoryWriter(
        files, OneTopic(), log.bounds, roller, RollRule(enough_records=1, wait_s=0), lambda: 0.0
    )


@settings(deadline=None, max_examples=60)
@given(
    passes=st.lists(
        st.tuples(SIZES, SIZES, st.lists(st.booleans(), max_size=12)), min_size=1, max_size=5
    ),
    limits=LIMITS,
)
def test_a_writer_that_dies_anywhere_and_starts_again_leaves_each_record_once(
    passes: list[Any], limits: tuple[int, int]
) -> None:
    async def life() -> None:
        log, files, objects = MemoryLog(), MemoryHistoryFiles(), dict[str, bytes]()
        writer = process(log, files, objects, limits, iter(()))
        for *appended, deaths in passes:
            for part, sizes in enumerate(appended):
                log.append(part, sizes)
            writer.roller.fate = iter(deaths)  # type: ignore[attr-defined]  # a MemoryRoller
            try:
                await writer.run_pass()
            except Died:
                writer = process(log, files, objects, limits, iter(()))
        rolled = await writer.run_pass()
        assert sum(of.lag_records for of in rolled.topics.values()) == 0
        await holds(log, files, objects)

    asyncio.run(life())


@settings(deadline=None, max_examples=60)
@given(
    appended=st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=4),
    limits=st.tuples(LIMITS, LIMITS),
    turns=st.lists(st.booleans(), max_size=40),
    deaths=st.lists(st.booleans(), max_size=6),
)
def test_concurrent_writers_conflict_and_the_survivor_writes_each_record_once(
    appended: list[Any],
    limits: tuple[tuple[int, int], tuple[int, int]],
    turns: list[bool],
    deaths: list[bool],
) -> None:
    async def life() -> None:
        log, objects, order = MemoryLog(), dict[str, bytes](), iter(turns)
        files = Interleaved(order)
        writers = [
            process(log, files, objects, each, fate)
            for each, fate in zip(limits, (iter(()), iter(deaths)), strict=True)
        ]

        async def work(writer: HistoryWriter) -> None:
            for _ in range(3):
                try:
                    await writer.run_pass()
                except RollFailed:
                    continue  # the other one was faster
                except Died:
                    return

        for parts in appended:
            for part, sizes in enumerate(parts):
                log.append(part, sizes)
            await asyncio.gather(*(work(writer) for writer in writers))
        await writers[0].run_pass()
        await holds(log, files, objects)

    asyncio.run(life())


class Interleaved(MemoryHistoryFiles):
    """Rows whose users take turns: before each read or write the other writer may go first."""

    def __init__(self, turns: Iterator[bool]) -> None:
        super().__init__()
        self._turns = turns

    async def ends(self, topics: Any) -> Any:
        await self._turn()
        return await super().ends(topics)

    async def add(self, file: Any) -> bool:
        await self._turn()
        return await super().add(file)

    async def _turn(self) -> None:
        if next(self._turns, False):
            await asyncio.sleep(0)


async def holds(log: MemoryLog, files: HistoryFiles, objects: dict[str, bytes]) -> None:
    for place, records in log.records.items():
        expected = [
            (offset, position)
            for offset, value in enumerate(records)
            if value is not None
            for position in decode(value)["__pos"].to_list()
        ]
        assert await content(files, objects, place) == sorted(expected)
