"""The life cycle of local state: every phase with every event."""

from __future__ import annotations

import itertools

import pytest

from fennel_core.engine.errors import RebuildRequested, ReplayMismatch, StateDiscarded
from fennel_core.engine.starting_state import (
    PHASES,
    UNOPENED,
    Discarded,
    Event,
    FoundLocal,
    Limited,
    Phase,
    PutBack,
    Quarantined,
    Restored,
    StartedFromLog,
    StartingState,
    StateOrigin,
    Unopenable,
    after,
)
from fennel_core.hangar.store import HangarCorrupt

MISMATCH = Discarded(ReplayMismatch("other mutations"))
CORRUPT = Discarded(HangarCorrupt("a block"))
EVENTS: tuple[Event, ...] = (
    CORRUPT,
    Quarantined(),
    Limited(frozenset({9})),
    FoundLocal(),
    Restored(7),
    Unopenable(7),
    PutBack(),
    StartedFromLog(),
)
NEW, OPEN, GONE, ASIDE = Phase.UNOPENED, Phase.OPENED, Phase.DISCARDED, Phase.QUARANTINED
TABLE: dict[Phase, tuple[Phase | None, ...]] = {
    NEW: (GONE, ASIDE, None, OPEN, OPEN, ASIDE, None, OPEN),
    OPEN: (GONE, ASIDE, None, OPEN, OPEN, ASIDE, None, OPEN),
    GONE: (GONE, ASIDE, GONE, GONE, GONE, GONE, GONE, GONE),
    ASIDE: (GONE, ASIDE, ASIDE, OPEN, OPEN, ASIDE, NEW, OPEN),
}
"""Phase × event → phase, in the order of `EVENTS`; None: impossible."""


def run(*events: Event, known: StartingState = UNOPENED) -> StartingState:
    for event in events:
        known = after(known, event)
    return known


@pytest.mark.parametrize(("phase", "number"), [*itertools.product(Phase, range(len(EVENTS)))])
def test_every_event_in_every_phase(phase: Phase, number: int) -> None:
    event, expected = EVENTS[number], TABLE[phase][number]
    assert (type(event) in PHASES[phase]) == (expected is not None)
    if expected is None:
        with pytest.raises(AssertionError, match=f"in phase {phase.name}"):
            after(StartingState(phase), event)
    else:
        assert after(StartingState(phase), event).phase is expected


@pytest.mark.parametrize("event", EVENTS[2:])
def test_a_start_that_was_overtaken_by_a_discard_changes_nothing(event: Event) -> None:
    request = Discarded(RebuildRequested("a person asked", 5))
    discarded = run(Restored(7), request)
    assert after(discarded, event) == discarded


def test_a_runner_that_starts_again_keeps_the_origin_of_its_state() -> None:
    assert run(FoundLocal()).origin is StateOrigin.LOCAL
    assert run(Restored(7), FoundLocal()).origin == 7
    assert run(StartedFromLog(), FoundLocal()).origin is StateOrigin.LOG_START
    assert run(Restored(7), Quarantined()).origin is None


def test_a_replay_that_differs_excludes_what_the_state_was_made_from() -> None:
    assert run(Restored(7), MISMATCH).unusable == {7}
    assert run(StartedFromLog(), MISMATCH).excluded == {StateOrigin.LOG_START}
    assert run(FoundLocal(), MISMATCH).excluded == frozenset(), "it is set aside, never excluded"
    assert MISMATCH.why.args[0] == run(MISMATCH).reason


@pytest.mark.parametrize("event", [CORRUPT, Discarded(StateDiscarded("a reader found damage"))])
def test_corruption_excludes_a_snapshot_when_it_returns(event: Discarded) -> None:
    once = run(Restored(7), event, Quarantined(), Restored(7))
    assert once.unusable == frozenset()
    assert after(once, event).unusable == {7}
    assert run(StartedFromLog(), event, Quarantined(), StartedFromLog(), event).excluded == set()


def test_a_requested_rebuild_allows_everything_again_below_its_limit() -> None:
    known = run(Restored(7), MISMATCH, Quarantined(), StartedFromLog(), CORRUPT)
    request = Discarded(RebuildRequested("a person asked", 5))
    assert after(known, request) == StartingState(
        Phase.DISCARDED, StateOrigin.LOG_START, "a person asked", exclude_from=5
    )
    limited = run(request, Quarantined(), Limited(frozenset({5, 6})), known=known)
    assert (limited.unusable, limited.exclude_from) == ({5, 6}, None)


def test_a_snapshot_that_cannot_be_opened_is_excluded_and_what_it_replaced_is_used() -> None:
    known = run(FoundLocal(), Quarantined(), Unopenable(7), PutBack())
    assert (known.phase, known.unusable, known.origin) == (Phase.UNOPENED, {7}, None)
    assert after(known, FoundLocal()).origin is StateOrigin.LOCAL


def test_operators_are_told_the_origin() -> None:
    texts = [run(*events).description for events in ((), (FoundLocal(),), (Restored(7),))]
    assert texts == ["nothing yet", "its local state", "snapshot #7"]
    assert run(StartedFromLog()).description == "the start of its log"
