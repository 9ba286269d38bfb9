"""Placement by rendezvous hashing is even, stable and deterministic."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.schedule.ownership import place_partitions
from fennel_core.vocab.ids import JobId, SlotName

SLOTS = [SlotName(f"engine-{number}") for number in range(51)]
JOBS = [JobId(f"job-{number}") for number in range(100)]
slots = st.lists(st.sampled_from(SLOTS), min_size=1, max_size=12, unique=True)
sizes = st.integers(1, 128)


def test_nothing_is_placed_if_no_slot_is_live() -> None:
    assert place_partitions(JOBS[0], 4, []) == {}


@given(live=slots, job=st.sampled_from(JOBS), partitions=sizes)
def test_the_placement_does_not_depend_on_the_order_of_slots(
    live: list[SlotName], job: JobId, partitions: int
) -> None:
    placed = place_partitions(job, partitions, live)
    assert placed == place_partitions(job, partitions, sorted(live, reverse=True))
    assert sorted(placed) == list(range(partitions))


@given(live=slots, job=st.sampled_from(JOBS), partitions=sizes)
def test_shares_of_a_job_differ_by_at_most_one_partition(
    live: list[SlotName], job: JobId, partitions: int
) -> None:
    counts = Counter(place_partitions(job, partitions, live).values())
    shares = [counts[slot] for slot in live]
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("partitions", [4, 16, 64])
def test_a_slot_that_joins_ten_moves_at_most_17_percent(partitions: int) -> None:
    assert _moved(partitions, SLOTS[:10], SLOTS[:11]) <= 0.17


@pytest.mark.parametrize("partitions", [4, 16, 64])
def test_a_slot_that_leaves_ten_moves_at_most_16_percent(partitions: int) -> None:
    assert _moved(partitions, SLOTS[:10], SLOTS[:9]) <= 0.16


@pytest.mark.parametrize("partitions", [4, 16, 64])
def test_jobs_together_load_ten_slots_within_a_quarter_of_the_mean(partitions: int) -> None:
    counts = Counter(
        slot for job in JOBS for slot in place_partitions(job, partitions, SLOTS[:10]).values()
    )
    mean = len(JOBS) * partitions / 10
    assert max(counts.values()) <= 1.25 * mean
    assert min(counts.values()) >= 0.75 * mean


def _moved(partitions: int, before: list[SlotName], after: list[SlotName]) -> float:
    """Return the share of job partitions whose slot changes."""
    moved = 0
    for job in JOBS:
        earlier = place_partitions(job, partitions, before)
        later = place_partitions(job, partitions, after)
        moved += sum(later[part] != slot for part, slot in earlier.items())
    return moved / (len(JOBS) * partitions)
