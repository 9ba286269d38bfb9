"""One removal of erased keys' rows: search every file that no replay may need, replace those with
such rows.

Theory. A file may lose rows only if no replay reads it again: all of it lies below the offsets that
every job needs to restart, and below the beginning of Kafka's log, so that history and log never
disagree about a record (`bounds`). Any other file waits, and is counted. What was searched is noted
with the number of the newest erasure of the dataset, so each file is read once per change of the
erasures, however often this runs.

The index changes file by file, as in a compaction (`compaction_run`): a reader sees the old file or
the new one, a crash leaves one of the two, and a file that another process has merged is left to
the next run. The replaced objects stay for readers that have planned before, and are deleted later.

A run searches at most so many bytes, because what it rewrites is stored twice for a while, and
merges and other work of the pool wait for it. Files that were never searched come first, then those
that were searched for the oldest erasures, so that no topic waits for ever behind another.

Example. The newest erasure has number 7, every job needs offset 90 or later, the log begins at 80.
Of the files [0, 40) searched to 7, [40, 75) searched to 5 and [75, 120) the second is searched and
the third waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from fennel_core.history.compaction_run import MERGES_AT_ONCE
from fennel_core.history.erasing import TopicErasures
from fennel_core.history.merging import MergeRefused
from fennel_core.history.removals import RemovedRows, Replacer, split_run
from fennel_core.history.store import HistoryFile, searched_upto
from fennel_core.vocab.ids import DatasetName, Offset, TopicName, TopicPartition

log = structlog.get_logger(__name__)


class EraseWorker(Protocol):
    """Searches files for rows of erased keys."""

    async def remove_erased(
        self, files: Sequence[HistoryFile], erasures: Mapping[TopicName, TopicErasures]
    ) -> Sequence[HistoryFile | MergeRefused]:
        """Return each file without them: as it is, or another one. Raises SystemUnavailable or
        CompactionFailed.
        """
        ...


@dataclass(frozen=True, slots=True)
class ErasePlan:
    """The files of a partition that are to be searched, and the number of those that wait."""

    files: tuple[HistoryFile, ...]
    waiting: int


def plan_removal(files: Sequence[HistoryFile], erasures: TopicErasures, bound: Offset) -> ErasePlan:
    """Return which files of a partition are to be searched for the rows of erased keys.

    `bound`: the first offset that a replay or Kafka's log may still hold.
    """
    due = [file for file in files if searched_upto(file, erasures.dataset) < erasures.newest]
    ready = tuple(file for file in due if file.next_offset <= bound)
    return ErasePlan(ready, len(due) - len(ready))


@dataclass(frozen=True)
class ErasedRowsRemoval:
    """Removes the rows of erased keys.

    `erasures`: those of each topic. `bounds`: the first offset of a partition that must stay as it
    is; partitions that are absent stay as a whole. `grace`: after which an object without a row
    may be deleted. `most_bytes`: of the files that a run searches.
    """

    replacer: Replacer
    worker: EraseWorker
    erasures: Mapping[TopicName, TopicErasures]
    bounds: Mapping[TopicPartition, Offset]
    grace: timedelta
    most_bytes: int

    async def run(self) -> RemovedRows:
        """Search what can be searched now. Raises SystemUnavailable or CompactionFailed."""
        done, ready = RemovedRows(), list[HistoryFile]()
        for partition in sorted(await self.replacer.files.ends(list(self.erasures))):
            plan = plan_removal(
                await self.replacer.files.files(*partition),
                self.erasures[partition[0]],
                self.bounds.get(partition, Offset(0)),
            )
            done = done.plus(RemovedRows(waiting=plan.waiting))
            ready += plan.files
        planned, left = split_run(sorted(ready, key=self._searched_upto), self.most_bytes)
        for first in range(0, len(planned), MERGES_AT_ONCE):
            done = done.plus(await self._run_batch(planned[first : first + MERGES_AT_ONCE]))
        return done.plus(left)

    def _searched_upto(self, file: HistoryFile) -> int:
        return searched_upto(file, self.erasures[file.topic].dataset)

    async def _run_batch(self, files: Sequence[HistoryFile]) -> RemovedRows:
        # Read before the first upload: no object of this batch can be an orphan for longer.
        deadline = await self.replacer.files.now() + self.grace / 2
        made = await self.worker.remove_erased(files, self.erasures)
        done = RemovedRows()
        unchanged: dict[tuple[DatasetName, int], list[str]] = {}
        for file, found in zip(files, made, strict=True):
            if isinstance(found, HistoryFile) and found.object_key == file.object_key:
                searched = found.searched_for, found.searched_to
                unchanged.setdefault(searched, []).append(file.object_key)
                done = done.plus(RemovedRows(searched=1))
            else:
                done = done.plus(
                    await self.replacer.replace(file, found, deadline, "rows of erased keys")
                )
        for (dataset, upto), keys in unchanged.items():
            if not self.replacer.dry_run:
                await self.replacer.files.mark_searched(keys, dataset, upto)
        log.info(
            "files of history were searched for rows of erased keys",
            searched=done.searched,
            rewritten=done.rewritten,
            rows=done.rows,
        )
        return done
