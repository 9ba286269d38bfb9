"""The loop that serves backfills: one failing request or turn never ends it.

Theory. The lane claims requests from the queue and serves each in a task of its own. An error that
the driver does not know (a job of a newer version, a defect) is logged, counted and recorded as the
reason of that request, whose owner parks with it and requests again after its own pauses. An error
of a turn of the loop itself is logged, reported by `/readyz` once it repeats, and tried again with
growing pauses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol

import structlog

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.telemetry import metrics
from fennel_core.vocab.ids import JobId, JobPartition, PartitionIndex

IDLE_S: Final = 60.0
"""Time between two turns without a notification: also the interval of deleting orphans."""
FIRST_PAUSE_S: Final = 1.0
REPORTED_FAILURES: Final = 3
"""Consecutive failed turns from which on `/readyz` reports them."""
log = structlog.get_logger(__name__)

BACKFILLS: Final = metrics.counter(
    "fennel_backfills",
    "Claimed backfills by outcome: `served` (staged, failed with a reason, or left to the next "
    "claim) or `error` (an unexpected error).",
    ("outcome",),
)
LANE_FAILURES: Final = metrics.gauge(
    "fennel_backfill_lane_failures", "Consecutive turns of the backfill lane that failed."
)


class ClaimQueue(Protocol):
    """What the lane needs of `engine.backfill.queue.BackfillQueue`."""

    async def claim(self) -> list[JobPartition]: ...

    async def fail(self, job: JobId, part: PartitionIndex, error: str) -> None: ...


class BackfillServer(Protocol):
    """What the lane needs of `engine.backfill.driver.BackfillDriver`."""

    async def serve(self, job: JobId, part: PartitionIndex) -> None: ...

    async def delete_orphans(self) -> None: ...


class BackfillLane:
    """Serves backfills until cancelled. `wakeups` yields when there may be a request."""

    def __init__(
        self,
        queue: ClaimQueue,
        server: BackfillServer,
        wakeups: Callable[[], AsyncIterator[object]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._queue, self._server, self._wakeups, self._sleep = queue, server, wakeups, sleep
        self._woken = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self._failures, self._reason = 0, ""
        self._running = False

    def problem(self) -> str | None:
        """Return why backfills are not served; None while they are."""
        if not self._running:
            return "the backfill lane is not running"
        return self._reason if self._failures >= REPORTED_FAILURES else None

    async def run(self) -> None:
        """Serve until cancelled."""
        self._running = True
        listening = asyncio.create_task(self._listen())
        try:
            while True:
                self._woken.clear()
                await self._turn()
                pause = min(FIRST_PAUSE_S * 2 ** (self._failures - 1), IDLE_S)
                if self._failures:
                    await self._sleep(pause)
                else:
                    await self._wait()
        finally:
            self._running = False
            for task in (listening, *self._serving):
                task.cancel()

    async def _turn(self) -> None:
        try:
            for partition in await self._queue.claim():
                task = asyncio.create_task(self._serve(*partition))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)
            await self._server.delete_orphans()
        except SystemUnavailable as unavailable:
            self._failed(str(unavailable))
            log.warning("backfill queue unavailable; retrying", error=str(unavailable))
        except Exception as failed:  # outermost loop: logged, reported and tried again
            self._failed(f"{type(failed).__name__}: {failed}")
            log.exception("turn of the backfill lane failed; retrying", failures=self._failures)
        else:
            self._failures = 0
        LANE_FAILURES.set(self._failures)

    def _failed(self, reason: str) -> None:
        self._failures, self._reason = self._failures + 1, reason

    async def _serve(self, job: JobId, part: PartitionIndex) -> None:
        try:
            await self._server.serve(job, part)
        except Exception as failed:  # outermost handler of this request
            BACKFILLS.labels("error").inc()
            log.exception("backfill failed", job=job, part=part)
            try:
                await self._queue.fail(job, part, f"{type(failed).__name__}: {failed}")
            except SystemUnavailable as unavailable:
                log.warning(
                    "the failure was not recorded; left to the next claim",
                    job=job,
                    part=part,
                    error=str(unavailable),
                )
        else:
            BACKFILLS.labels("served").inc()

    async def _listen(self) -> None:
        while True:
            try:
                async for _ in self._wakeups():
                    self._woken.set()
            except Exception:  # outermost loop: requests are also found without notifications
                log.exception("listener of the backfill lane failed; retrying")
            await self._sleep(FIRST_PAUSE_S)

    async def _wait(self) -> None:
        """Wait for a notification, at most `IDLE_S`."""
        waits = [
            asyncio.ensure_future(self._woken.wait()),
            asyncio.ensure_future(self._sleep(IDLE_S)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
