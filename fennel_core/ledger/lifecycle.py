"""Life cycles of commits, ledger entries and assets, as tables: state × event → state.

A cell that is not in a table raises `ForbiddenTransition`; it is never a silent no-op. The steps of
a commit are T1 (reserve), create, T2 (switch), serve and destroy.

    commit state   event → next state
    received       reserve → reserved; reject → rejected
    reserved       create_ok → created; fail → undoing
    created        switch → warming; fail → undoing
    undoing        undone → rolled_back
    warming        serve → serving; supersede → superseded
    serving        destroyed → finished
    superseded, finished, rejected, rolled_back: settled, no event changes them

    entry state    event → next state
    pending        done → done; failed → failed; cancelled → cancelled
    failed         done → done; cancelled → cancelled
    done           cancelled → cancelled
    cancelled      no event changes it

    asset state    event → next state
    pending        create_ok → created; create_failed → failed; undone → condemned
    created        switched → live; undone → condemned
    failed         undone → condemned
    live           released → condemned; retained → retained
    retained       switched → live; expired → condemned
    condemned      destroyed → deleted
    deleted        no event changes it

Because every step may run again, the event that led to a state is accepted there too and changes
nothing (`reserve` in `reserved`, `fail` in `undoing`, ...). A destruction entry that failed is
retried until it is done. A pending asset is condemned rather than forgotten when its commit is
undone, because a paused attempt to create it may still succeed later.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from fennel_core.bank.store import AssetState
from fennel_core.ledger.errors import ForbiddenTransition


class CommitState(StrEnum):
    RECEIVED = "received"
    RESERVED = "reserved"
    CREATED = "created"
    UNDOING = "undoing"
    WARMING = "warming"
    SERVING = "serving"
    SUPERSEDED = "superseded"
    FINISHED = "finished"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


class CommitEvent(StrEnum):
    RESERVE = "reserve"
    REJECT = "reject"
    CREATE_OK = "create_ok"
    FAIL = "fail"
    SWITCH = "switch"
    SUPERSEDE = "supersede"
    SERVE = "serve"
    DESTROYED = "destroyed"
    UNDONE = "undone"


class EntryState(StrEnum):
    PENDING = "pending"
    FAILED = "failed"
    DONE = "done"
    CANCELLED = "cancelled"


class EntryEvent(StrEnum):
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AssetEvent(StrEnum):
    CREATE_OK = "create_ok"
    CREATE_FAILED = "create_failed"
    SWITCHED = "switched"
    UNDONE = "undone"
    RELEASED = "released"
    RETAINED = "retained"
    EXPIRED = "expired"
    DESTROYED = "destroyed"


S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class LifeCycle(Generic[S, E]):
    """Hold the transition table of one kind of entity."""

    def __init__(self, entity: str, transitions: Mapping[tuple[S, E], S]) -> None:
        self.entity = entity
        self.transitions = dict(transitions)

    def next_state(self, state: S, event: E) -> S:
        """Return the state after `event`. Raises ForbiddenTransition."""
        try:
            return self.transitions[state, event]
        except KeyError:
            raise ForbiddenTransition(
                f"event {event} is not allowed for a {self.entity} in state {state} "
                f"[{ForbiddenTransition.code}]"
            ) from None

    def allows(self, state: S, event: E) -> bool:
        """Return whether the table has a transition for `event` in `state`."""
        return (state, event) in self.transitions


_C, _CE = CommitState, CommitEvent
COMMIT = LifeCycle[CommitState, CommitEvent](
    "commit",
    {
        (_C.RECEIVED, _CE.RESERVE): _C.RESERVED,
        (_C.RECEIVED, _CE.REJECT): _C.REJECTED,
        (_C.REJECTED, _CE.REJECT): _C.REJECTED,
        (_C.RESERVED, _CE.RESERVE): _C.RESERVED,
        (_C.RESERVED, _CE.CREATE_OK): _C.CREATED,
        (_C.RESERVED, _CE.FAIL): _C.UNDOING,
        (_C.CREATED, _CE.CREATE_OK): _C.CREATED,
        (_C.CREATED, _CE.FAIL): _C.UNDOING,
        (_C.CREATED, _CE.SWITCH): _C.WARMING,
        (_C.UNDOING, _CE.FAIL): _C.UNDOING,
        (_C.UNDOING, _CE.UNDONE): _C.ROLLED_BACK,
        (_C.ROLLED_BACK, _CE.UNDONE): _C.ROLLED_BACK,
        (_C.WARMING, _CE.SWITCH): _C.WARMING,
        (_C.WARMING, _CE.SUPERSEDE): _C.SUPERSEDED,
        (_C.WARMING, _CE.SERVE): _C.SERVING,
        (_C.SUPERSEDED, _CE.SUPERSEDE): _C.SUPERSEDED,
        (_C.SERVING, _CE.SERVE): _C.SERVING,
        (_C.SERVING, _CE.DESTROYED): _C.FINISHED,
        (_C.FINISHED, _CE.DESTROYED): _C.FINISHED,
    },
)
SETTLED = frozenset({_C.SUPERSEDED, _C.FINISHED, _C.REJECTED, _C.ROLLED_BACK})
"""Final states: nothing is left to do for the commit."""
BETWEEN_T1_AND_T2 = frozenset({_C.RESERVED, _C.CREATED})
"""States of a commit that holds reservations."""
UNDONE = frozenset({_C.UNDOING, _C.REJECTED, _C.ROLLED_BACK})
"""States of a commit that failed before T2."""
COMMITTED = frozenset({_C.WARMING, _C.SERVING, _C.SUPERSEDED, _C.FINISHED})
"""States of a commit that passed T2."""

ENTRY = LifeCycle[EntryState, EntryEvent](
    "ledger entry",
    {
        (EntryState.PENDING, EntryEvent.DONE): EntryState.DONE,
        (EntryState.PENDING, EntryEvent.FAILED): EntryState.FAILED,
        (EntryState.PENDING, EntryEvent.CANCELLED): EntryState.CANCELLED,
        (EntryState.FAILED, EntryEvent.DONE): EntryState.DONE,
        (EntryState.FAILED, EntryEvent.FAILED): EntryState.FAILED,
        (EntryState.FAILED, EntryEvent.CANCELLED): EntryState.CANCELLED,
        (EntryState.DONE, EntryEvent.DONE): EntryState.DONE,
        (EntryState.DONE, EntryEvent.CANCELLED): EntryState.CANCELLED,
        (EntryState.CANCELLED, EntryEvent.CANCELLED): EntryState.CANCELLED,
    },
)
OPEN_ENTRIES = (EntryState.PENDING, EntryState.FAILED)

_A, _AE = AssetState, AssetEvent
ASSET = LifeCycle[AssetState, AssetEvent](
    "asset",
    {
        (_A.PENDING, _AE.CREATE_OK): _A.CREATED,
        (_A.PENDING, _AE.CREATE_FAILED): _A.FAILED,
        (_A.PENDING, _AE.UNDONE): _A.CONDEMNED,
        (_A.CREATED, _AE.CREATE_OK): _A.CREATED,
        (_A.CREATED, _AE.SWITCHED): _A.LIVE,
        (_A.CREATED, _AE.UNDONE): _A.CONDEMNED,
        (_A.FAILED, _AE.CREATE_FAILED): _A.FAILED,
        (_A.FAILED, _AE.UNDONE): _A.CONDEMNED,
        (_A.LIVE, _AE.SWITCHED): _A.LIVE,
        (_A.LIVE, _AE.RELEASED): _A.CONDEMNED,
        (_A.LIVE, _AE.RETAINED): _A.RETAINED,
        (_A.RETAINED, _AE.RETAINED): _A.RETAINED,
        (_A.RETAINED, _AE.SWITCHED): _A.LIVE,
        (_A.RETAINED, _AE.EXPIRED): _A.CONDEMNED,
        (_A.CONDEMNED, _AE.UNDONE): _A.CONDEMNED,
        (_A.CONDEMNED, _AE.RELEASED): _A.CONDEMNED,
        (_A.CONDEMNED, _AE.EXPIRED): _A.CONDEMNED,
        (_A.CONDEMNED, _AE.DESTROYED): _A.DELETED,
        (_A.DELETED, _AE.DESTROYED): _A.DELETED,
    },
)
