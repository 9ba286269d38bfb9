"""An event loop on virtual time: the clock advances only when every task waits.

A minute of retries takes milliseconds, and a seed always produces the same run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Every task waits for another one and no timer is set."""


class _Waits(selectors.SelectSelector):
    """Moves the clock to the next timer instead of waiting for files."""

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
        """Run the call at once: real threads would make runs differ."""
        result: asyncio.Future[T] = self.create_future()
        try:
            result.set_result(func(*args))
        except Exception as failed:  # noqa: BLE001  # it is the result
            result.set_exception(failed)
        return result


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to completion on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)
