"""One runner over the in-memory log and store: a small job, its input rows and a broker with
faults.

The job keeps a sum per key and emits it with each row, so a lost or repeated row is visible in the
output.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import polars as pl
import pyarrow as pa

from fennel_core.blueprints.spec import Job, Output
from fennel_core.connections.errors import TransactionOutcomeUnknown
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.memory_broker import MemoryBroker, MemoryLog, MemoryProducer
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.operators import spec
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import Epoch, JobId, Offset, TopicName, TopicPartition, WorkspaceId
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode, encode, with_meta

T = TypeVar("T")
SCHEMA = Schema((), (Field("key", Str()), Field("value", Int())), "at")
SOURCE, TARGET, REPLAYLOG, DEAD = (
    TopicName(name) for name in ("source", "target", "replaylog", "dead")
)
LIMITS = RunnerLimits(iteration_bytes=2_000, environment="test")


class CountingStep:
    """Keeps a running sum per key and emits it with each row."""

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        names = [b"sum/" + name.encode() for name in batch["key"]]
        sums = {name: int(old or 0) for name, old in zip(names, reads.get_many(names), strict=True)}
        running = []
        for name, value in zip(names, batch["value"], strict=True):
            sums[name] += value
            running.append(sums[name])
        return Outcome(
            {name: b"%d" % total for name, total in sums.items()},
            emits=(OutputBatch(0, batch.with_columns(value=pl.Series(running))),),
        )


class SilentStep(CountingStep):
    """The same sums, without output."""

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        return Outcome(super().apply(reads, source, batch).puts)


class InlinePool:
    """`WorkerPool` that runs the work on the event loop."""

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()


def make_job(outputs: bool = True) -> Job:
    written = (Output(TARGET, ()),) if outputs else ()
    step = spec.TableSpec(SCHEMA)
    return Job(
        JobId("job"), WorkspaceId("w"), (SOURCE,), written, step, REPLAYLOG, DEAD, 1, "a job"
    )


def encoded_row(number: int, key: str, value: int, at: datetime | None = None) -> bytes:
    """Return a record value with one row; `number` orders it among the others."""
    rows = pa.table(
        {
            "key": pa.array([key], pa.large_string()),
            "value": [value],
            "at": pa.array([at or datetime.now(UTC)], pa.timestamp("us", "UTC")),
        }
    )
    return encode(with_meta(rows, stamp(Hlc(number), 0, 1)))


async def feed(log: MemoryLog, rows: Sequence[tuple[str, int]]) -> None:
    """Write each row in a transaction of its own, so that row n is at offset 2n."""
    producer = MemoryProducer(log, "ingest")
    for number, (key, value) in enumerate(rows):
        await producer.commit([OutgoingRecord(SOURCE, 0, encoded_row(number, key, value))])


def emitted(log: MemoryLog) -> list[tuple[str, int]]:
    return [
        row
        for record in log.log((TARGET, 0)).records
        for row in decode(record.value).select("key", "value").rows()
    ]


def expected(rows: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the rows that a single pass over `rows` emits."""
    sums: dict[str, int] = {}
    out = []
    for key, value in rows:
        sums[key] = sums.get(key, 0) + value
        out.append((key, sums[key]))
    return out


def make_runner(
    log: MemoryLog,
    hangar: MemoryHangar,
    epoch: int,
    *,
    outputs: bool = True,
    broker: MemoryBroker | None = None,
) -> Runner:
    logic = JobLogic(CountingStep() if outputs else SilentStep(), None, 1, None)
    return Runner(
        make_job(outputs),
        0,
        Epoch(epoch),
        logic,
        hangar,
        broker or MemoryBroker(log),
        InlinePool(),
        LIMITS,
    )


async def run_until(runner: Runner, offset: int | Mapping[TopicName, Offset]) -> None:
    """Run until everything below `offset` of the source (or of each topic) is applied; then cancel.

    Raises what the runner raises.
    """
    targets = offset if isinstance(offset, Mapping) else {SOURCE: Offset(offset)}
    task = asyncio.create_task(runner.run())
    async with asyncio.timeout(10):
        while runner.status in {"replaying", "backfilling"} or runner.behind(targets):
            waiting = asyncio.create_task(runner.changed())
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@dataclass
class ProcessDied(Exception):
    """The process ends here."""


@dataclass
class FaultyProducer:
    """Ends the process before or after a commit, or loses the response, as the seed decides."""

    inner: MemoryProducer
    random: random.Random
    rate: float
    died: list[str] = field(default_factory=list)

    async def commit(self, records: Sequence[OutgoingRecord]) -> Mapping[TopicPartition, Offset]:
        fault = (
            self.random.choice(["before", "after", "lost"])
            if self.random.random() < self.rate
            else None
        )
        if fault == "before":
            raise ProcessDied
        written = await self.inner.commit(records)
        if fault == "after":
            raise ProcessDied
        if fault == "lost":
            raise TransactionOutcomeUnknown("the response to the commit was lost")
        return written

    async def close(self) -> None:
        """Nothing to release."""


class FaultyBroker(MemoryBroker):
    def __init__(self, log: MemoryLog, seed: random.Random) -> None:
        super().__init__(log)
        self._random = seed

    async def producer(self, transactional_id: str) -> FaultyProducer:
        return FaultyProducer(await super().producer(transactional_id), self._random, 0.2)
