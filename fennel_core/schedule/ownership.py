"""Ownership of job partitions by rendezvous hashing over live slots.

Theory. Every (job partition, slot) pair has a score that anyone can compute; the live slot with the
highest score is preferred. A slot that joins takes about 1/n of the partitions, one that leaves
gives up only its own: nothing else moves (Thaler and Ravishankar, 1998). Plain scores would leave
small jobs lopsided, so the partitions of one job are dealt round the slots ranked by the job's
scores: partition p prefers the slot of rank p mod n, which spreads each job evenly and still moves
only a share when slots change.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from fennel_core.vocab.ids import JobId, PartitionIndex, SlotId


def preferred_slot(job: JobId, part: PartitionIndex, slots: Sequence[SlotId]) -> SlotId | None:
    """The slot that should own a job partition; None when no slot is alive. `slots` in any
    order.
    """
    if not slots:
        return None
    ranked = sorted(slots, key=lambda slot: (_score(job, slot), slot))
    return ranked[part % len(ranked)]


def _score(job: JobId, slot: SlotId) -> bytes:
    return blake2b(f"{job}\0{slot}".encode(), digest_size=8).digest()
