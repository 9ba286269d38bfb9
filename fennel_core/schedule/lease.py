"""Decide whether a slot may run a job partition.

Ownership is a row (epoch, slot, end of lease) that changes only by compare-and-set. A slot with a
live lease may fence and run; every other slot must not write to Kafka. Every claim raises the
epoch, even a claim by the same slot, so a process that was paused for a minute can never be
mistaken for the current owner. A mistake here lets a stale process overwrite the work of a newer
one.
"""

from __future__ import annotations

from dataclasses import dataclass

from fennel_core.vocab.ids import Epoch, Millis, SlotId


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of a job partition as read from the registry.

    `remaining_ms` was measured by the registry's clock; zero or less means expired.
    """

    epoch: Epoch
    slot: SlotId | None
    remaining_ms: Millis

    @property
    def live(self) -> bool:
        """True if a slot holds the lease and it has not expired."""
        return self.slot is not None and self.remaining_ms > 0


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep running under this epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim the partition by compare-and-set from `seen` to the next epoch."""

    seen: Epoch


@dataclass(frozen=True, slots=True)
class StopAndRelease:
    """Stop the runner, then release the lease: this slot holds it, but another is preferred."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the runner, if any: another slot owns the partition or should."""


LeaseDecision = Keep | Claim | StopAndRelease | Stop


def decide_lease(
    me: SlotId, lease: Lease, running: Epoch | None, preferred: SlotId | None
) -> LeaseDecision:
    """Return what slot `me` has to do about a job partition.

    `running` is the epoch under which this slot runs it now, None if it does not; `preferred` is
    the slot that should own it, None if there is no live slot.

    A row that names `me` under an epoch that it does not run was written by a predecessor of this
    process, or by a claim whose response was lost: it is claimed again, never resumed. If another
    slot is preferred, the lease is released even if nothing runs, because the heartbeats of this
    slot would otherwise renew it for ever.
    """
    ours = lease.live and lease.slot == me
    if ours and running == lease.epoch and preferred in (me, None):
        return Keep(lease.epoch)
    if preferred != me:
        return StopAndRelease(lease.epoch) if ours else Stop()
    if lease.live and lease.slot != me:
        return Stop()
    return Claim(lease.epoch)
