"""The life cycle of a request for training data: which event leads from which state to which.

A request is `queued` until a run claims it. A run that dies leaves it `running`, and the next run
claims it again. Whatever is not in the table is refused, so an outcome never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fennel_core.offline.errors import OfflineError


class RequestState(StrEnum):
    """Where a request is. Stored: never rename one."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RequestEvent(StrEnum):
    """What happens to a request."""

    CLAIM = "claim"
    """A run begins to work on it."""
    FINISH = "finish"
    """Its run has written the result."""
    FAIL = "fail"
    """It cannot be computed, or its runs were lost."""
    CANCEL = "cancel"
    """Its user has cancelled it."""


OPEN: Final = frozenset({RequestState.QUEUED, RequestState.RUNNING})
TRANSITIONS: Final[Mapping[tuple[RequestState, RequestEvent], RequestState]] = MappingProxyType(
    {
        (RequestState.QUEUED, RequestEvent.CLAIM): RequestState.RUNNING,
        (RequestState.QUEUED, RequestEvent.FAIL): RequestState.FAILED,
        (RequestState.QUEUED, RequestEvent.CANCEL): RequestState.CANCELLED,
        (RequestState.RUNNING, RequestEvent.CLAIM): RequestState.RUNNING,
        (RequestState.RUNNING, RequestEvent.FINISH): RequestState.DONE,
        (RequestState.RUNNING, RequestEvent.FAIL): RequestState.FAILED,
        (RequestState.RUNNING, RequestEvent.CANCEL): RequestState.CANCELLED,
        (RequestState.CANCELLED, RequestEvent.CANCEL): RequestState.CANCELLED,
    }
)


class TransitionRefused(OfflineError):
    """The request is in a state that the event does not change; nothing was written."""

    code = "offline-transition-refused"


def next_state(state: RequestState, event: RequestEvent) -> RequestState:
    """Return the state after an event; raises `TransitionRefused`."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise TransitionRefused(
            f"event `{event}` does not change a request that is `{state}`; send a new request"
        )
    return following
