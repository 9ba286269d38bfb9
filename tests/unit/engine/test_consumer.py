"""What the consumer hands out, turn by turn, over the modelled client."""

import random
from collections.abc import Callable

import pytest

from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.kafka.consumer import ConsumerLimits, ConsumerThread
from fennel_core.engine.kafka.subscription import KafkaSubscription
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition
from tests.sim.engine.faulty_components import Dice
from tests.sim.engine.model_client import ModelClient
from tests.sim.engine.model_log import ModelLog
from tests.sim.engine.virtual_time import run

SOURCE: TopicPartition = (TopicName("t"), PartitionIndex(0))
VALUE = b"x" * 100


class Bench:
    """A consumer whose turns and callbacks the test runs one by one."""

    def __init__(self, count: int, limits: ConsumerLimits | None = None) -> None:
        self.log = ModelLog(10_000)
        self.write(count)
        dice = Dice(random.Random(0), 0.0, held_s=(0.0,))  # noqa: S311  # repeatable, and no secret
        self.client = ModelClient(self.log, dice, lambda: 0)
        self.posted: list[Callable[[], None]] = []
        self.consumer = ConsumerThread(self.client, self.posted.append, limits or ConsumerLimits())

    def write(self, count: int) -> None:
        records = [OutgoingRecord(SOURCE[0], SOURCE[1], VALUE)] * count
        transaction = self.log.begin("writer", self.log.open("writer"), records, 0)
        self.log.end(transaction, "committed")

    def subscribe(self, at: int) -> KafkaSubscription:
        return KafkaSubscription(self.consumer, {SOURCE: Offset(at)})

    def turns(self, count: int = 50) -> None:
        for _ in range(count):
            self.consumer.turn(0)

    def callbacks(self) -> None:
        while self.posted:
            self.posted.pop(0)()


async def taken(subscription: KafkaSubscription, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [record.offset for record in (await subscription.next(1_000)).records]
    return found


def test_a_new_reader_gets_nothing_that_was_read_for_a_closed_one() -> None:
    async def scenario() -> None:
        bench = Bench(600)
        earlier = bench.subscribe(450)
        bench.turns(3)
        await earlier.close()
        reader = bench.subscribe(10)
        bench.callbacks()  # what was on its way for the closed reader
        bench.turns()
        bench.callbacks()
        assert await taken(reader, 200) == list(range(10, 210))

    run(scenario())


def test_a_reader_that_joins_at_the_end_learns_the_end() -> None:
    async def scenario() -> None:
        bench = Bench(5)
        first = bench.subscribe(0)
        bench.turns()
        bench.callbacks()
        assert first.ends() == {SOURCE: 6}
        second = bench.subscribe(6)
        bench.turns()
        bench.callbacks()
        assert second.ends() == {SOURCE: 6}

    run(scenario())


def test_a_full_partition_is_paused_and_nothing_is_read_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polled: list[int] = []
    delivered = ModelClient._delivered

    def noted(self: ModelClient) -> object:
        message = delivered(self)
        if message.record is not None:
            polled.append(message.at)
        return message

    monkeypatch.setattr(ModelClient, "_delivered", noted)

    async def scenario() -> None:
        bench = Bench(400, ConsumerLimits(buffer_bytes=5_000))
        reader = bench.subscribe(0)
        found: list[int] = []
        while len(found) < 400:
            bench.turns()
            bench.callbacks()
            assert polled[-1] - len(found) < 100, "the buffer is bounded"
            found += await taken(reader, 1)
        assert found == polled == list(range(400))

    run(scenario())


def test_a_reader_with_a_backlog_does_not_keep_a_current_one_waiting() -> None:
    async def scenario() -> None:
        bench = Bench(300, ConsumerLimits(turn_bytes=2_000))
        current, backlog = bench.subscribe(301), bench.subscribe(0)
        bench.turns(6)
        bench.write(1)
        bench.turns(12)
        bench.callbacks()
        assert await taken(current, 1) == [301]
        bench.turns(200)
        bench.callbacks()
        assert await taken(backlog, 301) == [*range(300), 301]

    run(scenario())


def test_many_full_buffers_shrink_each_other() -> None:
    async def scenario() -> None:
        limits = ConsumerLimits(
            buffer_bytes=1_000_000, slot_buffer_bytes=20_000, crowded_buffer_bytes=1_000
        )
        bench = Bench(1_000, limits)
        readers = [bench.subscribe(0) for _ in range(4)]
        bench.turns(200)
        bench.callbacks()
        assert bench.consumer._held_bytes < 60_000
        for reader in readers:
            found: list[int] = []
            while len(found) < 1_000:
                found += await taken(reader, 1)
                bench.turns()
                bench.callbacks()
            assert found == list(range(1_000))

    run(scenario())
