"""The history writer's passes: compare topics with the index, roll what is due, prune.

Theory. A pass reads which topics have a history, where their rows end and where they end
themselves, selects the partitions that are due and rolls them. It keeps nothing that matters: what
it remembers between passes (how long a partition has waited, that only control records lie behind
its rows) saves work and may be lost at any time.

What history lacks is published before a pass rolls, too, and can be counted again when a pass has
failed: times go on, so that topics become late also while nothing succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from fennel_core.history.backlog import Backlog, RollRule, backlogs, due_partitions
from fennel_core.history.errors import RollFailed
from fennel_core.history.kafka import LogBounds
from fennel_core.history.roll import TopicLayout
from fennel_core.history.store import HistoryFile, HistoryFiles, HistoryTotals
from fennel_core.history.topic_counts import TopicCounts, count_topics
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition

log = structlog.get_logger(__name__)

DELETE_BATCH: Final = 1_000
"""Objects per delete call."""


class TopicSource(Protocol):
    """Which topics exist; `history.topics.HistoryTopics` is the real implementation."""

    async def with_history(self) -> Mapping[TopicName, TopicLayout]:
        """Return the topics that have a history, with their layouts."""
        ...

    async def alive(self) -> Sequence[TopicName]:
        """Return every topic that is not being destroyed."""
        ...


class Roller(Protocol):
    """Rolls partitions from `Backlog.start` at least to `Backlog.end`, batch by batch."""

    async def roll(
        self,
        due: Mapping[TopicPartition, Backlog],
        layouts: Mapping[TopicName, TopicLayout],
        publisher: BatchPublisher,
    ) -> None:
        """Roll the partitions in `due`; raises SystemUnavailable or RollFailed."""
        ...


@dataclass
class BatchPublisher:
    """Adds the rows of a roller's batches.

    `covered`: below these offsets every data record has its row; it grows with each batch.
    """

    files: HistoryFiles
    covered: dict[TopicPartition, Offset]
    added_files: int = 0
    added_rows: int = 0

    async def history_ends(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Return where the rows of `partitions` end now; those without rows are absent."""
        ends = await self.files.ends({topic for topic, _ in partitions})
        return {each: end for each, end in ends.items() if each in set(partitions)}

    async def publish(
        self, files: Sequence[HistoryFile], batch_ends: Mapping[TopicPartition, Offset]
    ) -> None:
        """Add the rows of a batch, in order of offsets.

        Raises RollFailed if another writer added rows at the same offsets. The roller must then
        end: its next batch would begin where this one ended, and the rows may end before that.
        """
        for file in files:
            if not await self.files.add(file):
                raise RollFailed(
                    f"lost the race to another writer at {file.topic}[{file.part}]; object "
                    f"{file.object_key} is orphaned"
                )
            self.added_files += 1
            self.added_rows += file.row_count
        self.covered.update(batch_ends)


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass added, and what history holds and lacks after it, by topic."""

    files: int
    rows: int
    topics: Mapping[TopicName, TopicCounts]


@dataclass
class HistoryWriter:
    """Rolls topics into history.

    `bounds` reads the log, and may lack topics that the process may not describe; `clock` is
    monotonic, in seconds; `publish` receives the counts of a pass before it rolls.
    """

    files: HistoryFiles
    topics: TopicSource
    bounds: Callable[[Sequence[TopicName]], Mapping[TopicPartition, LogBounds]]
    roller: Roller
    rule: RollRule
    clock: Callable[[], float]
    publish: Callable[[Mapping[TopicName, TopicCounts]], None] = lambda _: None
    _totals: Mapping[TopicName, HistoryTotals] = field(default_factory=dict)
    _topics: frozenset[TopicName] = frozenset()
    _unknown: dict[TopicName, float] = field(default_factory=dict)
    _covered: dict[TopicPartition, Offset] = field(default_factory=dict)
    _behind: dict[TopicPartition, Backlog] = field(default_factory=dict)

    async def run_pass(self) -> PassResult:
        """Roll what is due; raises SystemUnavailable or RollFailed."""
        layouts = await self.topics.with_history()
        now_s = self.clock()
        await self._update_backlogs(layouts, now_s)
        self.publish(self.counts())
        publisher = BatchPublisher(self.files, self._covered)
        if due := due_partitions(self._behind, self.rule, now_s):
            await self.roller.roll(due, layouts, publisher)
            await self._update_backlogs(layouts, now_s)
        return PassResult(publisher.added_files, publisher.added_rows, self.counts())

    def counts(self) -> dict[TopicName, TopicCounts]:
        """Return what history held and lacked when it was last read, with the waiting times until
        now.
        """
        return count_topics(
            self._totals, self._topics, self._behind, self._unknown, self.rule, self.clock()
        )

    async def _update_backlogs(
        self, layouts: Mapping[TopicName, TopicLayout], now_s: float
    ) -> None:
        ends = await self.files.ends(list(layouts))
        bounds = await asyncio.to_thread(self.bounds, list(layouts))
        self._topics = frozenset(layouts)
        known = {topic for topic, _ in bounds}
        self._unknown = {
            topic: self._unknown.get(topic, now_s) for topic in layouts if topic not in known
        }
        self._covered = {
            partition: offset for partition, offset in self._covered.items() if partition in bounds
        }
        starts = {}
        for partition, bound in bounds.items():
            end = ends.get(partition, Offset(0))
            if bound.first > end and self._covered.get(partition, end) < bound.first:
                await self._skip(partition, end, bound.first)
            starts[partition] = max(end, bound.first, self._covered.get(partition, end))
        self._totals = await self.files.totals()
        self._behind = backlogs(
            starts,
            {partition: bound.end for partition, bound in bounds.items()},
            self._behind,
            now_s,
        )

    async def _skip(self, partition: TopicPartition, first: Offset, following: Offset) -> None:
        """Record that records are lost, before a file is made of those behind them."""
        if await self.files.skip(*partition, first, following):
            log.error(
                "records were deleted before history had them",
                topic=partition[0],
                part=partition[1],
                first=first,
                next=following,
            )
