"""Life cycles of commits, ledger entries and assets: state × event → state. A cell that is not in a
table is an error, never a no-op.

Commit (architecture, section 3: T1, create, T2, warm, destroy)
                 reserve   reject    abandon    create_ok  fail      switch   supersede   serve
                 destroyed  undone
  received       reserved  rejected  rejected   –          –         –        –           –        –
  –
  reserved       (same)    –         –          created    undoing   –        –           –        –
  –
  created        –         –         –          (same)     undoing   warming  –           –        –
  –
  undoing        –         –         –          –          (same)    –        –           –        –
  rolled_back
  warming        –         –         –          –          –         (same)   superseded  serving  –
  –
  serving        –         –         –          –          –         –        –           (same)
  finished   –
  superseded     –         –         –          –          –         –        (same)      –        –
  –
  finished       –         –         –          –          –         –        –           –
  (same)     –
  rejected       –         (same)    (same)     –          –         –        –           –        –
  –
  rolled_back    –         –         –          –          –         –        –           –        –
  (same)

Ledger entry                                      Asset
               done     failed   cancelled                        create_ok  create_failed  switched
               undone     released   destroyed
  pending      done     failed   cancelled          pending       created    failed         –
  condemned  –          –
  failed       done     (same)   cancelled          created       (same)     –              live
  condemned  –          –
  done         (same)   –        cancelled          failed        –          (same)         –
  condemned  –          –
  cancelled    –        –        (same)             live          –          –              (same)
  –          condemned  –
                                                    condemned     –          –              –
                                                    (same)     (same)     gone
                                                    gone          –          –              –
                                                    –          –          (same)

A destruction entry that failed is tried again until it is done. A pending asset is condemned and
not forgotten when its commit is undone, because the attempt to create it may still succeed behind
our back.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from fennel_core.bank.store import AssetState


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
    ABANDON = "abandon"
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
    DESTROYED = "destroyed"


class ForbiddenTransition(Exception):
    """An event that the table does not allow in this state: the caller's picture of the world is
    wrong.
    """

    code = "ledger-forbidden-move"


S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class LifeCycle(Generic[S, E]):
    """Hold a transition table. `then` returns the next state or raises `ForbiddenTransition`."""

    def __init__(self, noun: str, moves: Mapping[tuple[S, E], S]) -> None:
        self.noun = noun
        self.moves = dict(moves)

    def then(self, state: S, event: E) -> S:
        try:
            return self.moves[state, event]
        except KeyError:
            raise ForbiddenTransition(
                f"a {self.noun} that is {state} cannot take the event {event} "
                f"[{ForbiddenTransition.code}]"
            ) from None

    def allows(self, state: S, event: E) -> bool:
        return (state, event) in self.moves


_C, _CE = CommitState, CommitEvent
COMMIT = LifeCycle[CommitState, CommitEvent](
    "commit",
    {
        (_C.RECEIVED, _CE.RESERVE): _C.RESERVED,
        (_C.RECEIVED, _CE.REJECT): _C.REJECTED,
        (_C.RECEIVED, _CE.ABANDON): _C.REJECTED,
        (_C.REJECTED, _CE.REJECT): _C.REJECTED,
        (_C.REJECTED, _CE.ABANDON): _C.REJECTED,
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
"""States that nothing leaves: the commit needs nobody any more."""
UNDONE = frozenset({_C.UNDOING, _C.REJECTED, _C.ROLLED_BACK})
"""States of a commit that did not happen."""
COMMITTED = frozenset({_C.WARMING, _C.SERVING, _C.SUPERSEDED, _C.FINISHED})
"""States of a commit that stands."""

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
        (_A.CONDEMNED, _AE.UNDONE): _A.CONDEMNED,
        (_A.CONDEMNED, _AE.RELEASED): _A.CONDEMNED,
        (_A.CONDEMNED, _AE.DESTROYED): _A.GONE,
        (_A.GONE, _AE.DESTROYED): _A.GONE,
    },
)
