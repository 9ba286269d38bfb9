"""One compaction: plan the merges of every partition, make the files, replace the rows.

Theory. A batch of merges is made at a time, and each result replaces the rows of its files in one
transaction that finds all of them unchanged. So a reader of the index sees the old files or the new
one, a crash at any step leaves one of the two, and of two compactions that merge the same files the
second changes nothing. What is lost is an object without a row, which is found by listing.

Such an object may be deleted after the grace period of orphans. A compaction that was suspended for
so long after an upload must not make a row for an object that is gone, so results replace rows only
until a deadline, by Postgres' clock, well before that.

The objects of replaced files stay for readers that have planned before, and are deleted later
(`pruning`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from fennel_core.history.compaction import (
    SPANS_PER_RETENTION,
    CompactionRule,
    Merge,
    plan_merges,
)
from fennel_core.history.merging import MergeRefused
from fennel_core.history.store import HistoryFile, HistoryFiles
from fennel_core.vocab.ids import TopicName

log = structlog.get_logger(__name__)
MERGES_AT_ONCE: Final = 32
"""Merges between two changes of the index: what a crash repeats, and far less work than fits before
the deadline.
"""


class Merger(Protocol):
    """Makes the files of merges."""

    async def merge(self, merges: Sequence[Merge]) -> Sequence[HistoryFile | MergeRefused]:
        """Return the result of each merge. Raises SystemUnavailable or CompactionFailed."""
        ...


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did.

    `merged`: files that were replaced by `made` files. `superseded`: merges whose files another
    process had changed, or whose deadline had passed. `refused`: merges that cannot be made.
    """

    merged: int = 0
    made: int = 0
    superseded: int = 0
    refused: int = 0

    def plus(self, other: CompactionResult) -> CompactionResult:
        """Return the sums of both."""
        return CompactionResult(
            self.merged + other.merged,
            self.made + other.made,
            self.superseded + other.superseded,
            self.refused + other.refused,
        )


@dataclass(frozen=True)
class Compaction:
    """Merges small files.

    `kept_us`: how long the rows of a topic are kept, where that is limited. `grace`: after which an
    object without a row may be deleted. `kept`: how long the objects of replaced files stay.
    """

    files: HistoryFiles
    merger: Merger
    rule: CompactionRule
    kept_us: Mapping[TopicName, int]
    grace: timedelta
    kept: timedelta

    async def run(self) -> CompactionResult:
        """Merge what can be merged now. Raises SystemUnavailable or CompactionFailed."""
        done, planned = CompactionResult(), list[Merge]()
        for topic, part in await self.files.partitions(least_files=2):
            planned += plan_merges(await self.files.files(topic, part), self._rule_of(topic))
            while len(planned) >= MERGES_AT_ONCE:
                done = done.plus(await self._run_batch(planned[:MERGES_AT_ONCE]))
                planned = planned[MERGES_AT_ONCE:]
        if planned:
            done = done.plus(await self._run_batch(planned))
        return done

    def _rule_of(self, topic: TopicName) -> CompactionRule:
        kept_us = self.kept_us.get(topic)
        if kept_us is None:
            return self.rule
        return replace(self.rule, span_us=kept_us // SPANS_PER_RETENTION)

    async def _run_batch(self, merges: Sequence[Merge]) -> CompactionResult:
        # Read before the first upload: no object of this batch can be an orphan for longer.
        deadline = await self.files.now() + self.grace / 2
        done = CompactionResult()
        for merge, made in zip(merges, await self.merger.merge(merges), strict=True):
            done = done.plus(await self._replace(merge, made, deadline))
        log.info("files of history were merged", merged=done.merged, made=done.made)
        return done

    async def _replace(
        self, merge: Merge, made: HistoryFile | MergeRefused, deadline: datetime
    ) -> CompactionResult:
        first = merge.files[0]
        if isinstance(made, MergeRefused) and made.large:
            return CompactionResult()
        if isinstance(made, MergeRefused):
            log.error(
                "files of history cannot be merged",
                topic=first.topic,
                part=first.part,
                reason=made.reason,
            )
            return CompactionResult(refused=1)
        merged = [
            file
            for file in merge.files
            if made.first_offset <= file.first_offset and file.next_offset <= made.next_offset
        ]
        if await self.files.replace(merged, made, deadline, self.kept):
            return CompactionResult(merged=len(merged), made=1)
        log.warning(
            "files of history were changed while they were merged",
            topic=first.topic,
            part=first.part,
            orphan=made.object_key,
        )
        return CompactionResult(superseded=1)
