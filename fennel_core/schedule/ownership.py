"""Place job partitions on live slots by rendezvous hashing.

Every (job partition, slot) pair has a score that any process can compute; the live slot with the
highest score is preferred. A slot that joins takes about 1/n of the partitions, and one that leaves
gives up only its own; no other partition moves (Thaler and Ravishankar, 1998). Plain scores would
distribute small jobs unevenly, so the slots are ranked by the job's scores and partition p prefers
the slot of rank p mod n. That spreads each job evenly and still moves only a share of its
partitions when slots change.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from fennel_core.vocab.ids import JobId, PartitionIndex, SlotId


def preferred_slot(job: JobId, part: PartitionIndex, slots: Sequence[SlotId]) -> SlotId | None:
    """Return the slot that should own a job partition, None if there is no live slot.

    The order of `slots` does not matter.
    """
    if not slots:
        return None
    ranked = sorted(slots, key=lambda slot: (_score(job, slot), slot))
    return ranked[part % len(ranked)]


def _score(job: JobId, slot: SlotId) -> bytes:
    return blake2b(f"{job}\0{slot}".encode(), digest_size=8).digest()
