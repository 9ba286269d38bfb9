"""What production classes use in the simulated world, with faults: log, registry, disks, clock,
threads.

Every call goes through its process. A dead process makes no more progress. A paused one stops
before and after each effect, so that its next action is that of a zombie. Any response may be late
or lost. The seed decides all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from confluent_kafka import KafkaException

from fennel_core.bank.memory_registry import MemoryRegistry
from fennel_core.bank.registry import PartitionReport, RegistryState, Slot
from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.engine.broker import OutgoingRecord, require_within_log
from fennel_core.engine.errors import ProducerFenced
from fennel_core.engine.kafka.consumer import ConsumerLimits, ConsumerThread
from fennel_core.engine.kafka.reader import KafkaRangeReader, ReplayConsumer
from fennel_core.engine.kafka.subscription import KafkaSubscription
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, Millis, Offset, SlotId, TopicPartition
from tests.sim.engine.model_client import ModelClient
from tests.sim.engine.model_log import ModelLog
from tests.sim.engine.virtual_time import now_ms

T = TypeVar("T")
DELAYS_S = (0.0, 0.0, 0.001, 0.002, 0.004, 0.02)
LONG_DELAY_S = 0.7
STUMBLE_S = 3.5
READ_TIMEOUT_S = 10.0


class ProcessDied(Exception):
    """The process has died: what still runs of it in this simulation has no effect."""


@dataclass
class Dice:
    """Makes every choice of a run, from its seed."""

    random: random.Random
    rate: float
    """Share of calls that fail; the world sets it to zero at the end."""
    held_s: Sequence[float] = (0.0, 0.0, 0.0, 0.3)
    """Initial delays of a reader per topic, so that topics reach it in any order."""

    def fails(self, factor: float = 1.0) -> bool:
        return self.random.random() < self.rate * factor

    def delay_s(self) -> float:
        return LONG_DELAY_S * self.random.random() if self.fails() else self.random.choice(DELAYS_S)


class Process:
    """One process of a slot."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.alive = True
        self._runs = asyncio.Event()
        self._runs.set()
        self.registry_away_until_ms = 0
        self.registry_empty_until_ms = 0
        """Until then it is connected to a database without jobs."""

    @property
    def paused(self) -> bool:
        return not self._runs.is_set()

    def pause(self) -> None:
        self._runs.clear()

    def resume(self) -> None:
        self._runs.set()

    async def gate(self) -> None:
        if not self._runs.is_set():
            await self._runs.wait()
        if not self.alive:
            raise ProcessDied

    async def delay(self) -> None:
        await asyncio.sleep(self.dice.delay_s())

    async def ask(
        self,
        effect: Callable[[], Awaitable[T]],
        lost: Callable[[str], Exception],
        away_until_ms: int = 0,
    ) -> T:
        """Call another machine; the request or the response may be lost."""
        await self.gate()
        await self.delay()
        if now_ms() < away_until_ms or self.dice.fails():
            raise lost("not reached")
        await self.gate()
        done = await effect()
        await self.delay()
        if self.dice.fails():
            raise lost("the response was lost")
        await self.gate()
        return done

    async def maybe_pause(self, share: float = 0.0) -> None:
        """Sometimes pause the whole process for longer than its lease.

        `share`: additional share of calls, while faults are on. Some paused processes then cannot
        reach the registry either and continue as if they were still the owner.
        """
        if self.dice.fails(2) or (self.dice.rate and self.dice.random.random() < share):
            self.pause()
            pause_s = STUMBLE_S * (0.5 + self.dice.random.random())
            if self.dice.random.random() < 0.5:
                self.registry_away_until_ms = now_ms() + int(
                    1000 * (pause_s + STUMBLE_S * self.dice.random.random())
                )
            asyncio.get_running_loop().call_later(pause_s, self.resume)
            await self.gate()


@dataclass
class ProcessClock:
    process: Process

    def monotonic_ms(self) -> int:
        return now_ms()

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)
        await self.process.gate()


@dataclass
class ProcessPool:
    process: Process

    async def run(self, work: Callable[[], T]) -> T:
        await self.process.gate()
        await self.process.delay()
        done = work()
        await self.process.gate()
        return done


# --- log ------------------------------------------------------------------------------------------


