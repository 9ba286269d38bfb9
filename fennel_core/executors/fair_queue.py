"""A queue in which callers take turns. Standard library only: both environments import this module.

Every item belongs to a share: a workspace of one platform process. The items of a share wait in
order, and the shares take turns, so a share with a thousand waiting calls delays the first call of
another one by one call and not by a thousand. Turns alone do not help a share that arrives while
another one occupies every place with long calls, so users of the queue also limit the places of one
workspace: they pass over shares that may not have another one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """One line per share."""

    def __init__(self) -> None:
        self._lines: OrderedDict[int, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[T]:
        for line in self._lines.values():
            yield from line

    def append(self, share: int, item: T) -> None:
        """Add an item behind those of its share."""
        self._lines.setdefault(share, deque()).append(item)

    def pop_allowed(self, allowed: Callable[[T], bool]) -> T | None:
        """Remove the first item of the next share for whose first item `allowed` is true."""
        found = next((share for share, line in self._lines.items() if allowed(line[0])), None)
        if found is None:
            return None
        line = self._lines[found]
        item = line.popleft()
        self._drop_empty(found, line)
        if found in self._lines:
            self._lines.move_to_end(found)
        return item

    def discard(self, share: int, item: T) -> None:
        """Remove an item if it waits."""
        line = self._lines.get(share)
        if line is not None and item in line:
            line.remove(item)
            self._drop_empty(share, line)

    def _drop_empty(self, share: int, line: deque[T]) -> None:
        if not line:
            del self._lines[share]


class FairCapacity:
    """A semaphore of one event loop whose waiting shares take turns.

    A share has at most `per_share` of the `size` places.
    """

    def __init__(self, size: int, per_share: int) -> None:
        self._free = size
        self._per_share = per_share
        self._used: Counter[int] = Counter()
        self._waiting: FairQueue[_Turn] = FairQueue()

    async def acquire(self, share: int) -> None:
        """Take a place; `release` gives it back."""
        if self._free > 0 and self._used[share] < self._per_share:
            self._free -= 1
            self._used[share] += 1
            return
        turn = _Turn(share, asyncio.get_running_loop().create_future())
        self._waiting.append(share, turn)
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn.granted.done() and not turn.granted.cancelled():
                # The place was granted in the same turn of the event loop.
                self.release(share)
            self._waiting.discard(share, turn)
            raise

    def release(self, share: int) -> None:
        """Give the place of a share to the next one that waits and may have it."""
        self._free += 1
        self._used[share] -= 1
        if not self._used[share]:
            del self._used[share]
        while self._free:
            turn = self._waiting.pop_allowed(self._may_have_another)
            if turn is None:
                return
            if not turn.granted.done():
                self._free -= 1
                self._used[turn.share] += 1
                turn.granted.set_result(None)

    def _may_have_another(self, turn: _Turn) -> bool:
        return self._used[turn.share] < self._per_share


@dataclass(eq=False, slots=True)
class _Turn:
    share: int
    granted: asyncio.Future[None]
