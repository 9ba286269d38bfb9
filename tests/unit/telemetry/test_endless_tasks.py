"""A process of endless tasks ends with a signal or an error, and waits for no call that hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from fennel_core.telemetry.endless_tasks import in_daemon_thread, run_until_stopped, stop_signals


class Life:
    """The steps that a process went through."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.blocked = threading.Event()

    async def endless(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.steps.append("cancelled")

    async def failing(self) -> None:
        raise ValueError("the work failed")

    def close(self) -> None:
        self.steps.append("closed")

    def hang(self) -> None:
        self.blocked.wait()

    async def cleanup(self) -> None:
        self.steps.append("cleaned")


async def run(
    life: Life, stop: asyncio.Event, *, close_s: float = 30.0, hangs: bool = False
) -> None:
    await run_until_stopped(
        "p",
        stop,
        [life.endless()],
        life.hang if hangs else life.close,
        life.cleanup,
        close_s=close_s,
    )


async def test_a_signal_ends_the_tasks_before_what_they_use_is_closed() -> None:
    life, stop = Life(), stop_signals()
    running = asyncio.create_task(run(life, stop))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 30)
    assert life.steps == ["cancelled", "closed", "cleaned"]


async def test_the_error_of_a_task_is_raised_after_everything_is_closed() -> None:
    life = Life()
    work = [life.endless(), life.failing()]
    with pytest.raises(ValueError, match="the work failed"):
        await run_until_stopped("p", asyncio.Event(), work, life.close, life.cleanup, close_s=30.0)
    assert life.steps == ["cancelled", "closed", "cleaned"]


async def test_a_close_that_hangs_is_left_behind() -> None:
    life, stop = Life(), asyncio.Event()
    stop.set()
    await asyncio.wait_for(run(life, stop, close_s=0.01, hangs=True), 30)
    assert life.steps[-1] == "cleaned"
    life.blocked.set()


async def test_an_error_of_close_is_raised_after_the_cleanup() -> None:
    life = Life()
    stop = asyncio.Event()
    stop.set()

    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await run_until_stopped("p", stop, [life.endless()], fail, life.cleanup, close_s=30.0)
    assert life.steps[-1] == "cleaned"


async def test_a_thread_returns_and_raises_and_does_not_hold_up_the_end_of_the_process() -> None:
    daemon = await in_daemon_thread(lambda: threading.current_thread().daemon, "t")
    assert daemon
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(lambda: 1 // 0, "t")


async def test_a_caller_that_is_cancelled_leaves_the_thread_alone() -> None:
    started, released, ended = (threading.Event() for _ in range(3))

    def work() -> None:
        started.set()
        released.wait()
        ended.set()

    calling = asyncio.create_task(in_daemon_thread(work, "t"))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(started.wait, 30)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    released.set()
    assert await asyncio.to_thread(ended.wait, 30)
