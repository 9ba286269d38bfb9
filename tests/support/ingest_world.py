"""Ingest without Postgres or Kafka: bindings, catalogs, producers that are slow and fail."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import pyarrow as pa

from fennel_core.blueprints.spec import Catalog, SourceBinding
from fennel_core.executors.calls import ExecutorCall
from fennel_core.executors.client import Callbacks
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.committer import Committer
from fennel_core.ingest.log_service import LogService
from fennel_core.ingest.store import (
    BranchCatalog,
    Branches,
    MemoryDirectory,
    MemoryIngestClock,
    MemoryTransactionalProducer,
    ProducerRecord,
    TransactionalProducer,
    TransactionStart,
    boot_s,
    require_in_time,
)
from fennel_core.vocab.dtypes import Field, Float, Int, Str
from fennel_core.vocab.ids import (
    BranchName,
    CommitId,
    DatasetName,
    Identity,
    Micros,
    TopicName,
    WorkspaceId,
)
from fennel_core.vocab.raw_batches import RawRequest, requests_of
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode
from fennel_core.wire.connectors import Cdc, Source, Webhook, WebhookEndpoint

WORKSPACE = WorkspaceId("w")
MAIN = BranchName("main")
DAY_US = 24 * 3600 * 10**6
KEYED = Schema((Field("user", Str()),), (Field("age", Int()),), "at")
KEYLESS = Schema((), (Field("user", Str()), Field("amount", Float())), "at")
PARTITIONS = 4


def source(dataset: str = "Users", endpoint: str = "e", **changes: object) -> Source:
    base = Source(
        dataset=DatasetName(dataset),
        version=1,
        table=WebhookEndpoint(Webhook("hook", 7 * DAY_US), endpoint),
        cdc=Cdc.UPSERT,
        disorder_us=14 * DAY_US,
        every_us=None,
        cursor=None,
        timestamp_field=None,
        since_us=None,
        until_us=None,
        bounded=False,
        idleness_us=None,
        preproc=(),
        where=None,
        sampling=None,
    )
    return replace(base, **changes)


def binding(
    schema: Schema = KEYED,
    dataset: str = "Users",
    identity: str = "",
    endpoint: str = "e",
    of: Source | None = None,
) -> SourceBinding:
    name = identity or dataset.lower()
    return SourceBinding(
        identity=Identity(name),
        webhook="hook",
        endpoint=endpoint,
        source=of if of is not None else source(dataset, endpoint),
        dataset=DatasetName(dataset),
        schema=schema,
        topic=TopicName(f"w.topic.{name}.1"),
        raw_topic=TopicName(f"w.raw.{endpoint}.1"),
        dead_letters=TopicName("w.dead.1"),
    )


def catalog(*bindings: SourceBinding) -> Catalog:
    return Catalog(WORKSPACE, (), bindings, (), PARTITIONS)


def branches(version: str = "", **catalogs: Catalog) -> Branches:
    found = tuple(
        BranchCatalog(BranchName(name), CommitId(f"{name}{version}"), each)
        for name, each in catalogs.items()
    )
    return Branches(version, found)


def body(endpoint: str = "e", **columns: Sequence[object]) -> bytes:
    return json.dumps({"webhook": "hook", "endpoint": endpoint, "data": columns}).encode()


class NoExecutors:
    """Executors for sources without user code."""

    async def run(
        self,
        call: ExecutorCall,
        rows: pa.Table | pl.DataFrame | None,
        *,
        callbacks: Callbacks,
        timeout_ms: int | None = None,
    ) -> pa.Table:
        raise AssertionError("no user code was expected to run")


@dataclass
class ScriptedProducer:
    """An in-memory producer that yields to the event loop `turns()` times before a commit.

    It raises the exception that `fails()` returns.
    """

    log: dict[tuple[TopicName, int], list[ProducerRecord]]
    turns: Callable[[], int] = lambda: 0
    fails: Callable[[], Exception | None] = lambda: None
    commits: int = 0

    async def commit(
        self, messages: Sequence[ProducerRecord], deadline_s: float = math.inf
    ) -> None:
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        require_in_time(deadline_s)
        if (failure := self.fails()) is not None:
            raise failure
        self.commits += 1
        await MemoryTransactionalProducer(self.log).commit(messages)


@dataclass(slots=True)
class SlowClock(MemoryIngestClock):
    """A clock that yields to the event loop `turns()` times before and after it reads, as a
    database does.
    """

    turns: Callable[[], int] = lambda: 0

    async def begin(
        self, workspace: WorkspaceId, sources: Collection[Identity]
    ) -> TransactionStart:
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        start = await MemoryIngestClock.begin(self, workspace, sources)
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        return start


@dataclass
class World:
    """Servers over one clock, one directory and one log."""

    now_us: Callable[[], Micros] = lambda: Micros(1_700_000_000_000_000)
    now_s: Callable[[], float] = boot_s
    log: dict[tuple[TopicName, int], list[ProducerRecord]] = field(default_factory=dict)
    directory: MemoryDirectory = field(default_factory=MemoryDirectory)
    committers: list[Committer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SlowClock(lambda: self.now_us(), self.directory)

    def commit(self, version: str = "", **catalogs: Catalog) -> None:
        erased = self.directory.workspaces.get(WORKSPACE, branches()).erased
        self.directory.workspaces[WORKSPACE] = replace(branches(version, **catalogs), erased=erased)

    def server(
        self,
        producers: Sequence[TransactionalProducer] | None = None,
        executors: object | None = None,
        commit_within_s: float = math.inf,
    ) -> LogService:
        committer = Committer(
            self.clock,
            producers or [ScriptedProducer(self.log)],
            len(self.committers),
            commit_within_s=commit_within_s,
            now_s=lambda: self.now_s(),
        )
        self.committers.append(committer)

        async def secret(_: WorkspaceId, name: str) -> str | None:
            return f"secret {name}"

        runs = executors if executors is not None else NoExecutors()
        return LogService(Catalogs(self.directory), committer, runs, secret, 10_000)  # type: ignore[arg-type]  # a stand-in

    async def close(self) -> None:
        for committer in self.committers:
            await committer.close()

    def messages(self, topic: str) -> list[tuple[int, ProducerRecord]]:
        return [
            (partition, m)
            for (name, partition), found in sorted(self.log.items())
            if name == topic
            for m in found
        ]

    def raw(self, topic: str) -> list[RawRequest]:
        """All requests on a raw topic."""
        return [
            request
            for _, message in self.messages(topic)
            for request in requests_of(decode(message.value))
        ]

    def rows(self, topic: str) -> list[dict]:
        """All rows on a typed topic, with their partition."""
        return [
            {**row, "__part": partition}
            for partition, message in self.messages(topic)
            for row in decode(message.value).to_dicts()
        ]
