"""Decide when a failed item of work is tried again: exponential back-off per item, without I/O.

One item that always fails must neither stop the others nor occupy the platform, so each item has
its own delay, as in a work queue of Kubernetes controllers. An item that succeeds, or that no
longer needs work, is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
FIRST_DELAY_SECONDS: Final = 2.0
MAX_DELAY_SECONDS: Final = 300.0
"""An operator who repaired the cause waits no longer than this."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failures of an item in a row. `next_at`: seconds of the clock that `failed` was given."""

    attempts: int
    next_at: float
    error: str


class BackOff(Generic[K]):
    """The failing items, by key."""

    def __init__(self) -> None:
        self._failures: dict[K, Failure] = {}

    @property
    def failures(self) -> Mapping[K, Failure]:
        """Return the items whose last attempt failed."""
        return dict(self._failures)

    def is_due(self, key: K, now: float) -> bool:
        """Return whether the item may be tried now."""
        failure = self._failures.get(key)
        return failure is None or failure.next_at <= now

    def failed(self, key: K, now: float, error: str) -> Failure:
        """Record a failed attempt and return when the next one is due."""
        before = self._failures.get(key)
        attempts = 1 if before is None else before.attempts + 1
        delay = min(FIRST_DELAY_SECONDS * 2.0 ** min(attempts - 1, 30), MAX_DELAY_SECONDS)
        self._failures[key] = Failure(attempts, now + delay, error)
        return self._failures[key]

    def succeeded(self, key: K) -> None:
        """Forget the failures of an item."""
        self._failures.pop(key, None)

    def keep_only(self, keys: Collection[K]) -> None:
        """Forget the items that need no work any more."""
        for key in self._failures.keys() - set(keys):
            del self._failures[key]
