"""The work of Spark's Python workers: write the messages of one source partition.

Spark gives each partition of a stream with new messages a task, and a worker process many tasks,
one after the other. What a process needs for all of them (an event loop, a connection to the
database, producers) is made with its first task and lives as long as the process.

A task reports what became of its rows; the driver counts it, because workers come and go.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from fennel_core.blueprints.spec import SourceBinding
from fennel_core.connections import postgres, secrets
from fennel_core.connections.kafka import COMMIT_WITHIN_TRANSACTIONS
from fennel_core.connections.secret_uses import SecretUses
from fennel_core.executors.client import Executors
from fennel_core.ingest.batches import IngestTransaction
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.postgres import PostgresDirectory, PostgresIngestClock
from fennel_core.settings.model import Settings
from fennel_core.sources.formats import decoder_of
from fennel_core.sources.kafka import KafkaSourceLog
from fennel_core.sources.messages import Decode, MessageBatch
from fennel_core.sources.store import FeedPartition
from fennel_core.sources.writer import PartitionWriter
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import RecordFormat, SealedSecret

T = TypeVar("T")
WRITERS: Final = 64
"""Partitions whose producers a process keeps; one costs some threads and a connection."""
DECODERS: Final = 64
"""Formats whose schemas a process keeps; each registry has connections of its own."""
COUNTS: Final = pa.schema(
    [
        ("source", pa.string()),
        ("dataset", pa.string()),
        ("accepted", pa.int64()),
        ("late", pa.int64()),
        ("dead", pa.int64()),
        ("latest_us", pa.int64()),
    ]
)
COUNTS_DDL: Final = (
    "source string, dataset string, accepted bigint, late bigint, dead bigint, latest_us bigint"
)

FeedTask = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def feed_task(
    settings: Settings,
    of: Callable[[int], FeedPartition],
    origin: str,
    rewinds: Mapping[int, int],
    record_format: RecordFormat,
) -> FeedTask:
    """Return the function that workers run over the messages of one source partition.

    Columns: partition, offset, value, in the order of the partition. `rewinds`: of the positions
    that the query began at, by partition; 0 for others.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield task_process(settings).write(of, origin, rewinds, record_format, batch)

    return work


@dataclass(slots=True)
class _Counted:
    """What became of the rows of one source of a dataset."""

    accepted: int = 0
    late: int = 0
    dead: int = 0
    latest_us: int | None = None


@dataclass(slots=True)
class Counts:
    """What became of the rows of a task, by source and dataset."""

    found: dict[tuple[str, str], _Counted] = field(default_factory=dict)

    def add(self, done: IngestTransaction, read: Sequence[SourceBinding]) -> None:
        """Count a transaction. Sources that were `read` have a row, whatever became of theirs."""
        for binding in read:
            self._of(binding)
        for source in done.accepted:
            counted = self._of(source.binding)
            counted.accepted += source.rows
            times = [us for us in (counted.latest_us, source.latest_us) if us is not None]
            counted.latest_us = max(times, default=None)
        for late in done.discarded:
            self._of(late.binding).late += late.rows
        for binding, rows in done.dead:
            self._of(binding).dead += rows

    def _of(self, binding: Any) -> _Counted:
        key = (f"{binding.webhook}_{binding.endpoint}", str(binding.dataset))
        return self.found.setdefault(key, _Counted())

    def batch(self) -> pa.RecordBatch:
        rows = [
            {
                "source": source,
                "dataset": dataset,
                "accepted": counted.accepted,
                "late": counted.late,
                "dead": counted.dead,
                "latest_us": counted.latest_us,
            }
            for (source, dataset), counted in self.found.items()
        ]
        return pa.RecordBatch.from_pylist(rows, schema=COUNTS)


