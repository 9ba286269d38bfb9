"""A producer is closed while idle and opened again under the same ownership, or not at all."""

from __future__ import annotations

import pytest

from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.errors import EpochSuperseded, ProducerFenced
from fennel_core.engine.memory_broker import MemoryBroker, MemoryLog, MemoryProducer
from fennel_core.engine.owned_producer import OwnedProducer
from fennel_core.replaylog.marker import (
    ConsumedRange,
    EpochMarker,
    IterationMarker,
    decode_marker,
    encode_marker,
)
from fennel_core.vocab.ids import Epoch, Offset, PartitionIndex, TopicName

REPLAYLOG = (TopicName("replaylog"), PartitionIndex(0))
TARGET = TopicName("target")


class CountingBroker(MemoryBroker):
    """A broker that counts how many producers are open; opening may fail."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.opened, self.closed = 0, 0
        self.aborts = 0

    async def producer(self, transactional_id: str) -> MemoryProducer:
        self.opened += 1
        inner, broker = await super().producer(transactional_id), self
        close, commit = inner.close, inner.commit

        async def counted_close() -> None:
            broker.closed += 1
            await close()

        async def failing_commit(records: list[OutgoingRecord]) -> object:
            if broker.aborts:
                broker.aborts -= 1
                raise TransactionAborted("try again")
            return await commit(records)

        inner.close = counted_close
        inner.commit = failing_commit
        return inner


def owned(broker: CountingBroker, epoch: int) -> OwnedProducer:
    return OwnedProducer(broker, "job-0", REPLAYLOG, Epoch(epoch))


def iteration(epoch: int) -> list[OutgoingRecord]:
    covered = (ConsumedRange(TopicName("source"), Offset(0), Offset(1)),)
    marker = IterationMarker(Epoch(epoch), 1, covered, 1, 1, "test", b"")
    return [
        OutgoingRecord(TARGET, 0, b"row"),
        OutgoingRecord(*REPLAYLOG, encode_marker(marker)),
    ]


async def epochs(broker: CountingBroker) -> list[tuple[str, int]]:
    reader = await broker.range_reader()
    found = [
        decode_marker(record.value)
        async for portion in reader.read(REPLAYLOG, Offset(0))
        for record in portion
    ]
    return [("epoch" if isinstance(m, EpochMarker) else "iteration", m.epoch) for m in found]


async def test_an_idle_producer_is_closed_and_opened_again_with_an_epoch_marker() -> None:
    broker = CountingBroker(MemoryLog())
    producer = owned(broker, 3)
    end = await producer.commit(iteration(3), await producer.open())
    await producer.close_if_idle()
    assert broker.closed == 0, "it was used since the last call"
    await producer.close_if_idle()
    await producer.close_if_idle()
    assert (broker.opened, broker.closed) == (1, 1)
    await producer.commit(iteration(3), end)
    assert (broker.opened, broker.closed) == (2, 1)
    assert await epochs(broker) == [
        ("epoch", 3),
        ("iteration", 3),
        ("epoch", 3),
        ("iteration", 3),
    ]
    await producer.close()
    await producer.close()
    assert broker.closed == 2


async def test_a_superseded_owner_commits_nothing_after_it_was_idle() -> None:
    broker = CountingBroker(MemoryLog())
    older, newer = owned(broker, 3), owned(broker, 4)
    end = await older.open()
    await older.close_if_idle()
    newest = await newer.open()
    with pytest.raises(EpochSuperseded, match="contains epoch 4, which is later than ours, 3"):
        await older.commit(iteration(3), end)
    assert broker.opened - broker.closed == 1, "only the newer owner's producer is open"
    assert await epochs(broker) == [("epoch", 3), ("epoch", 4), ("epoch", 3)]
    with pytest.raises(ProducerFenced):
        await newer.commit(iteration(4), newest)


async def test_an_aborted_opening_is_repeated_with_its_checks() -> None:
    broker = CountingBroker(MemoryLog())
    older, newer = owned(broker, 3), owned(broker, 4)
    end = await older.open()
    await older.close_if_idle()
    await newer.open()
    broker.aborts = 1
    with pytest.raises(TransactionAborted):
        await older.commit(iteration(3), end)
    with pytest.raises(EpochSuperseded):
        await older.commit(iteration(3), end)


async def test_an_iteration_that_the_state_lacks_is_replayed_before_another_is_committed() -> None:
    broker = CountingBroker(MemoryLog())
    producer = owned(broker, 3)
    end = await producer.open()
    await producer.commit(iteration(3), end)
    await producer.close_if_idle()
    await producer.close_if_idle()
    with pytest.raises(TransactionOutcomeUnknown, match="iteration that this state lacks"):
        await producer.commit(iteration(3), end)
