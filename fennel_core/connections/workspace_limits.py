"""Limits of the requests of one workspace, so that none takes a server from the others.

Two limits: requests under way at one time, and requests per second (a token bucket that holds one
second's worth, so that a burst after a pause passes). Both count per server process, after the
token of a request was checked. A request beyond a limit is refused with status 429 and a time after
which to try again; nothing waits here.

    with limits.entered(workspace):
        ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fennel_core.connections.api_errors import WorkspaceBusy, WorkspaceTooFast
from fennel_core.vocab.ids import WorkspaceId


@dataclass(slots=True)
class _Use:
    """`tokens`: requests that the bucket holds, as of `at` (monotonic seconds)."""

    under_way: int
    tokens: float
    at: float


class WorkspaceLimits:
    """`at_once`: requests under way of one workspace. `per_s`: requests per second; 0: no limit."""

    def __init__(
        self, at_once: int, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._burst = max(per_s, 1.0)
        self._clock = clock
        self._uses: dict[WorkspaceId, _Use] = {}
        """At most one per workspace that exists: a token was checked before."""

    @contextmanager
    def entered(self, workspace: WorkspaceId) -> Iterator[None]:
        """Count a request for the time of the block. Raises WorkspaceBusy and WorkspaceTooFast."""
        use = self._uses.get(workspace)
        if use is None:
            use = self._uses[workspace] = _Use(0, self._burst, self._clock())
        if use.under_way >= self._at_once:
            raise WorkspaceBusy(workspace, self._at_once)
        if self._per_s:
            self._take(workspace, use)
        use.under_way += 1
        try:
            yield
        finally:
            use.under_way -= 1

    def _take(self, workspace: WorkspaceId, use: _Use) -> None:
        now = self._clock()
        use.tokens = min(self._burst, use.tokens + (now - use.at) * self._per_s)
        use.at = now
        if use.tokens < 1.0:
            raise WorkspaceTooFast(workspace, self._per_s, (1.0 - use.tokens) / self._per_s)
        use.tokens -= 1.0
