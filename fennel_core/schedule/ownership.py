"""Place job partitions on live slots by rendezvous hashing with even shares.

Every (job, partition, slot) triple has a score that any process can compute. The triples of a job
are taken by descending score; each gives its partition to its slot, unless the partition is placed
or the slot has its share. A share is P/n rounded down, and P mod n slots get one more, so each job
is spread as evenly as possible. A slot that joins or leaves moves little more than its own share
(Thaler and Ravishankar, 1998; the bounds are measured in decision record 0041).

Slots are identified by their *names*, which outlive their processes: a slot that restarts moves
nothing. A new process of the same name is nevertheless a new owner, because leases and epochs
belong to the process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b

from fennel_core.vocab.ids import JobId, PartitionIndex, SlotName


def place_partitions(
    job: JobId, partitions: int, slots: Collection[SlotName]
) -> Mapping[PartitionIndex, SlotName]:
    """Return the slot that should own each partition of a job; empty if there is no live slot.

    The order of `slots` does not matter.
    """
    if not slots:
        return {}
    share, larger_shares = divmod(partitions, len(slots))
    taken = dict.fromkeys(slots, 0)
    placed: dict[PartitionIndex, SlotName] = {}
    triples = sorted(
        ((_score(job, part, slot), part, slot) for part in range(partitions) for slot in slots),
        reverse=True,
    )
    for _, number, slot in triples:
        part = PartitionIndex(number)
        if part in placed or taken[slot] > share or (taken[slot] == share and not larger_shares):
            continue
        if taken[slot] == share:
            larger_shares -= 1
        taken[slot] += 1
        placed[part] = slot
    return placed


def _score(job: JobId, part: int, slot: SlotName) -> bytes:
    return blake2b(f"{job}\0{part}\0{slot}".encode(), digest_size=8).digest()
