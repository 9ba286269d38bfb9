"""Group commit: requests that arrive while every lane is busy share the next transaction.

Theory. A Kafka transaction costs milliseconds whatever it carries, so each lane takes all that
waits for one workspace at once. Lanes run beside each other; acknowledgements of one workspace are
given in the order of stamps, so the order in which clients hear of their rows agrees with the rows'
positions. What a transaction accepted is recorded after it committed and before anybody is told, so
a request that is sent after an answer is judged by it. If that record cannot be written the rows
are in all the same: the next request is judged a little more leniently.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fennel_core.ingest.batches import IngestTransaction, PreparedRequest, build_transaction
from fennel_core.ingest.store import (
    Away,
    IngestClock,
    NotWritten,
    OutcomeUnknown,
    TransactionalProducer,
    TransactionStart,
)
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import WorkspaceId

REQUESTS_PER_TRANSACTION = 256
BYTES_PER_TRANSACTION = 16 * 1024 * 1024
"""Both bound how long one transaction keeps everybody in it waiting."""
log = logger(__name__)


class CatalogChanged(Exception):
    """The request was prepared under definitions that are no longer current: prepare it again."""


@dataclass(slots=True)
class _Waiting:
    request: PreparedRequest
    done: asyncio.Future[None]


@dataclass(slots=True)
class _Queue:
    """One workspace: what waits, and the end of the last transaction in the order of stamps."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    stamping: asyncio.Lock = field(default_factory=asyncio.Lock)
    last: asyncio.Future[None] | None = None
    lanes: int = 0
    """Lanes at work for it: it is forgotten only when there is none, or a newer queue would not
    know of their order.
    """


class Committer:
    """Runs the lanes. `told` hears of every transaction that committed (for metrics)."""

    def __init__(
        self,
        clock: IngestClock,
        lanes: Sequence[TransactionalProducer],
        server: int,
        told: Callable[[IngestTransaction], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._server = server
        self._told = told
        self._queues: OrderedDict[WorkspaceId, _Queue] = OrderedDict()
        self._work = asyncio.Semaphore(0)
        self._tasks = [asyncio.create_task(self._serve(lane)) for lane in lanes]

    async def submit(self, workspace: WorkspaceId, request: PreparedRequest) -> None:
        """Return when the request is written. Raises `CatalogChanged`, `Away`, `NotWritten`,
        `OutcomeUnknown`.

        A caller that goes away does not take its request back: it may already be under way.
        """
        queue = self._queues.setdefault(workspace, _Queue())
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        queue.waiting.append(waiting)
        self._work.release()
        await asyncio.shield(waiting.done)

    async def close(self) -> None:
        """Stop the lanes; whatever still waits is refused."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for queue in self._queues.values():
            for waiting in queue.waiting:
                waiting.done.set_exception(Away("the server is stopping"))

    async def _serve(self, lane: TransactionalProducer) -> None:
        while True:
            await self._work.acquire()
            workspace = next((w for w, queue in self._queues.items() if queue.waiting), None)
            if workspace is None:
                continue  # another lane took it along
            queue = self._queues[workspace]
            self._queues.move_to_end(workspace)
            queue.lanes += 1
            await self._run(lane, workspace, queue, self._take(queue))
            queue.lanes -= 1
            if not queue.waiting and not queue.lanes:
                del self._queues[workspace]

    def _take(self, queue: _Queue) -> list[_Waiting]:
        group: list[_Waiting] = []
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
        lane: TransactionalProducer,
        workspace: WorkspaceId,
        queue: _Queue,
        group: list[_Waiting],
    ) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before: asyncio.Future[None] | None = None
        failure: Exception | None = OutcomeUnknown("the server is stopping")
        try:
            sources = {e.feed.binding.identity for w in group for e in w.request.entries}
            async with queue.stamping:  # so that this queue's order is the stamps' order
                begun = await self._clock.begin(workspace, sources)
                before, queue.last = queue.last, ended
            group = _current(group, begun)
            if group:
                await self._write(lane, workspace, [w.request for w in group], begun)
            failure = None
        except (Away, NotWritten, OutcomeUnknown) as failed:
            failure = failed
        # BLE001: a supervisor's last line: the lane lives on and its callers are answered
        except Exception as unforeseen:
            log.error("a transaction failed in a way nobody expected", exc_info=unforeseen)
            failure = unforeseen
        finally:
            if before is not None:
                await asyncio.wait([before])
            for waiting in group:
                _finish(waiting.done, failure)
            ended.set_result(None)

    async def _write(
        self,
        lane: TransactionalProducer,
        workspace: WorkspaceId,
        requests: Sequence[PreparedRequest],
        begun: TransactionStart,
    ) -> None:
        made = build_transaction(requests, begun, self._server)
        if made.messages:
            await lane.commit(made.messages)
        if made.advances:
            try:
                await self._clock.accepted(workspace, made.advances)
            except Away as away:
                log.warning(
                    "what was accepted could not be recorded; lateness is judged more leniently",
                    reason=str(away),
                )
        self._told(made)


def _current(group: list[_Waiting], begun: TransactionStart) -> list[_Waiting]:
    """Those that were prepared under the current definitions; the others are told to prepare
    again.
    """
    for waiting in group:
        if waiting.request.version != begun.version:
            waiting.done.set_exception(CatalogChanged())
    return [w for w in group if w.request.version == begun.version]


def _finish(done: asyncio.Future[None], failure: Exception | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)
