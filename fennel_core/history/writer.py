"""The history writer's rounds: look, decide, roll, add; and late deletion.

Theory. A round asks which topics there are, where their rows end and where they end, picks the
partitions that are due and has them rolled. It keeps nothing that matters: what is remembered
between rounds (how long a partition has waited, that nothing but control records lies behind its
rows) only saves work and may be lost at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from fennel_core.history.backlog import Backlog, RollRule, backlogs, due_partitions, strays
from fennel_core.history.kafka import LogBounds
from fennel_core.history.roll import PREFIX, TopicLayout, topic_of_key, topic_prefix
from fennel_core.history.store import HistoryFile, HistoryFiles, HistoryTotals
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition

log = structlog.get_logger(__name__)

KEYS_AT_ONCE: Final = 1_000


class TopicSource(Protocol):
    """See `history.topics.Topics`."""

    async def wanted(self) -> Mapping[TopicName, TopicLayout]: ...
    async def alive(self) -> Sequence[TopicName]: ...


class Objects(Protocol):
    """Objects below `history/`; StoreError when the bucket cannot be used."""

    async def written(self, prefix: str) -> Mapping[str, datetime]: ...
    async def remove(self, keys: Sequence[str]) -> None: ...


class Roller(Protocol):
    """Rolls partitions from `Backlog.start` to their ends or further, batch by batch, into `rows`.
    StoreError or RollFailed.
    """

    async def roll(
        self,
        due: Mapping[TopicPartition, Backlog],
        layouts: Mapping[TopicName, TopicLayout],
        rows: BatchPublisher,
    ) -> None: ...


class RollFailed(Exception):
    """A query ended with an error; what it added by then stays, and the next round goes on from
    there.
    """


@dataclass
class BatchPublisher:
    """The rows as a roller sees them. `covered`: below these offsets every data record has its row;
    it grows with each batch.
    """

    files: HistoryFiles
    covered: dict[TopicPartition, Offset]
    added_files: int = 0
    added_rows: int = 0

    async def floors(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        ends = await self.files.ends({topic for topic, _ in places})
        return {place: end for place, end in ends.items() if place in set(places)}

    async def publish(
        self, files: Sequence[HistoryFile], ends: Mapping[TopicPartition, Offset]
    ) -> None:
        """Add the rows of a batch whose ranges end at `ends`, in order of offsets. RollFailed when
        another writer was faster.

        Then the roller must end: its next batch would begin where this one ended, and the rows may
        end before that.
        """
        for file in files:
            if not await self.files.add(file):
                raise RollFailed(
                    f"another writer was faster at {file.topic}[{file.part}]: "
                    f"{file.object_key} is left over"
                )
            self.added_files += 1
            self.added_rows += file.row_count
        self.covered.update(ends)


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a round did, what history holds after it, and what is left: messages behind, by topic
    that shall have a history.
    """

    files: int
    rows: int
    totals: Mapping[TopicName, HistoryTotals]
    lag: Mapping[TopicName, int]


@dataclass
class HistoryWriter:
    """`bounds` asks the log; `clock` gives seconds that never go back."""

    files: HistoryFiles
    topics: TopicSource
    bounds: Callable[[Sequence[TopicName]], Mapping[TopicPartition, LogBounds]]
    roller: Roller
    rule: RollRule
    clock: Callable[[], float]
    _covered: dict[TopicPartition, Offset] = field(default_factory=dict)
    _behind: dict[TopicPartition, Backlog] = field(default_factory=dict)

    async def round(self) -> PassResult:
        """Roll what is due. StoreError, RollFailed."""
        layouts = await self.topics.wanted()
        now_s = self.clock()
        bounds = await self._look(layouts, now_s)
        rows = BatchPublisher(self.files, self._covered)
        if ready := due_partitions(self._behind, self.rule, now_s):
            await self.roller.roll(ready, layouts, rows)
            bounds = await self._look(layouts, now_s)
        lag = {topic: 0 for topic, _ in bounds}
        for (topic, _), backlog in self._behind.items():
            lag[topic] += backlog.records
        return PassResult(rows.added_files, rows.added_rows, await self.files.totals(), lag)

    async def _look(
        self, layouts: Mapping[TopicName, TopicLayout], now_s: float
    ) -> Mapping[TopicPartition, LogBounds]:
        """Bring `_behind` up to date."""
        ends = await self.files.ends(list(layouts))
        bounds = await asyncio.to_thread(self.bounds, list(layouts))
        self._covered = {
            place: offset for place, offset in self._covered.items() if place in bounds
        }
        starts = {}
        for place, bound in bounds.items():
            end = ends.get(place, Offset(0))
            if bound.first > end and self._covered.get(place, end) < bound.first:
                log.error(
                    "records were gone before they came into history",
                    topic=place[0],
                    part=place[1],
                    first=end,
                    next=bound.first,
                )
            starts[place] = max(end, bound.first, self._covered.get(place, end))
        self._behind = backlogs(
            starts, {place: bound.end for place, bound in bounds.items()}, self._behind, now_s
        )
        return bounds


@dataclass(frozen=True, slots=True)
class PrunedHistory:
    topics: int
    objects: int


async def prune_history(
    files: HistoryFiles, topics: TopicSource, objects: Objects, grace: timedelta
) -> PrunedHistory:
    """Forget topics that the bank has not known for `grace`, and delete objects older than `grace`
    that no row names.

    Rows go first: an object without a row is found by listing, a row without its object would be a
    hole in what history says it holds.
    """
    now = await files.now()
    gone = [
        topic
        for topic, since in (await files.orphans(await topics.alive())).items()
        if since < now - grace
    ]
    if gone:
        await files.remove(gone)
        log.info("history of deleted topics is forgotten", topics=gone)
    written = await objects.written(f"{PREFIX}/")
    deleted = 0
    for topic in sorted({topic_of_key(key) for key in written}):
        # Listed before the rows are read: an object that got its row in between is named by then.
        mine = {key: at for key, at in written.items() if key.startswith(topic_prefix(topic))}
        unnamed = strays(mine, await files.keys(topic), grace, now)
        for start in range(0, len(unnamed), KEYS_AT_ONCE):
            await objects.remove(unnamed[start : start + KEYS_AT_ONCE])
        deleted += len(unnamed)
    return PrunedHistory(len(gone), deleted)
