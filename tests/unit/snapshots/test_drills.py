"""Which partitions are drilled next, and the effect of findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.snapshots.drills import (
    DrillFinding,
    DrillVerdict,
    drill_at_owner,
    least_recently_drilled,
    raise_on_failures,
)
from fennel_core.snapshots.errors import DrillFailed, DrillNotRun
from fennel_core.snapshots.selection import NamedPartition
from fennel_core.vocab.ids import JobId, PartitionIndex

PARTS = [
    NamedPartition(JobId("w.job.a.1"), PartitionIndex(part), "w", "Order: table")
    for part in range(5)
]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_partition_is_drilled_before_any_is_drilled_again() -> None:
    last: dict[tuple[str, int], datetime] = {}
    turns = []
    for night in range(5):
        chosen = least_recently_drilled(PARTS, last, 2)
        turns += [each.part for each in chosen]
        last |= {each.partition: NOW + timedelta(days=night) for each in chosen}
    assert turns == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0]


@dataclass
class Slot:
    """One owner with one response."""

    answer: object
    owner: str | None = "a.sock"

    async def owners(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        return {} if self.owner is None else {PARTS[0].partition: self.owner}

    async def call(self, address: str, op: str, argument: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("slot", "verdict"),
    [
        (Slot(["differs", "detail", "aa", "bb"]), DrillVerdict.DIFFERS),
        (Slot(["agrees", "detail", "aa", "aa"]), DrillVerdict.AGREES),
        (Slot(RemoteError(RefusalCode.NOT_OWNER, "not here")), DrillVerdict.SKIPPED),
        (Slot(RemoteError(RefusalCode.PARKED, "it is parked")), DrillVerdict.SKIPPED),
        (
            Slot(RemoteError(RefusalCode.UNKNOWN_OPERATION, "of different versions")),
            DrillVerdict.UNKNOWN,
        ),
        (Slot(ConnectionError("lost")), DrillVerdict.UNKNOWN),
        (Slot(TimeoutError()), DrillVerdict.UNKNOWN),
        (Slot(None, owner=None), DrillVerdict.SKIPPED),
    ],
)
async def test_a_missing_response_is_not_a_finding_about_the_state(
    slot: Slot, verdict: DrillVerdict
) -> None:
    assert (await drill_at_owner(slot, PARTS[0], 1)).verdict is verdict


def test_a_failed_drill_is_raised_before_drills_that_did_not_run() -> None:
    differs, unknown = (
        DrillFinding(DrillVerdict.DIFFERS, "detail", "aa", "bb"),
        DrillFinding(DrillVerdict.UNKNOWN, "no answer"),
    )
    fine = [
        DrillFinding(verdict, "fine") for verdict in (DrillVerdict.AGREES, DrillVerdict.SKIPPED)
    ]
    with pytest.raises(
        DrillFailed,
        match=r"1 of 4 drills: Order: table \(w.job.a.1\[0\]\): "
        r"differs: detail \(live aa, drilled bb\)$",
    ):
        raise_on_failures(list(zip(PARTS, [differs, unknown, *fine], strict=False)))
    with pytest.raises(DrillNotRun, match=r"1 of 3 drills: .*no answer"):
        raise_on_failures(list(zip(PARTS, [unknown, *fine], strict=False)))
    raise_on_failures(list(zip(PARTS, fine, strict=False)))
