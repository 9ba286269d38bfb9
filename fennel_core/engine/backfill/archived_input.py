"""Read from history what the log no longer has, for jobs that no batch can compute.

Theory. A job without a native step awaits executors, so a Spark batch cannot compute it, but it has
no state either: its rows can simply be read in order. History holds the records of a partition in
files with the offsets that they had. The owner reads those below the beginning of the log in
iterations of its own, exactly as it would have read them from the log, and continues there. A crash
in between resumes at the offset of the last iteration.

Raw requests may be gone from both: history was off, or began too late. A source replay continues
behind such a gap and logs its offsets as an error. Every other job is parked.

Example: history has the files [0, 40) and [40, 75), the log begins at 60. A new job reads offsets 0
to 74 from the two files, then the log from 75.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import polars as pl
import structlog

from fennel_core.blueprints.spec import Job
from fennel_core.engine.backfill.client import BackfillClient
from fennel_core.engine.backfill.start_mode import reads_history_itself, tolerates_lost_records
from fennel_core.engine.broker import Broker, FetchedRecords, Record
from fennel_core.engine.iteration_writer import IterationWriter
from fennel_core.engine.state_progress import PartitionState
from fennel_core.history.parquet import GROUP, OFFSET
from fennel_core.history.store import HistoryFile
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName
from fennel_core.vocab.versions import encode_frame

log = structlog.get_logger(__name__)


class ArchivedInput:
    """The part of a job partition's inputs that only history has."""

    def __init__(
        self,
        job: Job,
        part: PartitionIndex,
        state: PartitionState,
        writer: IterationWriter,
        broker: Broker,
        client: BackfillClient | None,
        max_bytes: int,
    ) -> None:
        """`client` None: there is no history."""
        self._job, self._part, self._state, self._writer = job, part, state, writer
        self._broker, self._client, self._max_bytes = broker, client, max_bytes

    async def truncated(self) -> dict[TopicName, Offset]:
        """Return the beginning of each input's log that the state has not reached."""
        if self._client is None or not reads_history_itself(self._job):
            return {}
        starts = await self._broker.starts([(topic, self._part) for topic in self._job.inputs])
        offsets = self._state.progress.offsets
        return {topic: at for (topic, _), at in starts.items() if offsets.get(topic, 0) < at}

    async def read(self, starts: dict[TopicName, Offset]) -> None:
        """Process the archived records of `truncated` inputs.

        Records that are lost are skipped if the job tolerates that. If not, the state stays before
        the log, whose reader reports it.
        """
        assert self._client is not None, "only history has what the log lacks"
        for topic, start in starts.items():
            for file in await self._client.archived_files(topic, self._part, self._next(topic)):
                if file.first_offset >= start or not await self._reach(topic, file.first_offset):
                    break
                rows = await self._client.archived_rows(file)
                for fetched in batches(file, rows, self._next(topic), self._max_bytes):
                    await self._writer.process(fetched)
                await self._advance(topic, file.next_offset)
            await self._reach(topic, start)

    def _next(self, topic: TopicName) -> Offset:
        return self._state.progress.offsets.get(topic, Offset(0))

    async def _reach(self, topic: TopicName, offset: Offset) -> bool:
        """Return whether the state is at `offset`; skip lost records if the job tolerates that."""
        lost = self._next(topic)
        if lost < offset and tolerates_lost_records(self._job):
            log.error(
                "raw requests are lost; the dataset lacks their rows",
                job=self._job.id,
                topic=topic,
                part=self._part,
                first=lost,
                next=offset,
            )
            await self._advance(topic, offset)
        return self._next(topic) >= offset

    async def _advance(self, topic: TopicName, offset: Offset) -> None:
        if offset > self._next(topic):
            await self._state.advance({topic: offset}, self._state.progress.replayed)


def batches(
    file: HistoryFile, rows: pl.DataFrame, first: Offset, max_bytes: int
) -> Iterator[FetchedRecords]:
    """Yield the records of a file from offset `first` on, as the log had them."""
    found: list[Record] = []
    size = 0
    ordered = rows.filter(pl.col(OFFSET) >= first).sort(OFFSET, maintain_order=True)
    # A file may have a million records of one row: they are cut off one after the other.
    lengths = ordered[OFFSET].rle().struct.field("len").to_list()
    for start, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
        frame = ordered.slice(start, length)
        record = Record(
            Offset(frame.item(0, OFFSET)), encode_frame(frame.drop(OFFSET, GROUP)), None
        )
        if found and size + len(record.value) > max_bytes:
            yield FetchedRecords((file.topic, file.part), tuple(found), record.offset)
            found, size = [], 0
        found.append(record)
        size += len(record.value)
    if found:
        yield FetchedRecords((file.topic, file.part), tuple(found), file.next_offset)
