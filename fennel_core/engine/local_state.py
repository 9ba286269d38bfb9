"""Which local states a slot deletes.

Theory. The job that a local state belongs to may be absent from the registry because it was
removed, or because the registry is the wrong one or was restored from a backup. If this slot has
seen the registry ask for the job's removal, its state is deleted as soon as the job is gone. Any
other state must have been unknown for a whole grace period, within the limit of
`connections.garbage`; a restart of the slot starts the period again.

A job partition that runs here may have left states of earlier owners on this machine, because a
frozen process held them (`engine.state_folders`). Nothing reads them any more; they are deleted
after the same grace period, as many per turn as the limit allows without regard to the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from fennel_core.bank.registry import RegisteredJob
from fennel_core.connections.garbage import DeletionLimit, due_for_deletion
from fennel_core.vocab.ids import JobId, Millis

LOCAL_STATE: Final = "local-state"


@dataclass(slots=True)
class LocalStateGarbage:
    """Selects the local states to delete; keeps since when each has been unknown.

    `grace_ms`: how long the registry must not have known a job that it did not remove.
    """

    grace_ms: Millis
    limit: DeletionLimit
    _removed: set[JobId] = field(default_factory=set)
    _unknown_since_ms: dict[JobId, int] = field(default_factory=dict)
    _superseded_since_ms: dict[Path, int] = field(default_factory=dict)

    def to_delete(
        self, stored: set[JobId], jobs: Sequence[RegisteredJob], asked_ms: int, read_ms: int
    ) -> list[JobId]:
        """Return the jobs of `stored` whose state to delete now.

        `jobs` was read after `stored` was listed, between `asked_ms` and `read_ms`: only the time
        between two reads proves that a job was unknown. Raises DeletionRefused.
        """
        unknown = stored - {job.id for job in jobs}
        self._removed = (self._removed & stored) | {
            job.id for job in jobs if job.desired == "remove"
        }
        self._unknown_since_ms = {
            job: self._unknown_since_ms.get(job, read_ms) for job in unknown - self._removed
        }
        due = due_for_deletion(
            LOCAL_STATE,
            {
                job: timedelta(milliseconds=asked_ms - since)
                for job, since in self._unknown_since_ms.items()
            },
            len(stored),
            timedelta(milliseconds=self.grace_ms),
            self.limit,
        )
        return sorted((unknown & self._removed) | {JobId(job) for job in due})

    def superseded_to_delete(self, superseded: Sequence[Path], now_ms: int) -> list[Path]:
        """Return the states of earlier owners to delete now."""
        self._superseded_since_ms = {
            state: self._superseded_since_ms.get(state, now_ms) for state in superseded
        }
        due = [
            state
            for state, since_ms in self._superseded_since_ms.items()
            if now_ms - since_ms > self.grace_ms
        ]
        return sorted(due)[: self.limit.items]
