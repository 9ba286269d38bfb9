"""Processes that crash, and the faulty calls that they make.

A process is a set of tasks: every task that is created inside one belongs to it. Each call that
leaves a process (a transaction, a request to Kafka or Airflow) may be slow, may be lost before or
after its effect, may be done halfway, or may be the last thing that the process does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from fennel_core.connections.errors import SystemUnavailable, TransactionOutcomeUnknown
from fennel_core.definition.commit_changes import CommitWatch
from fennel_core.ledger.memory import MemoryLedger
from fennel_core.ledger.store import LedgerTransaction
from fennel_core.ledger.topics import (
    MemoryTopicAdmin,
    OffsetRange,
    ReadRange,
    TopicRefusal,
    TopicSpec,
)
from fennel_core.vocab.ids import CommitId, Offset, TopicName, TopicPartition

LATENCIES_S: Final = (0.0, 0.001, 0.001, 0.01, 0.01, 0.05, 0.3)
NOTIFICATIONS_S: Final = (0.05, 0.5, 1.0)
PAUSES_S: Final = (2.0, 20.0, 80.0)
"""A process that stops for longer than a lease is presumed dead and then resumes."""


class Crash(BaseException):
    """The process died. Not an Exception, so that no code under test catches it."""


class Fault(Enum):
    CRASH_BEFORE = "dies before"
    CRASH_AFTER = "dies after"
    CRASH_HALF = "dies halfway through"
    LOST_BEFORE = "gets no response from, which did nothing:"
    LOST_AFTER = "gets no response from, which did everything:"
    LOST_HALF = "gets no response from, which did a half:"
    REFUSED = "is refused a topic by"
    PAUSE = "stops for a while before"


@dataclass
class Dice:
    """The faults of a run. `rate`: probability per call; 0 when the faults have stopped."""

    random: random.Random
    rate: float
    slow_kafka_s: float = 0.0
    """How long Kafka takes to create topics; longer than a lease in some runs."""

    def fault(self) -> Fault | None:
        return self.random.choice(list(Fault)) if self.random.random() < self.rate else None

    def latency_s(self) -> float:
        return self.random.choice(LATENCIES_S) if self.rate else 0.001


_current: ContextVar[Process | None] = ContextVar("process", default=None)


@dataclass
class Sent:
    """A commit request on its way: the version that the server read first, and the commit's ids."""

    body: bytes
    incremental: bool
    base: CommitId | None = None
    has_base: bool = False
    read_base: Callable[[], CommitId | None] = lambda: None


sent_request: ContextVar[Sent | None] = ContextVar("sent_request", default=None)


@dataclass(eq=False)
class Process:
    """A process with its tasks."""

    name: str
    dice: Dice
    record: Callable[[str], None]
    alive: bool = True
    tasks: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    """In the order of their creation, so that a seed always cancels them in one order."""

    def spawn(self, work: Coroutine[Any, Any, Any], sent: Sent | None = None) -> asyncio.Task[Any]:
        """Run `work` as a task of this process."""
        context = copy_context()
        context.run(_current.set, self)
        context.run(sent_request.set, sent)
        return asyncio.get_running_loop().create_task(work, context=context)

    def crash(self, why: str) -> None:
        """End every task of the process at its next step."""
        if self.alive:
            self.record(f"{self.name} dies: {why}")
            self.alive = False
            for task in list(self.tasks):
                task.cancel()

    async def before(self, call: str) -> Fault | None:
        """Wait as long as the call takes to begin; return the fault that will strike it."""
        if not self.alive:
            raise Crash
        await asyncio.sleep(self.dice.latency_s())
        fault = self.dice.fault()
        if fault is not None:
            self.record(f"{self.name} {fault.value} {call}")
        if fault is Fault.PAUSE:
            await asyncio.sleep(self.dice.random.choice(PAUSES_S))
        if not self.alive:
            raise Crash
        if fault is Fault.CRASH_BEFORE:
            self.crash(call)
            raise Crash
        return fault

    async def after(self, fault: Fault | None, call: str, lost: Exception) -> None:
        """Deliver the response of a call, or not."""
        if fault in (Fault.CRASH_AFTER, Fault.CRASH_HALF):
            self.crash(call)
            raise Crash
        await asyncio.sleep(self.dice.latency_s())
        if not self.alive:
            raise Crash
        if fault in (Fault.LOST_AFTER, Fault.LOST_HALF):
            raise lost


