"""Every cell of the life-cycle tables equals the drawing in this module."""

from __future__ import annotations

import re
from enum import StrEnum

import pytest

from fennel_core.bank.store import AssetState
from fennel_core.ledger import lifecycle
from fennel_core.ledger.lifecycle import (
    ASSET,
    COMMIT,
    COMMITTED,
    ENTRY,
    SETTLED,
    UNDONE,
    AssetEvent,
    CommitEvent,
    CommitState,
    EntryEvent,
    EntryState,
    ForbiddenTransition,
    LifeCycle,
)
from fennel_core.ledger.reconcile_action import NothingToDo, reconcile_action

# Rows are states, columns events, "." the same state, "-" forbidden. This is the drawing of
# `ledger/lifecycle.py`, kept apart on purpose.
COMMITS = """
            reserve  reject   create_ok fail    switch  supersede  serve   destroyed undone
received    reserved rejected -         -       -       -          -       -         -
reserved    .        -        created   undoing -       -          -       -         -
created     -        -        .         undoing warming -          -       -         -
undoing     -        -        -         .       -       -          -       -         rolled_back
warming     -        -        -         -       .       superseded serving -         -
serving     -        -        -         -       -       -          .       finished  -
superseded  -        -        -         -       -       .          -       -         -
finished    -        -        -         -       -       -          -       .         -
rejected    -        .        -         -       -       -          -       -         -
rolled_back -        -        -         -       -       -          -       -         .
"""
ENTRIES = """
           done failed cancelled
pending    done failed cancelled
failed     done .      cancelled
done       .    -      cancelled
cancelled  -    -      .
"""
ASSETS = """
           create_ok create_failed switched undone    released  retained expired   destroyed
pending    created   failed        -        condemned -         -        -         -
created    .         -             live     condemned -         -        -         -
failed     -         .             -        condemned -         -        -         -
live       -         -             .        -         condemned retained -         -
retained   -         -             live     -         -         .        condemned -
condemned  -         -             -        .         .         -        .         deleted
deleted    -         -             -        -         -         -        -         .
"""
TABLES = [
    (COMMIT, CommitState, CommitEvent, COMMITS),
    (ENTRY, EntryState, EntryEvent, ENTRIES),
    (ASSET, AssetState, AssetEvent, ASSETS),
]


def cells() -> list[tuple[LifeCycle[StrEnum, StrEnum], StrEnum, StrEnum, str]]:
    out = []
    for cycle, states, events, drawing in TABLES:
        header, *rows = [line.split() for line in drawing.strip().splitlines()]
        assert set(header) == {str(e) for e in events}, "every event has a column"
        assert {row[0] for row in rows} == {str(s) for s in states}, "every state has a row"
        for state, *moves in rows:
            assert len(moves) == len(header)
            out += [
                (cycle, states(state), events(event), then)
                for event, then in zip(header, moves, strict=True)
            ]
    return out


@pytest.mark.parametrize(
    ("cycle", "state", "event", "then"), cells(), ids=lambda v: str(v) if isinstance(v, str) else ""
)
def test_every_cell_of_every_table_has_the_drawn_transition(
    cycle: LifeCycle[StrEnum, StrEnum], state: StrEnum, event: StrEnum, then: str
) -> None:
    if then == "-":
        assert not cycle.allows(state, event)
        with pytest.raises(ForbiddenTransition, match=re.escape("[ledger-forbidden-transition]")):
            cycle.next_state(state, event)
    else:
        assert cycle.next_state(state, event) == (state if then == "." else then)


def test_a_settled_commit_never_changes_and_needs_no_reconcile_action() -> None:
    for state in CommitState:
        leaves = {
            COMMIT.next_state(state, event) for event in CommitEvent if COMMIT.allows(state, event)
        } - {state}
        assert bool(leaves) != (state in SETTLED)
        assert isinstance(reconcile_action(state), NothingToDo) == (state in SETTLED)


def test_a_failed_commit_never_becomes_a_committed_one() -> None:
    def reach(state: CommitState) -> set[CommitState]:
        seen, todo = {state}, [state]
        while todo:
            here = todo.pop()
            new = {COMMIT.next_state(here, e) for e in CommitEvent if COMMIT.allows(here, e)} - seen
            seen |= new
            todo += new
        return seen

    assert all(reach(s) <= UNDONE for s in UNDONE)
    assert all(reach(s) <= COMMITTED for s in COMMITTED)


def test_the_tables_in_the_docstring_name_every_state() -> None:
    text = lifecycle.__doc__ or ""
    assert all(
        str(state) in text for states in (CommitState, EntryState, AssetState) for state in states
    )