class SimProducer:
    def __init__(self, process: Process, log: ModelLog, id_: str, generation: int) -> None:
        self._process, self._log, self._id, self._generation = process, log, id_, generation

    async def commit(self, records: Sequence[OutgoingRecord]) -> Mapping[TopicPartition, Offset]:
        await self._process.gate()
        await self._process.delay()
        if self._process.dice.fails(0.2):
            await self._process.maybe_pause()
        response: asyncio.Future[Mapping[TopicPartition, Offset]] = (
            asyncio.get_running_loop().create_future()
        )
        # What was sent arrives, even if the sender dies.
        in_flight = asyncio.create_task(self._at_the_broker(records, response))
        try:
            written = await response
        finally:
            response.cancel()
            del in_flight
        await self._process.gate()
        return written

    async def _at_the_broker(
        self,
        records: Sequence[OutgoingRecord],
        response: asyncio.Future[Mapping[TopicPartition, Offset]],
    ) -> None:
        dice = self._process.dice
        fault = (
            dice.random.choice(["aborted", "aborted", "never ended", "response lost", "ended late"])
            if dice.fails()
            else None
        )
        try:
            await self._process.gate()
            transaction = self._log.begin(self._id, self._generation, records, now_ms())
            await self._process.delay()
            # The client sends the end: if it pauses or dies before, the transaction stays open.
            await self._process.gate()
            await self._process.delay()
            if fault == "never ended":
                raise TransactionOutcomeUnknown("the end of the transaction was lost")
            if fault == "ended late":
                _fail(response, TransactionOutcomeUnknown("no response in time"))
                await asyncio.sleep(dice.random.random() * 3)
            self._log.end(transaction, "aborted" if fault == "aborted" else "committed")
        except ProcessDied:
            _fail(response, ProcessDied())
        except (ProducerFenced, TransactionOutcomeUnknown) as failed:
            _fail(response, failed)
        else:
            await self._process.delay()
            match fault:
                case "aborted":
                    _fail(response, TransactionAborted("the broker refused"))
                case "response lost":
                    _fail(response, TransactionOutcomeUnknown("the response was lost"))
                case _ if not response.done():
                    response.set_result(transaction.next)

    async def close(self) -> None:
        """Nothing to release."""


def _fail(response: asyncio.Future[Mapping[TopicPartition, Offset]], error: Exception) -> None:
    if not response.done():
        response.set_exception(error)


class SimConsumer:
    """The production consumer over a modelled client, as `engine.kafka.shared_consumer` runs it.

    One task stands for the consumer's thread, another for what it posts to the event loop; a fault
    may come between any two of their steps.
    """

    def __init__(self, process: Process, log: ModelLog, limits: ConsumerLimits) -> None:
        self._process, self._log = process, log
        self._news = asyncio.Event()
        self._client = ModelClient(log, process.dice, now_ms)
        self._posted: deque[Callable[[], None]] = deque()
        self._has_posted = asyncio.Event()
        self._consumer = _WokenConsumer(self._client, self._post, limits, self._news)
        log.listeners[self._news] = None
        self._tasks = [asyncio.create_task(self._turns()), asyncio.create_task(self._callbacks())]

    def subscribe(self, positions: Mapping[TopicPartition, Offset]) -> KafkaSubscription:
        return KafkaSubscription(self._consumer, positions)

    def stop(self) -> None:
        self._log.listeners.pop(self._news, None)
        for task in self._tasks:
            task.cancel()

    def _post(self, callback: Callable[[], None]) -> None:
        self._posted.append(callback)
        self._has_posted.set()

    async def _turns(self) -> None:
        try:
            while True:
                await self._process.gate()
                if self._turn():
                    await self._process.delay()
                    continue
                self._news.clear()
                try:
                    async with asyncio.timeout(self._client.held_s()):
                        await self._news.wait()
                except TimeoutError:
                    continue
                await self._process.delay()
        except ProcessDied:
            self._log.listeners.pop(self._news, None)

    def _turn(self) -> bool:
        """Run one turn; return whether another one may have work to do at once."""
        try:
            return self._consumer.turn(0)
        except KafkaException as lost:
            self._consumer.fail(lost)
            return True

    async def _callbacks(self) -> None:
        try:
            while True:
                await self._has_posted.wait()
                self._has_posted.clear()
                await self._process.delay()
                while self._posted:
                    await self._process.gate()
                    self._posted.popleft()()
        except ProcessDied:
            return


