"""The query log of a query server: from served queries to messages on the workspaces' topics.

Theory. A query is logged after its response was encoded, by one call that appends it to a queue.
A thread of its own does everything else: it waits `LINGER_S` so that queries share blocks, encodes
them, and hands them to Kafka's producer, which sends and repeats them. So a query waits for nothing
that Kafka or this thread does.

What is not written is bounded: queued queries and messages that Kafka has not acknowledged count
against `limit_bytes`, and one workspace may use half of that. A query that does not fit is not
logged, and neither is one that Kafka did not take in time, or that waits when the process ends. All
these rows are counted by reason in `fennel_query_log_rows` and logged, and the first kind is
reported in the query's response. A process that is killed loses what it holds, about `LINGER_S` of
queries while Kafka is well.

The definition server creates the topic of a workspace for its first logged query; until then its
queries wait here, for at most `TOPIC_WAIT_S`.

    put → queue ─(LINGER_S)→ blocks → message → acknowledged
           │ full              │ no topic        │ refused, or not in time
           ▼                   ▼                 ▼
       queue-full           no-topic         not-written
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from fennel_core.query.log_blocks import (
    BLOCK_BYTES,
    ENCODING_ERRORS,
    LoggedQuery,
    blocks_of_queries,
    unencodable_column,
)
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger
from fennel_core.vocab import query_log_blocks
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.vocab.query_log_blocks import LogBlock

LINGER_S: Final = 0.2
"""A block costs about 1 ms, and each query in it some hundredths: so long are they collected."""
POLL_S: Final = 0.1
"""How often the thread looks for acknowledgements, and for topics, while it waits for any."""
TOPIC_WAIT_S: Final = 60.0
TOPIC_PAUSE_S: Final = 0.25
REPORT_S: Final = 10.0
"""Lost rows are logged at most so often."""
log = logger(__name__)


class RowOutcome(StrEnum):
    """What became of a row that was to be logged; all but `WRITTEN` are losses."""

    WRITTEN = "written"
    QUEUE_FULL = "queue-full"
    NO_TOPIC = "no-topic"
    NOT_WRITTEN = "not-written"
    NOT_ENCODED = "not-encoded"


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """Why Kafka did not take a message. `unknown_topic`: it has no such topic (any more)."""

    reason: str
    unknown_topic: bool


OnDelivery = Callable[[NotDelivered | None], None]


class LogProducer(Protocol):
    """Sends messages; used by one thread. `log_kafka.KafkaLogProducer` is the real one."""

    def produce(self, topic: TopicName, value: bytes, on_delivery: OnDelivery) -> None:
        """Send a message; `on_delivery` is called once, by this method, `poll` or `flush`."""
        ...

    def poll(self) -> None:
        """Call `on_delivery` of the messages whose outcome is known."""
        ...

    def flush(self, seconds: float) -> None:
        """Wait for the outcome of all messages; those without one by then are not delivered."""
        ...


class LogTopics(Protocol):
    """Finds the topics; `postgres.PostgresReader` is the real one."""

    async def query_log_topic(self, workspace: WorkspaceId) -> TopicName | None:
        """Return the topic of the workspace's query log, None until it has been created.

        The call requests it. Raises `DatabaseUnavailable`.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Queued:
    query: LoggedQuery
    since_s: float


