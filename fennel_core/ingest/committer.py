"""Group commit: requests that arrive while every producer is busy share the next transaction.

A Kafka transaction costs milliseconds whatever its size, so each producer takes all waiting
requests of one workspace at once. Producers run concurrently. Acknowledgements of one workspace are
sent in the order of stamps, so the order in which clients learn of their rows agrees with the
positions of the rows. The progress of the sources is recorded after the commit and before the
acknowledgement, so it applies to every request that is sent after an acknowledgement. If that
record cannot be written, the rows are committed all the same and the next request is judged more
leniently.

A transaction has a deadline that begins before its stamp: a process that was stopped in between
(frozen, or starved of CPU) writes nothing afterwards. After a commit and that time, no request
under the definitions before it is accepted any more; `ledger.purge` waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.ingest.batches import IngestTransaction, PreparedRequest, build_transaction
from fennel_core.ingest.errors import CatalogChanged
from fennel_core.ingest.store import IngestClock, TransactionalProducer, TransactionStart, boot_s
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import WorkspaceId

REQUESTS_PER_TRANSACTION = 256
BYTES_PER_TRANSACTION = 16 * 1024 * 1024
"""Both bound the latency that one transaction adds to each of its requests."""
log = logger(__name__)


@dataclass(slots=True)
class _PendingRequest:
    request: PreparedRequest
    done: asyncio.Future[None]


@dataclass(slots=True)
class _Queue:
    """The pending requests of a workspace, and the end of its transaction with the last stamp."""

    waiting: deque[_PendingRequest] = field(default_factory=deque)
    stamping: asyncio.Lock = field(default_factory=asyncio.Lock)
    last: asyncio.Future[None] | None = None
    producers: int = 0
    """Producers at work on this queue. It is dropped only at zero: a new queue would not know the
    order of their transactions.
    """


class Committer:
    """Runs the producers; calls `on_commit` with every committed transaction (for metrics).

    `commit_within_s`: the time from before a stamp until its transaction may be committed.
    """

    def __init__(
        self,
        clock: IngestClock,
        producers: Sequence[TransactionalProducer],
        server: int,
        on_commit: Callable[[IngestTransaction], None] = lambda _: None,
        *,
        commit_within_s: float = math.inf,
        now_s: Callable[[], float] = boot_s,
    ) -> None:
        self._commit_within_s, self._now_s = commit_within_s, now_s
        self._clock = clock
        self._server = server
        self._on_commit = on_commit
        self._queues: OrderedDict[WorkspaceId, _Queue] = OrderedDict()
        self._work = asyncio.Semaphore(0)
        self._tasks = [asyncio.create_task(self._serve(producer)) for producer in producers]

    async def submit(self, workspace: WorkspaceId, request: PreparedRequest) -> None:
        """Return when the request is written.

        Raises `CatalogChanged`, `SystemUnavailable`, `TransactionAborted` and
        `TransactionOutcomeUnknown`. Cancelling the caller does not withdraw the request: its
        transaction may already be running.
        """
        queue = self._queues.setdefault(workspace, _Queue())
        waiting = _PendingRequest(request, asyncio.get_running_loop().create_future())
        queue.waiting.append(waiting)
        self._work.release()
        await asyncio.shield(waiting.done)

    async def close(self) -> None:
        """Stop the producers and fail the pending requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for queue in self._queues.values():
            for waiting in queue.waiting:
                waiting.done.set_exception(SystemUnavailable("the server is stopping"))

    async def _serve(self, producer: TransactionalProducer) -> None:
        while True:
            await self._work.acquire()
            workspace = next((w for w, queue in self._queues.items() if queue.waiting), None)
            if workspace is None:
                continue  # Another producer took the request in its group.
            queue = self._queues[workspace]
            self._queues.move_to_end(workspace)
            queue.producers += 1
            await self._run(producer, workspace, queue, self._take(queue))
            queue.producers -= 1
            if not queue.waiting and not queue.producers:
                del self._queues[workspace]

    def _take(self, queue: _Queue) -> list[_PendingRequest]:
        group: list[_PendingRequest] = []
        size = 0
        while queue.waiting and len(group) < REQUESTS_PER_TRANSACTION:
            size += len(queue.waiting[0].request.body)
            if group and size > BYTES_PER_TRANSACTION:
                self._work.release()
                break
            group.append(queue.waiting.popleft())
        return group

    async def _run(
        self,
        producer: TransactionalProducer,
        workspace: WorkspaceId,
        queue: _Queue,
        group: list[_PendingRequest],
    ) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before: asyncio.Future[None] | None = None
        failure: Exception | None = TransactionOutcomeUnknown("the server is stopping")
        try:
            sources = {e.target.binding.identity for w in group for e in w.request.entries}
            # The lock makes the order of this queue the order of stamps.
            async with queue.stamping:
                deadline_s = self._now_s() + self._commit_within_s
                start = await self._clock.begin(workspace, sources)
                before, queue.last = queue.last, ended
            group = _current(group, start)
            if group:
                await self._write(
                    producer, workspace, [w.request for w in group], start, deadline_s
                )
            failure = None
        except (SystemUnavailable, TransactionAborted, TransactionOutcomeUnknown) as failed:
            failure = failed
        # Outermost loop of a producer: it must survive, and its callers need a result.
        except Exception as unexpected:
            log.error("transaction failed unexpectedly", exc_info=unexpected)
            failure = unexpected
        finally:
            if before is not None:
                await asyncio.wait([before])
            for waiting in group:
                _finish(waiting.done, failure)
            ended.set_result(None)

    async def _write(
        self,
        producer: TransactionalProducer,
        workspace: WorkspaceId,
        requests: Sequence[PreparedRequest],
        start: TransactionStart,
        deadline_s: float,
    ) -> None:
        transaction = build_transaction(requests, start, self._server)
        if transaction.messages:
            await producer.commit(transaction.messages, deadline_s)
        if transaction.advances:
            try:
                await self._clock.record_accepted(workspace, transaction.advances)
            except SystemUnavailable as lost:
                log.warning(
                    "source progress could not be recorded; lateness is judged more leniently",
                    reason=str(lost),
                )
        self._on_commit(transaction)


def _current(group: list[_PendingRequest], start: TransactionStart) -> list[_PendingRequest]:
    """Return the requests prepared under the current definitions; fail the others."""
    for waiting in group:
        if waiting.request.version != start.version:
            waiting.done.set_exception(CatalogChanged("the definitions changed"))
    return [w for w in group if w.request.version == start.version]


def _finish(done: asyncio.Future[None], failure: Exception | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)
