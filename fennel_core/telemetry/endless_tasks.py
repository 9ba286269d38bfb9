"""The life of a process whose tasks have no end: until a signal, or until one of them raises.

Threads of a pool are joined when the process ends, so one call that hangs (in a JVM, or in a
client of a cluster that does not respond) would keep a stopped process alive. `in_daemon_thread`
runs a call in a thread of its own, which ends with the process.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import TypeVar

import structlog

T = TypeVar("T")
log = structlog.get_logger(__name__)


def stop_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    return stop


async def run_until_stopped(
    process: str,
    stop: asyncio.Event,
    work: Sequence[Coroutine[None, None, None]],
    close: Callable[[], None],
    cleanup: Callable[[], Awaitable[None]],
    *,
    close_s: float,
) -> None:
    """Run the endless `work` until `stop` is set or one of it raises; raise that error at the end.

    `close` may block: it runs in a thread, and is left behind after `close_s`. `cleanup` is awaited
    after it, whatever happened.
    """
    tasks = [asyncio.create_task(each) for each in work]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
    log.info(f"{process} is stopping")
    ended = [task for task in tasks if task.done()]
    # First of all: what is closed under a task would only make it fail.
    for task in (*tasks, stopping):
        task.cancel()
    closing = asyncio.create_task(in_daemon_thread(close, f"{process}-close"))
    try:
        _, late = await asyncio.wait([closing], timeout=close_s)
        if late:
            log.warning("a call that blocks is left behind", process=process, after_s=close_s)
            closing.cancel()
        else:
            closing.result()
    finally:
        await cleanup()
        for task in ended:
            # The work is endless, so a finished task has an error to raise.
            task.result()


async def in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """Return what `work` returns, or raise what it raises; the process may end before it does."""
    done: Future[T] = Future()

    def run() -> None:
        # From here on a caller that is cancelled leaves the future alone.
        done.set_running_or_notify_cancel()
        try:
            done.set_result(work())
        except BaseException as failed:  # noqa: BLE001  # the caller gets it
            done.set_exception(failed)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(done)