class QueryLog:
    """Logs queries. `put` belongs to the event loop, as do `run` and `close`."""

    def __init__(self, producer: LogProducer, topics: LogTopics, limit_bytes: int) -> None:
        self._producer, self._topics = producer, topics
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        """Protects what both threads change: the queue, the sizes, known topics, lost rows."""
        self._queue: list[_Queued] = []
        self._bytes: Counter[WorkspaceId] = Counter()
        self._topic_of: dict[WorkspaceId, TopicName] = {}
        self._lost: Counter[tuple[WorkspaceId, RowOutcome, str]] = Counter()
        self._reported_s = -REPORT_S
        self._wanted: set[WorkspaceId] = set()
        """Workspaces whose topic `run` is asked for."""
        self._topic_wanted = asyncio.Event()
        self._waiting: list[_Queued] = []
        """Of the thread: queries without a topic."""
        self._wake = threading.Event()
        self._ends_s: float | None = None
        self._thread = threading.Thread(target=self._run_thread, name="query-log", daemon=True)
        self._thread.start()

    def put(self, query: LoggedQuery) -> bool:
        """Log a query; False if it does not fit, and its rows are counted as lost."""
        workspace, rows = query.key[0], len(query.kept)
        if not rows:
            return True
        size = query.held_bytes
        with self._lock:
            own, everything = self._bytes[workspace] + size, self._bytes.total() + size
            full = own > self._limit_bytes // 2 or everything > self._limit_bytes
            if full or self._ends_s is not None:
                self._lose(workspace, RowOutcome.QUEUE_FULL, rows)
                self._wake.set()
                return False
            self._bytes[workspace] = own
            self._queue.append(_Queued(query, time.monotonic()))
            unknown = workspace not in self._topic_of
        if unknown and workspace not in self._wanted:
            self._wanted.add(workspace)
            self._topic_wanted.set()
        self._wake.set()
        return True

    async def run(self) -> None:
        """Find the topics of workspaces, without end."""
        while True:
            await self._topic_wanted.wait()
            self._topic_wanted.clear()
            while self._wanted:
                for workspace in sorted(self._wanted):
                    await self._find_topic(workspace)
                if self._wanted:
                    await asyncio.sleep(TOPIC_PAUSE_S)

    async def _find_topic(self, workspace: WorkspaceId) -> None:
        try:
            topic = await self._topics.query_log_topic(workspace)
        except ApiError as unavailable:
            log.warning("topic of a query log not found; retrying", reason=str(unavailable))
            return
        with self._lock:
            if topic is not None:
                self._topic_of[workspace] = topic
            elif self._bytes[workspace]:
                return
        self._wanted.discard(workspace)
        self._wake.set()

    async def close(self, grace_s: float) -> None:
        """Write what is queued, for at most `grace_s`; the rest is counted as lost."""
        with self._lock:
            self._ends_s = time.monotonic() + grace_s
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    # --- the thread

    def _run_thread(self) -> None:
        while True:
            with self._lock:
                idle = not self._bytes.total() and not self._lost
            self._wake.wait(None if idle else POLL_S)
            if self._ends_s is None and self._wake.is_set():
                time.sleep(LINGER_S)
            self._wake.clear()
            self._pass()
            if self._ends_s is not None:
                self._finish()
                return

    def _pass(self) -> None:
        """Write the queued queries whose topic is known, and note what Kafka has acknowledged."""
        with self._lock:
            queued, self._queue = [*self._waiting, *self._queue], []
            topics = dict(self._topic_of)
        by_workspace: dict[WorkspaceId, list[LoggedQuery]] = defaultdict(list)
        waiting, late = [], []
        oldest_s = time.monotonic() - TOPIC_WAIT_S
        for each in queued:
            workspace = each.query.key[0]
            if workspace in topics:
                by_workspace[workspace].append(each.query)
            elif each.since_s < oldest_s:
                late.append(each.query)
            else:
                waiting.append(each)
        self._waiting = waiting
        self._drop(late, RowOutcome.NO_TOPIC)
        for workspace, queries in by_workspace.items():
            self._write(workspace, topics[workspace], queries)
        self._producer.poll()
        self._report(at_once=False)

    def _write(self, workspace: WorkspaceId, topic: TopicName, queries: list[LoggedQuery]) -> None:
        """Hand queries to the producer; those that cannot be encoded are lost, each alone."""
        try:
            messages = list(_messages(queries))
        except ENCODING_ERRORS as failed:
            if len(queries) > 1:
                for query in queries:
                    self._write(workspace, topic, [query])
            else:
                self._drop(queries, RowOutcome.NOT_ENCODED, _why_not_encoded(queries[0], failed))
            return
        with self._lock:
            self._bytes[workspace] -= sum(query.held_bytes for query in queries)
            self._bytes[workspace] += sum(len(value) for value, _ in messages)
        for value, rows in messages:
            self._producer.produce(topic, value, self._acknowledgement(workspace, len(value), rows))

    def _acknowledgement(self, workspace: WorkspaceId, size: int, rows: int) -> OnDelivery:
        def done(failed: NotDelivered | None) -> None:
            with self._lock:
                self._free(workspace, size)
                if failed is None:
                    metrics.QUERY_LOG_ROWS.labels(workspace, RowOutcome.WRITTEN).inc(rows)
                    return
                self._lose(workspace, RowOutcome.NOT_WRITTEN, rows, failed.reason)
                if failed.unknown_topic:
                    self._topic_of.pop(workspace, None)

        return done

    def _finish(self) -> None:
        assert self._ends_s is not None, "the log is being closed"
        # A query may have been put since the last pass took the queue, and none is put any more.
        self._pass()
        # Half of the time for topics that are not found yet, the rest for Kafka.
        topics_end_s = (time.monotonic() + self._ends_s) / 2
        while self._waiting and time.monotonic() < topics_end_s:
            self._wake.wait(POLL_S)
            self._wake.clear()
            self._pass()
        self._drop([each.query for each in self._waiting], RowOutcome.NO_TOPIC)
        self._producer.flush(max(0.0, self._ends_s - time.monotonic()))
        self._report(at_once=True)

    # --- what is lost

    def _drop(self, queries: Iterable[LoggedQuery], outcome: RowOutcome, reason: str = "") -> None:
        with self._lock:
            for query in queries:
                self._free(query.key[0], query.held_bytes)
                self._lose(query.key[0], outcome, len(query.kept), reason)

    def _free(self, workspace: WorkspaceId, size: int) -> None:
        self._bytes[workspace] -= size
        if not self._bytes[workspace]:
            del self._bytes[workspace]

    def _lose(
        self, workspace: WorkspaceId, outcome: RowOutcome, rows: int, reason: str = ""
    ) -> None:
        metrics.QUERY_LOG_ROWS.labels(workspace, outcome).inc(rows)
        self._lost[workspace, outcome, reason] += rows

    def _report(self, *, at_once: bool) -> None:
        """Log lost rows, and set the size of what is not written."""
        with self._lock:
            metrics.QUERY_LOG_BYTES.set(self._bytes.total())
            due = at_once or time.monotonic() - self._reported_s >= REPORT_S
            if not self._lost or not due:
                return
            lost, self._lost = self._lost, Counter()
            self._reported_s = time.monotonic()
        for (workspace, outcome, reason), rows in lost.items():
            log.error(
                "rows of a query log were lost",
                workspace=workspace,
                outcome=outcome.value,
                rows=rows,
                reason=reason,
            )


def _why_not_encoded(query: LoggedQuery, failed: BaseException) -> str:
    """Return the kind of failure and its column; the failure's text may have users' values."""
    column = unencodable_column(query)
    kind = type(failed).__name__
    return kind if column is None else f"{kind} in column `{column}`"


def _messages(queries: list[LoggedQuery]) -> Iterable[tuple[bytes, int]]:
    """Yield the messages of queries of one workspace, each with its number of rows."""
    held: list[LogBlock] = []
    size = 0
    for block, block_bytes in blocks_of_queries(queries):
        if held and size + block_bytes > BLOCK_BYTES:
            yield query_log_blocks.encode(held), sum(each.rows for each in held)
            held, size = [], 0
        held.append(block)
        size += block_bytes
    if held:
        yield query_log_blocks.encode(held), sum(each.rows for each in held)
