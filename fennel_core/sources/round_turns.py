"""Turns of rounds: how many sources of files may have a worker at once.

A round keeps a worker for some 20 s. If sources of files had all workers, the messages of Kafka
would wait for them, so one worker is left to others wherever there are several. Turns are given in
the order in which they were asked for: a source with many files left asks again at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOK_S: Final = 0.5
"""How often a source that waits for its turn looks whether it was stopped."""


class Turns:
    """At most `count` turns at once, first come, first served. Use from any thread."""

    def __init__(self, count: int) -> None:
        assert count > 0, "a turn comes"
        self._free = count
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, stopped: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a turn and keep it in the block; give False if `stopped` came first."""
        given = self._wait(stopped)
        try:
            yield given
        finally:
            if given:
                with self._changed:
                    self._free += 1
                    self._changed.notify_all()

    def _wait(self, stopped: Callable[[], bool]) -> bool:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while not stopped():
                    if self._free and self._waiting[0] is ticket:
                        self._free -= 1
                        return True
                    self._changed.wait(LOOK_S)
                return False
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()


def worker_turns(workers: int) -> Turns:
    """Return the turns of sources of files among `workers`: all but one, and at least one."""
    return Turns(max(1, workers - 1))
