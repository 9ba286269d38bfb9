"""Read one state over several turns of the event loop, while its owner goes on writing.

A read that fits into one turn needs nothing: batches are applied on the same thread. A longer read
gives way to others, and batches are applied in between. A view keeps what such a batch replaces and
reads around it, so that it shows the state at its beginning: of a batch everything or nothing. (An
iterator of rocksdict shows the latest data also over a snapshot, so RocksDB's own snapshots cannot
be used.) A view costs its owner one read per batch, and memory for the entries that change while it
is open; readers have a deadline.

    with state.view() as view:
        first = view.scan(b"a", b"b")
        await asyncio.sleep(0)         # batches may be applied here
        second = view.get_many(keys)   # ... and are not visible here
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from fennel_core.hangar.store import WriteBatch
from fennel_core.operators.step import StateReader

KEEP_KEYS: Final = 5_000
"""Keys of a large batch that an open view keeps at once: 25 ms."""


class ReadView:
    """The state as it was when the view was made; `keep` must be called before each write."""

    def __init__(self, state: StateReader) -> None:
        self._state = state
        self._before: dict[bytes, bytes | None] = {}
        """The values that were replaced since, None where there was none."""
        self._changed: list[bytes] = []
        """Their keys in order, without those in `_unordered`."""
        self._unordered: list[bytes] = []

    def keep(self, batch: WriteBatch) -> None:
        """Keep what `batch` is about to replace."""
        self.keep_keys([*batch.puts, *batch.deletes])

    def keep_keys(self, keys: Sequence[bytes]) -> None:
        """Keep the values of different keys that the next batch may replace."""
        touched = [key for key in keys if key not in self._before]
        if touched:
            self._before.update(zip(touched, self._state.get_many(touched), strict=True))
            self._unordered += touched

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._state.get_many(keys)
        if not self._before:
            return found
        return [self._before.get(key, now) for key, now in zip(keys, found, strict=True)]

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        if self._unordered:
            self._changed += self._unordered
            self._changed.sort()
            self._unordered = []
        changed = self._changed[
            bisect_left(self._changed, start) : bisect_left(self._changed, stop)
        ]
        if not changed:
            return self._state.scan(start, stop, reverse=reverse, limit=limit)
        # Entries that changed are left out, so that many more are read.
        wider = None if limit is None else limit + len(changed)
        now = self._state.scan(start, stop, reverse=reverse, limit=wider)
        shown = [(key, value) for key, value in now if key not in self._before]
        shown += [(key, old) for key in changed if (old := self._before[key]) is not None]
        shown.sort(reverse=reverse)
        return shown[:limit]


async def keep_in_slices(views: Sequence[ReadView], keys: Sequence[bytes]) -> None:
    """Let open views keep what a large batch replaces, and give way in between.

    `views` may change while this runs. Those that are opened after the second pass must keep the
    batch when it is written.
    """
    done: list[ReadView] = []
    for _ in range(2):
        missing = [view for view in views if view not in done]
        for start in range(0, len(keys) if missing else 0, KEEP_KEYS):
            for view in missing:
                view.keep_keys(keys[start : start + KEEP_KEYS])
            await asyncio.sleep(0)
        done += missing
