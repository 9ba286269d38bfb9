"""Streaming sources without Kafka or Spark: a feed, its catalog, and a log that fails by script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from fennel_core.blueprints.spec import SourceBinding
from fennel_core.connections.errors import TransactionOutcomeUnknown
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.store import ProducerRecord
from fennel_core.sources.messages import MessageBatch
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.read_rows import ArrowRows, RowBatch, StreamPlace
from fennel_core.sources.store import FeedPartition, MemorySession, MemorySourceLog
from fennel_core.sources.writer import PartitionWriter
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import JsonFormat, Kafka, KafkaTopic, Login
from tests.support.ingest_world import PARTITIONS, WORKSPACE, NoExecutors, World, binding, source

AT_US = 1_700_000_000_000_000
ORIGIN = "cluster/topic"
POSITIONS = TopicName("w.positions.orders.1")
RAW = TopicName("w.raw.orders.1")
CONNECTOR = Kafka("kafka", "broker:9092", "PLAINTEXT", "PLAIN", None, "", Login(None, None))


def stream_source(dataset: str = "Users", **changes: object) -> SourceBinding:
    """Return the binding of a dataset to Kafka topic `orders`."""
    orders = KafkaTopic(CONNECTOR, "orders", JsonFormat())
    of = source(dataset, **({"table": orders} | changes))
    return replace(
        binding(dataset=dataset, of=of),
        webhook="kafka",
        endpoint="orders",
        raw_topic=RAW,
        positions=POSITIONS,
    )


def partition(number: int = 0) -> FeedPartition:
    return FeedPartition(
        WORKSPACE,
        f"Kafka topic `orders`[{number}]",
        "kafka",
        "orders",
        RAW,
        POSITIONS,
        PARTITIONS,
        number,
    )


def batch(messages: Sequence[bytes | None], first: int = 0) -> MessageBatch:
    """Return messages at consecutive offsets."""
    return MessageBatch(np.arange(first, first + len(messages), dtype=np.int64), list(messages))


def users(first: int, count: int, title: str = "file `a`") -> ArrowRows:
    """Return typed rows; the n-th of the stream has age n."""
    ages = range(first, first + count)
    rows = pa.record_batch(
        {
            "user": [f"u{n}" for n in ages],
            "age": pa.array(ages, pa.int32()),
            "at": pa.array([AT_US + n for n in ages], pa.timestamp("us", "UTC")),
        }
    )
    return ArrowRows(title, rows, np.arange(first, first + count, dtype=np.int64))


def row_batch(first: int, count: int, **changes: object) -> RowBatch:
    """Return `count` rows that follow row `first`."""
    after, end = (StreamPlace(n, f"row {n}" if n else "") for n in (first, first + count))
    return replace(RowBatch(after, end, (users(first, count),)), **changes)


def message(**columns: object) -> bytes:
    return json.dumps(columns).encode()


@dataclass
class Fault:
    """What happens to one transaction: it fails before or after its commit."""

    error: Exception
    committed: bool


@dataclass(slots=True)
class FaultySession:
    """A session that yields to the event loop before it commits, and fails as the script says."""

    inner: MemorySession
    turns: Callable[[], int]
    fault: Callable[[], Fault | None]

    @property
    def position(self) -> SourcePosition | None:
        return self.inner.position

    @property
    def notes(self) -> Mapping[str, bytes]:
        return self.inner.notes

    async def commit(
        self, messages: Sequence[ProducerRecord], position: SourcePosition, deadline_s: float
    ) -> None:
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        fault = self.fault()
        if fault is None or fault.committed:
            await self.inner.commit(messages, position, deadline_s)
        if fault is not None:
            raise fault.error

    def close(self) -> None:
        self.inner.close()


@dataclass
class SourceWorld:
    """Writers over one platform's log."""

    world: World = field(default_factory=World)
    turns: Callable[[], int] = lambda: 0
    fault: Callable[[], Fault | None] = lambda: None

    def __post_init__(self) -> None:
        self.memory = MemorySourceLog(self.world.log)

    async def open(self, of: FeedPartition) -> FaultySession:
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        return FaultySession(await self.memory.open(of), self.turns, self.fault)

    def writer(self, number: int = 0, origin: str = ORIGIN, rewinds: int = 0) -> PartitionWriter:
        async def secret(_: WorkspaceId, code: str, name: str) -> str | None:
            return f"secret {name}"

        return PartitionWriter(
            partition(number),
            origin,
            self,
            self.world.clock,
            Catalogs(self.world.directory),
            NoExecutors(),
            secret,
            server=number,
            commit_within_s=60.0,
            rewinds=rewinds,
        )

    def read(self) -> list[dict]:
        """Return every row of the raw requests, in the order of the log."""
        return [row for raw in self.world.raw(RAW) for row in rows_of(raw.body)]


def rows_of(body: bytes) -> list[dict]:
    """Return the rows of a raw request, which are sent as rows or as columns."""
    data = json.loads(body)["data"]
    if isinstance(data, list):
        return data
    return [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]


LOST_AFTER = Fault(TransactionOutcomeUnknown("the response was lost"), committed=True)
LOST_BEFORE = Fault(TransactionOutcomeUnknown("the response was lost"), committed=False)