def task_factory(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """Create a task that belongs to the process of its context."""
    context = options.get("context")
    process = _current.get() if context is None else context.get(_current)
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(lambda done: process.tasks.pop(done, None))
    return task


class SimLedger:
    """The ledger as a process reaches it."""

    def __init__(self, inner: MemoryLedger, process: Process) -> None:
        self._inner, self._process = inner, process

    async def run(self, work: Callable[[LedgerTransaction], Awaitable[Any]]) -> Any:
        call = "a transaction"
        fault = await self._process.before(call)
        if fault in (Fault.LOST_BEFORE, Fault.LOST_HALF, Fault.REFUSED):
            raise SystemUnavailable("the database did not respond")
        result = await self._inner.run(work)
        sent = sent_request.get()
        if sent is not None and not sent.has_base:
            sent.base, sent.has_base = sent.read_base(), True
        lost = TransactionOutcomeUnknown("the database did not say whether it committed")
        await self._process.after(fault, call, lost)
        return result


@dataclass(frozen=True)
class SimChanges:
    """Notifications about commits: they arrive soon, also without a change, or are lost."""

    process: Process

    @contextmanager
    def watch(self, commit: CommitId) -> Iterator[CommitWatch]:
        yield self

    async def wait(self, seconds: float) -> None:
        is_lost = self.process.dice.fault() is not None
        # Virtual time does not pass in a sleep that is shorter than its resolution.
        soon = self.process.dice.random.choice(NOTIFICATIONS_S)
        await asyncio.sleep(max(seconds, 0.001) if is_lost else soon)


class SimTopics:
    """Kafka as a process reaches it."""

    def __init__(self, inner: MemoryTopicAdmin, process: Process) -> None:
        self._inner, self._process = inner, process

    async def _do(
        self,
        call: str,
        do: Callable[[Sequence[Any]], Awaitable[Mapping[TopicName, TopicRefusal]]],
        items: Sequence[Any],
    ) -> Mapping[TopicName, TopicRefusal]:
        fault = await self._process.before(call)
        lost = SystemUnavailable("Kafka did not respond")
        if fault is Fault.LOST_BEFORE:
            raise lost
        half = fault in (Fault.CRASH_HALF, Fault.LOST_HALF)
        refused = items[:1] if fault is Fault.REFUSED else []
        done = items[: len(items) // 2] if half else items[len(refused) :]
        response = dict(await do(done))
        await self._process.after(fault, call, lost)
        return response | {getattr(item, "name", item): TopicRefusal("policy") for item in refused}

    async def create(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        await asyncio.sleep(self._process.dice.slow_kafka_s)
        return await self._do("the creation of topics", self._inner.create, topics)

    async def delete(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        return await self._do("the deletion of topics", self._inner.delete, names)

    async def names(self) -> list[TopicName]:
        await self._process.before("the list of topics")
        return await self._inner.names()

    async def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        fault = await self._process.before("the ends of topics")
        lost = SystemUnavailable("Kafka did not respond")
        if fault in (Fault.LOST_BEFORE, Fault.REFUSED):
            raise lost
        result = await self._inner.ends(partitions)
        await self._process.after(fault, "the ends of topics", lost)
        return result

    async def message_counts(self, topics: Mapping[TopicName, int]) -> Mapping[TopicName, int]:
        fault = await self._process.before("the counts of messages")
        lost = SystemUnavailable("Kafka did not respond")
        if fault in (Fault.LOST_BEFORE, Fault.REFUSED):
            raise lost
        result = await self._inner.message_counts(topics)
        await self._process.after(fault, "the counts of messages", lost)
        return result

    async def log_bounds(self, topics: Mapping[TopicName, int]) -> Sequence[OffsetRange]:
        return await self._inner.log_bounds(topics)

    async def read(
        self, ranges: Sequence[OffsetRange], *, seconds: float, size_bytes: int
    ) -> Sequence[ReadRange]:
        return await self._inner.read(ranges, seconds=seconds, size_bytes=size_bytes)
