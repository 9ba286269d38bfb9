"""Lease decisions for every kind of lease, running epoch and preferred slot."""

import pytest

from fennel_core.schedule.lease import (
    Claim,
    Keep,
    Lease,
    LeaseDecision,
    Stop,
    StopAndRelease,
    decide_lease,
)
from fennel_core.vocab.ids import Epoch, Millis, SlotId

ME, OTHER = SlotId("me"), SlotId("other")


def lease(slot: SlotId | None, remaining_ms: int, epoch: int = 5) -> Lease:
    return Lease(Epoch(epoch), slot, Millis(remaining_ms))


@pytest.mark.parametrize(
    ("row", "running", "preferred", "expected"),
    [
        (lease(None, 0), None, ME, Claim(Epoch(5))),
        (lease(None, 0), None, OTHER, Stop()),
        (lease(ME, 1000), Epoch(5), ME, Keep(Epoch(5))),
        (lease(ME, 1000), Epoch(5), None, Keep(Epoch(5))),
        (lease(ME, 1000), Epoch(5), OTHER, StopAndRelease(Epoch(5))),
        (lease(ME, 1000), None, OTHER, StopAndRelease(Epoch(5))),
        (lease(ME, 1000), Epoch(4), OTHER, StopAndRelease(Epoch(5))),
        (lease(ME, 1000), None, None, StopAndRelease(Epoch(5))),
        (lease(ME, 1000), None, ME, Claim(Epoch(5))),
        (lease(ME, 1000), Epoch(4), ME, Claim(Epoch(5))),
        (lease(ME, 0), Epoch(5), ME, Claim(Epoch(5))),
        (lease(ME, -1), Epoch(5), OTHER, Stop()),
        (lease(OTHER, 1000), None, ME, Stop()),
        (lease(OTHER, 1000, epoch=6), Epoch(5), ME, Stop()),
        (lease(OTHER, 0), None, ME, Claim(Epoch(5))),
        (lease(OTHER, 0), None, OTHER, Stop()),
    ],
)
def test_the_decision_depends_on_lease_runner_and_preferred_slot(
    row: Lease, running: Epoch | None, preferred: SlotId | None, expected: LeaseDecision
) -> None:
    assert decide_lease(ME, row, running, preferred) == expected
