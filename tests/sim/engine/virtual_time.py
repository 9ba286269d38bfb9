"""An event loop on which time passes only when everybody waits: a minute of retries takes
milliseconds, and a seed tells one story.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Everybody waits for somebody and no timer is set."""


class _Waits(selectors.SelectSelector):
    """Instead of waiting for files it moves the clock to the next timer."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock
        self.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waits = _Waits()
        super().__init__(self._waits)

    def time(self) -> float:
        return self._waits.now_s

    def run_in_executor(
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:  # type: ignore[override]  # simpler
        """What is asked of a thread is done at once: threads would tell another story every
        time.
        """
        answer: asyncio.Future[T] = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as failed:  # noqa: BLE001  # it is the answer
            answer.set_exception(failed)
        return answer


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)
