"""Replay: bring a state to a later position without writing to the log.

Theory. A state is behind its log after a crash (its owner committed an iteration and did not apply
it) and after a restore from a snapshot. Two cases:

- A job with outputs has a marker on its replaylog per committed iteration. Each marker is replayed
  alone: read exactly its input ranges, run the same step, compare the digest of the mutations with
  the marker's, apply. Outputs are dropped: the marker proves that they were written. A different
  digest means that the state or the code differ from then, and the state must not be used, unless
  an operator has decided to trust the outputs (decision record 0040).
- A job without outputs has no markers. Its state is a function of its input offsets, however the
  records are cut into batches (decision record 0003), so the inputs are simply read again.

Example. The state says "iteration 11, replaylog position 40" and the replaylog ends at 43. Offset
40 holds the marker of iteration 12 over `orders` 7 to 9, offset 41 a transaction marker of Kafka,
offset 42 our own epoch marker. Replay reads `orders` 7 and 8, computes iteration 12, finds the
digest equal, and the state says "iteration 12, replaylog position 41". Then the live path starts.

The owner replays when it starts (`runner`); a drill replays a copy of a snapshot to compare it with
the live state (`engine.drill`).
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from fennel_core.blueprints.spec import Job
from fennel_core.engine.backfill.client import BackfillClient
from fennel_core.engine.backfill.manifest import manifest_key
from fennel_core.engine.backfill.publisher import BackfillPublisher
from fennel_core.engine.broker import Broker, FetchedRecords, RangeReader
from fennel_core.engine.errors import EpochSuperseded, ReplayMismatch
from fennel_core.engine.iteration import IterationComputer, IterationResult, portions
from fennel_core.engine.iteration_writer import IterationWriter
from fennel_core.engine.state_progress import PartitionState
from fennel_core.replaylog.marker import IterationMarker, decode_marker
from fennel_core.vocab.ids import Epoch, Offset, PartitionIndex, TopicName

log = structlog.get_logger(__name__)


class ReplaylogReplay:
    """Applies the iterations that the replaylog records and the state lacks."""

    def __init__(
        self,
        job: Job,
        part: PartitionIndex,
        epoch: Epoch,
        step_version: int,
        environment: str,
        state: PartitionState,
        computer: IterationComputer,
        broker: Broker,
        backfill_client: BackfillClient | None,
        *,
        trust_outputs: bool,
    ) -> None:
        """`trust_outputs`: apply what this version computes, also if the markers differ."""
        self._trust_outputs, self._differing = trust_outputs, 0
        self._job, self._part, self._epoch = job, part, epoch
        self._step_version, self._environment = step_version, environment
        self._state, self._computer, self._broker = state, computer, broker
        self._backfill_client = backfill_client

    async def run(self, end: Offset) -> None:
        """Replay the markers below replaylog offset `end`.

        Raises EpochSuperseded if a later owner exists, ReplayMismatch if an iteration differs from
        what was committed, and OffsetTruncated if the log no longer has its records.
        """
        replayed = self._state.progress.replayed
        if replayed >= end:
            return
        reader = await self._broker.range_reader()
        try:
            async for records in reader.read((self._job.replaylog, self._part), replayed, end):
                for record in records:
                    marker = decode_marker(record.value)
                    self._require_newest_epoch(marker.epoch)
                    if isinstance(marker, IterationMarker):
                        await self._replay(reader, marker, Offset(record.offset + 1))
        finally:
            await reader.close()
        if self._differing:
            log.warning(
                "replayed iterations differ from what was committed; the outputs are trusted",
                job=self._job.id,
                part=self._part,
                iterations=self._differing,
            )

    def _require_newest_epoch(self, epoch: Epoch) -> None:
        """Opening our producer fenced every other one, also that of an owner that came after us.

        That owner opens a new producer, so we must stop. What we have replayed before its marker
        was committed by earlier owners and stays right.
        """
        if epoch > self._epoch:
            raise EpochSuperseded(
                f"the replaylog contains epoch {epoch}, which is later than ours, {self._epoch}"
            )

    async def _replay(self, reader: RangeReader, marker: IterationMarker, replayed: Offset) -> None:
        result = await self._recomputed(reader, marker)
        if result.digest != marker.digest and self._trust_outputs:
            self._differing += 1
        elif result.digest != marker.digest:
            raise ReplayMismatch(
                f"replay of iteration {marker.iteration} produced different mutations (step "
                f"version {marker.step_version} then, {self._step_version} now; environment "
                f"{marker.environment} then, {self._environment} now): "
                "falling back to an older snapshot"
            )
        offsets = {covered.topic: covered.next for covered in marker.ranges}
        await self._state.apply(
            marker.iteration, result.outcome, result.state_hash, offsets, replayed
        )

    async def _recomputed(self, reader: RangeReader, marker: IterationMarker) -> IterationResult:
        state_hash = self._state.progress.state_hash
        result = self._computer.unchanged(state_hash)
        if marker.digest == result.digest:
            return result  # most iterations of a stateless job; their inputs need not be read
        key = manifest_key(marker.ranges[0].topic)
        if key is not None:
            return await self._recomputed_chunk(key, marker.ranges[0].first)
        for covered in marker.ranges:
            source = (covered.topic, self._part)
            records = [
                record
                async for portion in reader.read(source, covered.first, covered.next)
                for record in portion
            ]
            number = self._job.inputs.index(covered.topic)
            result = await self._computer.compute(number, records, state_hash)
        return result

    async def _recomputed_chunk(self, key: str, number: int) -> IterationResult:
        assert self._backfill_client is not None, "a backfill was published through a client"
        manifest = await self._backfill_client.manifest(key)
        chunk = await self._backfill_client.chunk(manifest, number)
        return await self._computer.compute_chunk(chunk, self._state.progress.state_hash)


async def replay_inputs(
    job: Job,
    part: PartitionIndex,
    ends: Mapping[TopicName, Offset],
    state: PartitionState,
    writer: IterationWriter,
    broker: Broker,
    publisher: BackfillPublisher,
    max_bytes: int,
    max_rows: int,
) -> None:
    """Bring the state of a job without outputs to the input offsets `ends`."""
    for topic, stop in ends.items():
        if (key := manifest_key(topic)) is not None:
            first = state.progress.offsets.get(topic, Offset(0))
            await publisher.republish(key, range(first, stop))
    positions = {topic: state.progress.offsets.get(topic, Offset(0)) for topic in job.inputs}
    wanted = {topic: ends[topic] for topic in job.inputs if ends.get(topic, 0) > positions[topic]}
    if not wanted:
        return
    subscription = await broker.subscribe({(topic, part): positions[topic] for topic in wanted})
    try:
        while any(positions[topic] < end for topic, end in wanted.items()):
            fetched = await subscription.next(max_bytes)
            topic = fetched.source[0]
            records = tuple(record for record in fetched.records if record.offset < wanted[topic])
            below = FetchedRecords(fetched.source, records, min(fetched.next, wanted[topic]))
            for portion in portions(below, max_rows):
                if portion.records:
                    await writer.process(portion)
            positions[topic] = fetched.next
    finally:
        await subscription.close()
