"""Refusal codes of the slot protocol, and the reaction each one calls for.

Query servers and DAG tasks call operations of slots over `connections.frames`. A slot that cannot
run an operation refuses it with one of the codes below. Callers never compare codes themselves:
they match the `Reaction`, so a new code is handled in one place.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto

from fennel_core.connections import frames
from fennel_core.connections.frames import RemoteError


class RefusalCode(StrEnum):
    """Why a slot refused an operation. The values are on the wire."""

    NOT_OWNER = "not-owner"
    """The slot does not serve the job partition now: another slot owns it, or this one is still
    replaying or rebuilding its state.
    """
    PARKED = "parked"
    """The job is stopped because its code failed; the text holds the job's error."""
    UNKNOWN_OPERATION = "unknown-op"
    """The slot does not have this operation: caller and slot run different releases."""
    OVERLOADED = frames.OVERLOADED
    """Too many requests of the caller's connection are in flight."""
    FAILED = frames.FAILED
    """The operation has a defect; the log of the slot has the reason."""
    RESULT_TOO_LARGE = frames.RESULT_TOO_LARGE
    """The result does not fit into a frame: ask for less."""


class Reaction(Enum):
    """What the caller of a refused operation must do."""

    RETRY_AT_OWNER = auto()
    """Read the owner from the registry again and repeat the call there."""
    REPORT_PARKED = auto()
    """Report the job's error; a retry does not help."""
    FAIL = auto()
    """Raise the refusal: it is a defect or a version mismatch."""


_REACTIONS = {
    RefusalCode.NOT_OWNER: Reaction.RETRY_AT_OWNER,
    RefusalCode.PARKED: Reaction.REPORT_PARKED,
    RefusalCode.UNKNOWN_OPERATION: Reaction.FAIL,
    RefusalCode.OVERLOADED: Reaction.RETRY_AT_OWNER,
    RefusalCode.FAILED: Reaction.FAIL,
    RefusalCode.RESULT_TOO_LARGE: Reaction.FAIL,
}


def reaction_to(refused: RemoteError) -> Reaction:
    """Return the reaction to a refusal; a code of another release is `Reaction.FAIL`."""
    if refused.remote_code not in _REACTIONS:
        return Reaction.FAIL
    return _REACTIONS[RefusalCode(refused.remote_code)]
