"""One removal of replaced versions: search the partitions of keyed datasets, and replace the files
that lose enough rows.

Theory. The conditions are those of expired rows (`expiring_run`), and rows are compared only with
those that may leave, too: of files below the offset from which a replay or Kafka's log may still
need records. So a state that lags behind history is never compared with less than it has read.

A partition is searched as a whole (`replaced_versions`), once per tenth of the time that rows are
needed; its files are marked together at the end, so a search that died is repeated. Who needs the
rows is read before, and compared when a file is replaced: if that changes in between, the
files stay. Rows that another run removes in between had newer ones that stay.

A file that would lose less than a tenth of its rows stays as it is, so for each row that leaves at
most ten are written again; its rows are found again by the next search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from fennel_core.history.compaction_run import MERGES_AT_ONCE
from fennel_core.history.expired_topics import Expiries, ReadExpiries
from fennel_core.history.expiring import TopicExpiry, may_have
from fennel_core.history.merging import MergeRefused
from fennel_core.history.removals import RemovedRows, Replacer
from fennel_core.history.replaced_versions import (
    FileWithReplaced,
    ReplacedRows,
    VersionSurvey,
    combined,
    removable,
    surveys,
)
from fennel_core.history.store import NEVER, HistoryFile
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition

log = structlog.get_logger(__name__)


class VersionWorker(Protocol):
    """Searches partitions for replaced versions, and removes them from files.

    Its methods raise SystemUnavailable or CompactionFailed.
    """

    async def survey(self, tasks: Sequence[VersionSurvey]) -> Sequence[ReplacedRows | MergeRefused]:
        """Return what each survey finds."""
        ...

    async def remove_replaced(
        self, files: Sequence[FileWithReplaced], expiries: Mapping[TopicName, TopicExpiry]
    ) -> Sequence[HistoryFile | MergeRefused]:
        """Return each file without its rows that leave."""
        ...


@dataclass(frozen=True, slots=True)
class SearchedPartition:
    """The files of a partition that may have replaced versions, and the number of those that are
    due and wait for replays.
    """

    files: tuple[HistoryFile, ...]
    waiting: int

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def searched_to(self) -> int:
        """The oldest event time that was needed when a file was searched the longest ago."""
        return min((file.expiry_searched_to for file in self.files), default=0)


def plan_search(
    files: Sequence[HistoryFile], expiry: TopicExpiry, bound: Offset
) -> SearchedPartition:
    """Return what is to be searched of the files of a partition now; none if it is not due.

    It is due if a file is, and none that was never searched alone: new files wait for the next
    search of all. `bound`: the first offset that a replay or Kafka's log may still hold.
    """
    waiting = sum(expiry.is_due(file) for file in files if file.next_offset > bound)
    found = tuple(f for f in files if f.next_offset <= bound and may_have(f, expiry.oldest))
    due = [file for file in found if expiry.is_due(file)]
    was_searched = any(file.expiry_searched_to > expiry.due_before for file in found)
    if was_searched and all(file.expiry_searched_to == NEVER for file in due):
        return SearchedPartition((), waiting)
    return SearchedPartition(found if due else (), waiting)


@dataclass(frozen=True)
class ReplacedVersionsRemoval:
    """Removes replaced versions; the fields are those of `ExpiredRowsRemoval`."""

    replacer: Replacer
    worker: VersionWorker
    expiries: ReadExpiries
    bounds: Mapping[TopicPartition, Offset]
    grace: timedelta
    most_bytes: int

    async def run(self) -> dict[TopicName, RemovedRows]:
        """Search what can be searched now, and return what was done by topic.

        Raises SystemUnavailable or CompactionFailed.
        """
        expiries = (await self.expiries()).keyed()
        done = {topic: RemovedRows() for topic in expiries.topics}
        partitions = dict[TopicName, int]()
        due: list[tuple[TopicPartition, SearchedPartition]] = []
        for partition in sorted(await self.replacer.files.ends(list(expiries.topics))):
            partitions[partition[0]] = partition[1] + 1
            planned = await self._plan(partition, expiries)
            _add(done, partition[0], RemovedRows(waiting=planned.waiting))
            if planned.files:
                due.append((partition, planned))
        due.sort(key=lambda each: each[1].searched_to)
        size = 0
        for number, (partition, planned) in enumerate(due):
            size += planned.size_bytes
            if number and size > self.most_bytes:
                left = RemovedRows(left=len(planned.files), left_bytes=planned.size_bytes)
                _add(done, partition[0], left)
            else:
                result = await self._search(partition, partitions[partition[0]])
                _add(done, partition[0], result)
        return done

    async def _plan(self, partition: TopicPartition, expiries: Expiries) -> SearchedPartition:
        files = await self.replacer.files.files(*partition)
        bound = self.bounds.get(partition, Offset(0))
        return plan_search(files, expiries.topics[partition[0]], bound)

    async def _search(self, partition: TopicPartition, partitions: int) -> RemovedRows:
        topic, needs = partition[0], (await self.expiries()).keyed()
        if topic not in needs.topics:
            return RemovedRows()
        files = (await self._plan(partition, needs)).files
        if not files:
            return RemovedRows()
        tasks = surveys(files, needs.topics[topic], partitions)
        found: list[ReplacedRows] = []
        for first in range(0, len(tasks), MERGES_AT_ONCE):
            for each in await self.worker.survey(tasks[first : first + MERGES_AT_ONCE]):
                if isinstance(each, MergeRefused):
                    _log_refused(partition, each)
                    return RemovedRows(refused=1)
                found.append(each)
        leaving = [
            FileWithReplaced(file, rows)
            for file, rows in zip(files, combined(found), strict=True)
            if removable(file, rows)
        ]
        if self.replacer.dry_run:
            rows = sum(removable(each.file, each.rows) for each in leaving)
            return RemovedRows(searched=len(files), rewritten=len(leaving), rows=rows)
        changed = {each.file.object_key for each in leaving}
        searched = [file.object_key for file in files if file.object_key not in changed]
        done = RemovedRows(searched=len(searched))
        for first in range(0, len(leaving), MERGES_AT_ONCE):
            made, result = await self._rewrite(leaving[first : first + MERGES_AT_ONCE], needs)
            searched += made
            done = done.plus(result)
        # A search of which something is left undone is repeated by the next run.
        if not done.superseded and not done.refused:
            await self.replacer.files.mark_expired(searched, needs.topics[topic].oldest)
        log.info("a partition of history was searched for replaced versions", files=len(files))
        return done

    async def _rewrite(
        self, items: Sequence[FileWithReplaced], needs: Expiries
    ) -> tuple[list[str], RemovedRows]:
        """Replace files; return the keys of the new ones."""
        # Read before the first upload: no object of this batch can be an orphan for longer.
        deadline = await self.replacer.files.now() + self.grace / 2
        made = await self.worker.remove_replaced(items, needs.topics)
        done = RemovedRows()
        for item, found in zip(items, made, strict=True):
            # What was found is true of the needs of the search, so these are compared.
            readers = needs.readers_of(item.file.topic)
            done = done.plus(
                await self.replacer.replace(
                    item.file, found, deadline, "replaced versions", readers
                )
            )
        return [each.object_key for each in made if isinstance(each, HistoryFile)], done


def _add(done: dict[TopicName, RemovedRows], topic: TopicName, result: RemovedRows) -> None:
    done[topic] = done.get(topic, RemovedRows()).plus(result)


def _log_refused(partition: TopicPartition, refused: MergeRefused) -> None:
    log.error(
        "a partition of history cannot be searched for replaced versions",
        topic=partition[0],
        part=partition[1],
        reason=refused.reason,
    )
