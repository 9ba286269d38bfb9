"""One removal of expired rows of datasets without a key: search the files that may have any, and
replace those that do.

Theory. The conditions are those of erased keys (`erasing_run`): only files that no replay and not
Kafka's log may still hold (`bounds`), each replaced in one transaction, and every row counted. What
is needed is read again for each batch, and compared when a file is replaced (`row_needs`).

Example. Rows are needed for ten days, and those before noon of the 20th have expired. A file with
rows from the 18th on is searched; one with rows from noon of the 19th on is left to a later run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from fennel_core.history.compaction_run import MERGES_AT_ONCE
from fennel_core.history.expired_topics import ReadExpiries
from fennel_core.history.expiring import TopicExpiry
from fennel_core.history.merging import MergeRefused
from fennel_core.history.removals import RemovedRows, Replacer, split_run
from fennel_core.history.store import HistoryFile
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition

log = structlog.get_logger(__name__)


class ExpiryWorker(Protocol):
    """Searches files for expired rows."""

    async def remove_expired(
        self, files: Sequence[HistoryFile], expiries: Mapping[TopicName, TopicExpiry]
    ) -> Sequence[HistoryFile | MergeRefused]:
        """Return each file without them: as it is, or another one. Raises SystemUnavailable or
        CompactionFailed.
        """
        ...


@dataclass(frozen=True)
class ExpiredRowsRemoval:
    """Removes expired rows.

    `expiries`: reads those of the topics that lose rows. `bounds`: as in `ErasedRowsRemoval`.
    `grace`: after which an object without a row may be deleted. `most_bytes`: of the files that a
    run searches; those that were searched longest ago come first.
    """

    replacer: Replacer
    worker: ExpiryWorker
    expiries: ReadExpiries
    bounds: Mapping[TopicPartition, Offset]
    grace: timedelta
    most_bytes: int

    async def run(self) -> dict[TopicName, RemovedRows]:
        """Search what can be searched now, and return what was done by topic.

        Raises SystemUnavailable or CompactionFailed.
        """
        expiries = (await self.expiries()).keyless().topics
        done = {topic: RemovedRows() for topic in expiries}
        every: list[HistoryFile] = []
        for partition in sorted(await self.replacer.files.ends(list(expiries))):
            topic, bound = partition[0], self.bounds.get(partition, Offset(0))
            files = await self.replacer.files.files(*partition)
            due = [file for file in files if expiries[topic].is_due(file)]
            ready = [file for file in due if file.next_offset <= bound]
            done[topic] = done[topic].plus(RemovedRows(waiting=len(due) - len(ready)))
            every += ready
        every.sort(key=lambda file: file.expiry_searched_to)
        planned, _ = split_run(every, self.most_bytes)
        for file in every[len(planned) :]:
            left = RemovedRows(left=1, left_bytes=file.size_bytes)
            done[file.topic] = done[file.topic].plus(left)
        for first in range(0, len(planned), MERGES_AT_ONCE):
            await self._run_batch(planned[first : first + MERGES_AT_ONCE], done)
        return done

    async def _run_batch(
        self, planned: Sequence[HistoryFile], done: dict[TopicName, RemovedRows]
    ) -> None:
        index = self.replacer.files
        now = (await self.expiries()).keyless()
        files = [f for f in planned if f.topic in now.topics and now.topics[f.topic].is_due(f)]
        if not files:
            return
        # Read before the first upload: no object of this batch can be an orphan for longer.
        deadline = await index.now() + self.grace / 2
        made = await self.worker.remove_expired(files, now.topics)
        unchanged: dict[TopicName, list[str]] = {}
        for file, found in zip(files, made, strict=True):
            if isinstance(found, HistoryFile) and found.object_key == file.object_key:
                unchanged.setdefault(file.topic, []).append(file.object_key)
                result = RemovedRows(searched=1)
            else:
                result = await self.replacer.replace(
                    file, found, deadline, "expired rows", now.readers_of(file.topic)
                )
            done[file.topic] = done[file.topic].plus(result)
        for topic, keys in unchanged.items():
            if not self.replacer.dry_run:
                await index.mark_expired(keys, now.topics[topic].oldest)
        log.info(
            "files of history were searched for expired rows",
            files=len(files),
            dry_run=self.replacer.dry_run,
        )
