"""Decide what reconcile does about a commit whose worker is gone.

T2 is the commit point: before it the commit is undone, after it the commit is finished.
"""

from __future__ import annotations

from dataclasses import dataclass

from fennel_core.ledger.lifecycle import CommitState


@dataclass(frozen=True, slots=True)
class UndoCommit:
    """Undo the commit: T2 was not reached, so the client got no response or an error."""


@dataclass(frozen=True, slots=True)
class ServeIfReady:
    """Finish the commit: after T2 there is no way back."""


@dataclass(frozen=True, slots=True)
class DestroyCondemned:
    """Remove the superseded assets, which is all that is left to do."""


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """Leave the commit alone: it is settled."""


ReconcileAction = UndoCommit | ServeIfReady | DestroyCondemned | NothingToDo


def reconcile_action(state: CommitState) -> ReconcileAction:
    """Return what reconcile must do about a commit whose lease has expired."""
    match state:
        case CommitState.RECEIVED | CommitState.RESERVED | CommitState.CREATED:
            return UndoCommit()
        case CommitState.WARMING:
            return ServeIfReady()
        case CommitState.UNDOING | CommitState.SERVING:
            return DestroyCondemned()
        case (
            CommitState.SUPERSEDED
            | CommitState.FINISHED
            | CommitState.REJECTED
            | CommitState.ROLLED_BACK
        ):
            return NothingToDo()
