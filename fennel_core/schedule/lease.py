"""When may a slot run a job partition?

Theory. Ownership is a row (epoch, slot, lease end) that changes only by compare-and-set. A slot
that holds a live lease may fence and run; every other slot must not touch Kafka. Epochs grow with
every claim, also of the same slot, so a process that was paused for a minute can never be mistaken
for the current owner. Getting this wrong lets a stale process overwrite a newer one's work.
"""

from __future__ import annotations

from dataclasses import dataclass

from fennel_core.vocab.ids import Epoch, Millis, SlotId


@dataclass(frozen=True, slots=True)
class Lease:
    """`remaining_ms` as the registry's own clock measured it when the row was read; not above zero
    means lapsed.
    """

    epoch: Epoch
    slot: SlotId | None
    remaining_ms: Millis

    @property
    def live(self) -> bool:
        return self.slot is not None and self.remaining_ms > 0


@dataclass(frozen=True, slots=True)
class Keep:
    """Run on, under this epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Claim:
    """Take it: compare-and-set from `seen` to the next epoch."""

    seen: Epoch


@dataclass(frozen=True, slots=True)
class StopAndRelease:
    """Stop what runs of it, then give the lease of this epoch up: it is ours and we are not
    preferred.
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Stop:
    """Not ours: make sure nothing of it runs here."""


LeaseDecision = Keep | Claim | StopAndRelease | Stop


def decide_lease(
    me: SlotId, lease: Lease, running: Epoch | None, preferred: SlotId | None
) -> LeaseDecision:
    """Say what slot `me` does about a job partition.

    `running` is the epoch under which this slot runs it now, None when it does not. A row that
    names us under an epoch we do not run was written by an earlier life of this slot (or by a lost
    answer): it is claimed anew, never resumed. Where we are not preferred it is given up even if
    nothing of it runs: our heartbeats would keep it from everybody else for as long as we live.
    """
    ours = lease.live and lease.slot == me
    if ours and running == lease.epoch and preferred in (me, None):
        return Keep(lease.epoch)
    if preferred != me:
        return StopAndRelease(lease.epoch) if ours else Stop()
    if lease.live and lease.slot != me:
        return Stop()
    return Claim(lease.epoch)
