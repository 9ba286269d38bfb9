"""The owner's publishing of a backfill: chunk by chunk, each as one iteration.

Theory. A batch has computed a job partition's outputs and state over history and staged them as
chunks (`backfill.manifest`). To the job partition the backfill is one more input, `backfill:<key>`,
whose records are the chunks 0, 1, …: a chunk is committed with a marker and applied like any batch
of records, so a crash between two chunks, a new owner and replay need no rules of their own. The
last chunk also moves the offsets of the real inputs to where history ended; the live path continues
there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fennel_core.blueprints.spec import Job
from fennel_core.engine.backfill.client import BackfillClient
from fennel_core.engine.backfill.errors import BackfillCorrupt, BackfillImpossible
from fennel_core.engine.backfill.manifest import (
    BackfillManifest,
    backfill_in_progress,
    input_topic,
)
from fennel_core.engine.broker import Broker
from fennel_core.engine.errors import LogTruncated
from fennel_core.engine.iteration import IterationComputer
from fennel_core.engine.iteration_writer import IterationWriter
from fennel_core.engine.state_progress import STATE_FORMAT, PartitionState
from fennel_core.replaylog.marker import ConsumedRange
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName


@dataclass(frozen=True, slots=True)
class PendingBackfill:
    """A staged backfill of which the chunks from `next_chunk` on are not published yet."""

    manifest: BackfillManifest
    next_chunk: int


class BackfillPublisher:
    """Publishes the backfill of one job partition."""

    def __init__(
        self,
        job: Job,
        part: PartitionIndex,
        step_version: int,
        state: PartitionState,
        computer: IterationComputer,
        writer: IterationWriter,
        broker: Broker,
        client: BackfillClient | None,
    ) -> None:
        """`client` None: every row is read live."""
        self._job, self._part, self._step_version = job, part, step_version
        self._state, self._computer, self._writer = state, computer, writer
        self._broker, self._client = broker, client

    async def pending(self) -> PendingBackfill | None:
        """Return the backfill to publish before the live path, None if there is none.

        A job partition without state requests one, which may take as long as the batch. Raises
        LogTruncated if the log lacks records and no backfill can replace them.
        """
        offsets = self._state.progress.offsets
        if self._client is None or any(topic in offsets for topic in self._job.inputs):
            return None
        begun = backfill_in_progress(offsets)
        if begun is not None:
            manifest, next_chunk = await self._client.manifest(begun[0]), begun[1]
        else:
            obtained = await self._obtained(self._client)
            if obtained is None:
                return None
            manifest, next_chunk = obtained, Offset(0)
        computed_by = (manifest.step_version, manifest.state_format)
        if computed_by != (self._step_version, STATE_FORMAT):
            raise BackfillCorrupt(
                f"backfill {manifest.key} was computed with step version and state format "
                f"{computed_by}: commit its dataset under a new version"
            )
        return PendingBackfill(manifest, next_chunk)

    async def _obtained(self, client: BackfillClient) -> BackfillManifest | None:
        starts = await self._broker.starts([(topic, self._part) for topic in self._job.inputs])
        try:
            return await client.obtain(
                self._job, self._part, {topic: start for (topic, _), start in starts.items()}
            )
        except BackfillImpossible as lost:
            raise LogTruncated(str(lost)) from lost

    async def publish(self, pending: PendingBackfill) -> None:
        """Publish the remaining chunks."""
        manifest = pending.manifest
        await self._publish(manifest, range(pending.next_chunk, len(manifest.chunks)))

    async def republish(self, key: str, numbers: Iterable[int]) -> None:
        """Publish some chunks of an earlier backfill again, to a copy of the state."""
        assert self._client is not None, "a backfill was published through a client"
        await self._publish(await self._client.manifest(key), numbers)

    async def _publish(self, manifest: BackfillManifest, numbers: Iterable[int]) -> None:
        assert self._client is not None, "a backfill is published through a client"
        for number in numbers:
            chunk = await self._client.chunk(manifest, number)
            result = await self._computer.compute_chunk(chunk, self._state.progress.state_hash)
            await self._writer.write(result, _ranges(manifest, number))


def _ranges(manifest: BackfillManifest, number: int) -> tuple[ConsumedRange, ...]:
    """Return the input ranges that chunk `number` covers."""
    chunk = ConsumedRange(input_topic(manifest.key), Offset(number), Offset(number + 1))
    if number + 1 < len(manifest.chunks):
        return (chunk,)
    ends = manifest.end_offsets.items()
    return (
        chunk,
        *(ConsumedRange(TopicName(topic), Offset(0), Offset(end)) for topic, end in ends),
    )