class TaskProcess:
    """What the tasks of one worker process share."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="sources", daemon=True).start()
        self._stack = AsyncExitStack()
        self._writers: OrderedDict[
            tuple[FeedPartition, str, int, RecordFormat], tuple[PartitionWriter, Counts]
        ] = OrderedDict()
        self._decoders: OrderedDict[tuple[WorkspaceId, RecordFormat], Decode] = OrderedDict()
        self.run(self._open())

    def write(
        self,
        of: Callable[[int], FeedPartition],
        origin: str,
        rewinds: Mapping[int, int],
        record_format: RecordFormat,
        batch: pa.RecordBatch,
    ) -> pa.RecordBatch:
        """Write a batch of messages of one partition; return what became of them."""
        numbers = batch.column(0).unique()
        assert len(numbers) == 1, "a task has the messages of one partition"
        partition = of(numbers[0].as_py())
        rewound = rewinds.get(partition.number, 0)
        writer, counts = self.writer(partition, origin, rewound, record_format)
        counts.found.clear()
        offsets = batch.column(1).to_numpy().astype(np.int64)
        self.run(writer.write(MessageBatch(offsets, batch.column(2).to_pylist())))
        return counts.batch()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns on the event loop of the process; blocks."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        settings, enter = self._settings, self._stack.enter_async_context
        pool = await enter(
            postgres.pool(
                settings.postgres_dsn.get_secret_value(), name="fennel-sources-task", size=1
            )
        )
        self._executors = await enter(
            Executors(settings.executors_socket, time_limit_ms=settings.executor_time_limit_ms)
        )
        self._clock = PostgresIngestClock(pool)
        self._catalogs = Catalogs(PostgresDirectory(pool))
        key_file = settings.secrets_key_file
        self._sealer = None if key_file is None else secrets.Sealer.from_file(key_file)
        self._secret = SecretUses(pool, self._sealer).read
        self._log = KafkaSourceLog(settings, ThreadPoolExecutor(4, thread_name_prefix="source"))
        self._server = await self._clock.server_number()

    def writer(
        self, partition: FeedPartition, origin: str, rewinds: int, record_format: RecordFormat
    ) -> tuple[PartitionWriter, Counts]:
        """Return the writer of a partition, and what becomes of the rows that it writes."""
        key = (partition, origin, rewinds, record_format)
        if key not in self._writers:
            counts = Counts()
            self._writers[key] = (
                PartitionWriter(
                    partition,
                    origin,
                    self._log,
                    self._clock,
                    self._catalogs,
                    self._executors,
                    self._secret,
                    server=self._server,
                    commit_within_s=COMMIT_WITHIN_TRANSACTIONS
                    * self._settings.transaction_timeout_ms
                    / 1000,
                    rewinds=rewinds,
                    on_commit=counts.add,
                    decode=self._decoder(partition.workspace, record_format),
                ),
                counts,
            )
        self._writers.move_to_end(key)
        while len(self._writers) > WRITERS:
            _, (idle, _) = self._writers.popitem(last=False)
            idle.close()
        return self._writers[key]

    def _decoder(self, workspace: WorkspaceId, record_format: RecordFormat) -> Decode:
        """Return the decoder of a format, which the partitions of a stream share."""
        key = (workspace, record_format)
        if key not in self._decoders:
            self._decoders[key] = decoder_of(
                record_format, lambda secret: self._open_secret(workspace, secret)
            )
        self._decoders.move_to_end(key)
        while len(self._decoders) > DECODERS:
            self._decoders.popitem(last=False)
        return self._decoders[key]

    def _open_secret(self, workspace: WorkspaceId, secret: SealedSecret) -> str:
        if self._sealer is None:
            raise secrets.SecretUnreadable(
                "a schema registry has a password and this server has no key to decrypt it; set "
                "FENNEL_SECRETS_KEY_FILE"
            )
        return self._sealer.open(workspace, secrets.CREDENTIAL, secret.token.encode("ascii"))


@lru_cache(maxsize=1)
def task_process(settings: Settings) -> TaskProcess:
    """Return what the tasks of this worker process share."""
    return TaskProcess(settings)
