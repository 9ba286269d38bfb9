"""Make an iteration durable: one Kafka transaction, then one write batch to the state.

Theory. The transaction holds the output records, the watermark and a marker on the replaylog. The
marker names the input ranges of the iteration and the digest of its mutations, so a committed
marker proves that the outputs of exactly these ranges exist. Only after the commit are mutations,
offsets and replaylog position applied, in one write batch. A crash before the commit leaves
nothing; a crash after it leaves a marker, and `replay` applies it.

Example. Offsets 7 to 9 of input `orders` are iteration 12. The transaction writes the output
records and `marker(iteration=12, ranges=[orders 7..9], digest=d)` at offset 40 of the replaylog.
The write batch stores the mutations with iteration 12, `orders: 9` and replaylog position 41. After
a crash between the two, the state says "iteration 11, replaylog position 40": the next owner finds
the marker at 40, computes offsets 7 to 9 again, compares the digest with d and applies the result
without writing outputs.

A job without outputs has nothing to make atomic: its state is a function of the offsets it holds,
so it writes no transaction at all (decision record 0003).
"""

from __future__ import annotations

from typing import Final

from fennel_core.blueprints.spec import Job
from fennel_core.connections.errors import TransactionAborted
from fennel_core.engine.broker import FetchedRecords, OutgoingRecord
from fennel_core.engine.iteration import IterationComputer, IterationResult
from fennel_core.engine.owned_producer import OwnedProducer
from fennel_core.engine.state_progress import STATE_FORMAT, PartitionState
from fennel_core.engine.watermarks import OutputWatermarks
from fennel_core.replaylog.marker import ConsumedRange, IterationMarker, encode_marker
from fennel_core.vocab.ids import Epoch, Offset, PartitionIndex

COMMIT_ATTEMPTS: Final = 3
"""An aborted transaction wrote nothing: it is committed again up to this often before the runner is
restarted.
"""


class IterationWriter:
    """Writes the iterations of one job partition."""

    def __init__(
        self,
        job: Job,
        part: PartitionIndex,
        epoch: Epoch,
        step_version: int,
        environment: str,
        computer: IterationComputer,
        state: PartitionState,
        producer: OwnedProducer | None,
    ) -> None:
        """`producer` None: nothing is written to the log, only to the state."""
        self._job, self._part, self._epoch = job, part, epoch
        self._step_version, self._environment = step_version, environment
        self._computer, self._state, self._producer = computer, state, producer
        self._watermarks = OutputWatermarks(job)

    async def process(self, fetched: FetchedRecords) -> None:
        """Compute and write the iteration over a batch of one input, if it needs one."""
        topic = fetched.source[0]
        first = self._state.progress.offsets.get(topic, Offset(0))
        assert fetched.records[0].offset >= first, (
            f"record {fetched.records[0].offset} of {topic} was applied before (next is {first})"
        )
        if self._computer.skips(fetched.records):
            return
        result = await self._computer.compute(
            self._job.inputs.index(topic), fetched.records, self._state.progress.state_hash
        )
        assert self._producer is not None or not result.outgoing, (
            "a job without outputs emits nothing"
        )
        await self.write(result, (ConsumedRange(topic, first, fetched.next),))

    async def write(self, result: IterationResult, covered: tuple[ConsumedRange, ...]) -> None:
        """Commit a result that was computed from the ranges `covered`, then apply it to the state.

        Raises ProducerFenced, TransactionAborted, TransactionOutcomeUnknown.
        """
        replayed = self._state.progress.replayed
        if self._producer is not None:
            replayed = await self._commit(self._producer, result, covered)
        await self._state.apply(
            self._state.progress.iteration + 1,
            result.outcome,
            result.state_hash,
            {each.topic: each.next for each in covered},
            replayed,
        )

    async def _commit(
        self, producer: OwnedProducer, result: IterationResult, covered: tuple[ConsumedRange, ...]
    ) -> Offset:
        marker = IterationMarker(
            self._epoch,
            self._state.progress.iteration + 1,
            covered,
            self._step_version,
            STATE_FORMAT,
            self._environment,
            result.digest,
        )
        records = [
            *result.outgoing,
            *self._watermarks.records(result.outcome.emits, result.max_time),
            OutgoingRecord(self._job.replaylog, self._part, encode_marker(marker)),
        ]
        attempt = 1
        while True:
            try:
                return await producer.commit(records, self._state.progress.replayed)
            except TransactionAborted:
                if attempt == COMMIT_ATTEMPTS:
                    raise
                attempt += 1
