"""Placement by rendezvous hashing is even, stable and deterministic."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.schedule.ownership import preferred_slot
from fennel_core.vocab.ids import JobId, PartitionIndex, SlotId

JOBS = [JobId(f"job-{n}") for n in range(200)]
PARTS = [PartitionIndex(p) for p in range(4)]
slots = st.lists(
    st.integers(0, 50).map(lambda n: SlotId(f"slot-{n}")), min_size=1, max_size=8, unique=True
)


def test_no_slot_is_preferred_if_none_is_live() -> None:
    assert preferred_slot(JOBS[0], PARTS[0], []) is None


@given(live=slots, job=st.sampled_from(JOBS), part=st.sampled_from(PARTS))
def test_the_preferred_slot_does_not_depend_on_the_order_of_slots(
    live: list[SlotId], job: JobId, part: PartitionIndex
) -> None:
    assert preferred_slot(job, part, live) == preferred_slot(job, part, sorted(live, reverse=True))
    assert preferred_slot(job, part, live) in live


@given(live=slots, job=st.sampled_from(JOBS))
def test_shares_of_a_job_differ_by_at_most_one_partition(live: list[SlotId], job: JobId) -> None:
    counts = Counter(preferred_slot(job, part, live) for part in PARTS)
    shares = [counts[slot] for slot in live]
    assert max(shares) - min(shares) <= 1


def test_removing_a_slot_moves_less_than_half_of_the_other_partitions() -> None:
    before = [SlotId(f"slot-{n}") for n in range(8)]
    after = before[:-1]
    owned = {(job, part): preferred_slot(job, part, before) for job in JOBS for part in PARTS}
    moved = sum(
        1
        for key, slot in owned.items()
        if slot != before[-1] and preferred_slot(*key, after) != slot
    )
    assert moved / len(owned) < 0.5, "ranking slots per job may move some partitions, never most"
