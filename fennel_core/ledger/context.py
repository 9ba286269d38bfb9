"""What every ledger step works with: stores, topics, a clock and time limits."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from fennel_core.ledger.known_forecasts import KnownForecasts
from fennel_core.ledger.store import Ledger
from fennel_core.ledger.topics import TopicAdmin
from fennel_core.vocab.ids import Millis

LEASE_MS: Final = Millis(60_000)
ORPHAN_GRACE_MS: Final = Millis(3_600_000)
LATE_REQUEST_MS: Final = Millis(60_000)
COMMIT_HISTORY_MS: Final = Millis(30 * 86_400_000)


@dataclass(frozen=True, slots=True)
class LedgerTimings:
    """Time limits of the ledger steps."""

    lease_ms: Millis = LEASE_MS
    """How long reconcile leaves a commit alone after the last sign of life of its worker."""
    branch_wait_seconds: float = 90.0
    """How long a commit waits for another commit of its branch to pass T2 or to fail. Longer than a
    lease, so that a commit whose worker died does not fail the next one.
    """
    branch_poll_seconds: float = 0.2
    create_attempts: int = 5
    retry_seconds: float = 0.5
    warm_poll_seconds: float = 0.05
    longest_warm_poll_seconds: float = 0.5
    first_warm_seconds: float = 1.0
    """How long to wait for jobs without a backlog. Reads are correct without them, and commits
    should be quick.
    """
    orphan_grace_ms: Millis = ORPHAN_GRACE_MS
    late_request_ms: Millis = LATE_REQUEST_MS
    """How long a request that was on its way to an endpoint when a commit dropped it may take until
    it is accepted or has failed. The endpoint is counted again only after that.
    """
    commit_history_ms: Millis = COMMIT_HISTORY_MS
    """How long the definitions of replaced versions and the entries of the ledgers are kept."""


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """The dependencies of every ledger step.

    `sleep` waits for a number of seconds. `now` returns seconds of a monotonic clock.
    `history_retention`: rows that are older than `history` are removed.
    """

    ledger: Ledger
    topics: TopicAdmin
    sleep: Callable[[float], Awaitable[None]]
    timings: LedgerTimings = LedgerTimings()
    now: Callable[[], float] = time.monotonic
    forecasts: KnownForecasts = field(default_factory=KnownForecasts)
    history_retention: bool = False