class _WokenConsumer(ConsumerThread):
    """A consumer whose thread is woken by commands, in place of polling for them."""

    def __init__(
        self,
        client: ModelClient,
        post: Callable[[Callable[[], None]], object],
        limits: ConsumerLimits,
        news: asyncio.Event,
    ) -> None:
        super().__init__(client, post, limits)
        self._news = news

    def command(self, command: Callable[[], None]) -> None:
        super().command(command)
        self._news.set()


class SimBroker:
    """See `engine.broker.Broker`."""

    def __init__(
        self, process: Process, log: ModelLog, limits: ConsumerLimits | None = None
    ) -> None:
        self._process, self.log = process, log
        self._limits = limits or ConsumerLimits()
        self._live: SimConsumer | None = None
        self._replays = ReplayConsumer(self._new_consumer)

    def _new_consumer(self) -> SimConsumer:
        return SimConsumer(self._process, self.log, self._limits)

    async def _call(self, effect: Callable[[], T], may_be_lost: bool = False) -> T:
        await self._process.gate()
        await self._process.delay()
        if self._process.dice.fails():
            raise SystemUnavailable("not reached")
        done = effect()
        await self._process.delay()
        if may_be_lost and self._process.dice.fails():
            raise SystemUnavailable("the response was lost")
        await self._process.gate()
        return done

    async def starts(self, sources: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        return await self._call(lambda: {source: self.log.log(source).start for source in sources})

    async def subscribe(self, positions: Mapping[TopicPartition, Offset]) -> KafkaSubscription:
        def check() -> None:
            for source, position in positions.items():
                require_within_log(source, position, *self._bounds(source))

        await self._call(check)
        if self._live is None:
            self._live = self._new_consumer()
        return self._live.subscribe(positions)

    def _bounds(self, source: TopicPartition) -> tuple[Offset, Offset]:
        return self.log.log(source).start, self.log.stable_end(source)

    async def producer(self, transactional_id: str) -> SimProducer:
        await self._process.maybe_pause(0.2)
        generation = await self._call(lambda: self.log.open(transactional_id), may_be_lost=True)
        return SimProducer(self._process, self.log, transactional_id, generation)

    async def range_reader(self) -> KafkaRangeReader:
        async def bounds(source: TopicPartition) -> tuple[Offset, Offset]:
            return await self._call(lambda: self._bounds(source))

        consumer = self._replays.acquire()
        return KafkaRangeReader(consumer.subscribe, bounds, READ_TIMEOUT_S, self._replays.release)

    async def close(self) -> None:
        if self._live is not None:
            self._live.stop()


# --- registry -------------------------------------------------------------------------------------


class SimRegistry:
    """`bank.registry.Registry`: the in-memory implementation over a connection that fails."""

    def __init__(self, process: Process, inner: MemoryRegistry) -> None:
        self._process, self._inner = process, inner

    async def _call(self, effect: Callable[[], Awaitable[T]]) -> T:
        return await self._process.ask(
            effect, SystemUnavailable, self._process.registry_away_until_ms
        )

    async def heartbeat(self, slot: Slot, lease_ms: Millis) -> None:
        await self._call(lambda: self._inner.heartbeat(slot, lease_ms))

    async def read(self, me: SlotId) -> RegistryState:
        return await self._call(lambda: self._read(me))

    async def _read(self, me: SlotId) -> RegistryState:
        seen = await self._inner.read(me)
        empty = now_ms() < self._process.registry_empty_until_ms
        return replace(seen, jobs=()) if empty else seen

    async def spec(self, job: JobId) -> bytes | None:
        return await self._call(lambda: self._inner.spec(job))

    async def claim(
        self, wanted: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> dict[JobPartition, Epoch]:
        await self._process.maybe_pause(0.1)
        return await self._call(lambda: self._inner.claim(wanted, slot, lease_ms))

    async def resume(
        self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> frozenset[JobPartition]:
        return await self._call(lambda: self._inner.resume(held, slot, lease_ms))

    async def release(self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId) -> None:
        await self._call(lambda: self._inner.release(held, slot))

    async def report(
        self, reports: Mapping[JobPartition, tuple[Epoch, PartitionReport]], slot: SlotId
    ) -> None:
        await self._call(lambda: self._inner.report(reports, slot))

    async def deregister(self, slot: SlotId) -> None:
        await self._call(lambda: self._inner.deregister(slot))
