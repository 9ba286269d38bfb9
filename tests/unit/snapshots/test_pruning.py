"""Which snapshots of a job partition are pruned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.snapshots.pruning import plan_pruning
from fennel_core.snapshots.store import Pointer
from fennel_core.vocab.ids import Epoch, JobId, PartitionIndex

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def pointer(number: int, taken_at: datetime) -> Pointer:
    return Pointer(JobId("j"), PartitionIndex(0), number, Epoch(1), f"m{number}", "", taken_at)


def test_a_surplus_snapshot_stays_for_a_grace_period() -> None:
    rows = [
        pointer(4, NOW - HOUR / 2),
        pointer(3, NOW - 2 * HOUR),
        pointer(2, NOW - 5 * HOUR),
        pointer(1, NOW - 9 * HOUR),
    ]
    plan = plan_pruning(rows, 2, HOUR, NOW)
    assert [p.number for p in plan.surplus] == [1], (
        "snapshot 2 is surplus since 4 was taken, half an hour ago"
    )
    assert [p.number for p in plan_pruning(rows, 2, HOUR, NOW + HOUR).surplus] == [2, 1]


@given(
    ages=st.lists(st.integers(0, 1000), max_size=8),
    keep=st.integers(1, 4),
    grace=st.integers(0, 100),
)
def test_the_newest_are_never_surplus_and_everything_is_kept_or_surplus(
    ages: list[int], keep: int, grace: int
) -> None:
    times = sorted(ages)
    rows = [
        pointer(len(times) - place, NOW - timedelta(minutes=age)) for place, age in enumerate(times)
    ]
    plan = plan_pruning(rows, keep, timedelta(minutes=grace), NOW)
    assert plan.kept[:keep] == tuple(rows[:keep])
    assert list(plan.kept + plan.surplus) == rows
