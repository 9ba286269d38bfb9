"""A rebuild: which slots are requested, when it is done, and the error if it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.snapshots.errors import RebuildFailed
from fennel_core.snapshots.rebuild import RebuildRun, SlotReport
from fennel_core.snapshots.selection import NamedPartition
from fennel_core.vocab.ids import JobId, PartitionIndex

PARTS = [
    NamedPartition(JobId("w.job.a.1"), PartitionIndex(part), "w", "Order: table")
    for part in range(2)
]
RUNNING = SlotReport(1, "running", 0, None, 10, "its local state")


@dataclass
class Owners:
    """Slots by address.

    `script[part]` lists the states that are reported after the request, one per poll; the last one
    repeats.
    """

    script: dict[int, list[SlotReport | None]]
    address: Callable[[], str | None] = lambda: "a.sock"
    requests: list[tuple[str, int, int | None]] = field(default_factory=list)
    away: int = 0

    async def owners(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        address = self.address()
        return {} if address is None else {each.partition: address for each in PARTS}

    async def call(self, address: str, op: str, argument: Any) -> Any:
        if self.away:
            self.away -= 1
            raise RemoteError(RefusalCode.NOT_OWNER, "not now")
        if op == "rebuild":
            self.requests += [(address, part, argument["before"]) for _, part in argument["items"]]
            return [self._epoch(part) for _, part in argument["items"]]
        return [self._answer(part) for _, part in argument["items"]]

    def _answer(self, part: int) -> SlotReport | None:
        if not any(requested == part for _, requested, _ in self.requests):
            return RUNNING
        states = self.script[part]
        return states[0] if len(states) == 1 else states.pop(0)

    def _epoch(self, part: int) -> int | None:
        return next((state.epoch for state in self.script[part] if state is not None), None)


@dataclass
class World:
    owners: Owners
    now_s: float = 0.0
    lines: list[str] = field(default_factory=list)

    async def run(
        self,
        wanted: Sequence[NamedPartition] = PARTS,
        before: int | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        async def sleep(seconds: float) -> None:
            self.now_s += seconds

        await RebuildRun(
            self.owners, self.lines.append, lambda: self.now_s, sleep, "why", before
        ).run(wanted, timeout_s)


def running(lag: int | None, seen: int, epoch: int = 1) -> SlotReport:
    return SlotReport(epoch, "running", lag, None, seen, "snapshot #7")


REPLAYING = SlotReport(1, "replaying", None, None, 0, "nothing yet")


async def test_a_rebuild_ends_at_the_end_offsets_of_its_start_even_under_constant_writes() -> None:
    owners = Owners(
        {
            0: [REPLAYING, running(None, 5), running(5, 5), running(9, 7), running(4, 10)],
            1: [running(0, 3)],
        }
    )
    world = World(owners)
    await world.run(before=9)
    assert owners.requests == [("a.sock", 0, 9), ("a.sock", 1, 9)], "each was requested once"
    assert (
        "Order: table (w.job.a.1[0]): caught up, from snapshot #7, 4 records behind" in world.lines
    )
    assert world.lines[-1].startswith("2 job partitions rebuilt and caught up in ")
    assert len(owners.script[0]) == 1, "it was watched to the end"


async def test_a_new_owner_is_requested_again_as_it_may_have_its_own_local_state() -> None:
    owners = Owners(
        {0: [REPLAYING, running(0, 5, epoch=2), running(0, 5, epoch=2)], 1: [running(0, 3)]}
    )
    owners._epoch = lambda part: len([o for o in owners.requests if o[1] == part])
    world = World(owners)
    await world.run()
    assert [part for _, part, _ in owners.requests] == [0, 1, 0]
    assert any("again because its owner has changed" in line for line in world.lines)


async def test_a_partition_that_stays_parked_fails_with_its_name_and_its_error() -> None:
    owners = Owners(
        {
            0: [SlotReport(1, "parked", None, "ValueError: no such column", 0, "snapshot #7")],
            1: [running(0, 3)],
        }
    )
    with pytest.raises(
        RebuildFailed,
        match=r"1 of 2 .*Order: table \(w.job.a.1\[0\]\): it is parked: ValueError: no such column",
    ):
        await World(owners).run()


async def test_a_partition_parked_between_retries_does_not_count_as_rebuilding() -> None:
    class Flapping(Owners):
        def _answer(self, part: int) -> SlotReport | None:
            self.script[part].append(self.script[part].pop(0))
            return super()._answer(part)

    parked = SlotReport(1, "parked", None, "it fails", 0, "snapshot #7")
    with pytest.raises(RebuildFailed, match="it fails"):
        await World(Flapping({0: [parked, REPLAYING], 1: [running(0, 3)] * 2})).run(PARTS[:1])


async def test_a_partition_that_was_parked_for_a_moment_is_awaited() -> None:
    owners = Owners(
        {
            0: [
                SlotReport(1, "parked", None, "the bucket is away", 0, "nothing yet"),
                REPLAYING,
                running(0, 4),
            ],
            1: [],
        }
    )
    world = World(owners)
    await world.run(PARTS[:1])
    assert world.lines[-1].startswith("1 job partitions rebuilt and caught up in ")


async def test_a_missing_owner_is_an_error_unless_one_appears_in_time() -> None:
    with pytest.raises(RebuildFailed, match="no slot owns it; is an engine running"):
        await World(Owners({}, address=lambda: None)).run()
    late = Owners({0: [running(0, 1)], 1: [running(0, 1)]})
    world = World(late)
    late.address = lambda: "b.sock" if world.now_s > 20 else None
    await world.run()
    assert {address for address, _, _ in late.requests} == {"b.sock"}


async def test_a_slot_that_does_not_respond_for_a_moment_is_requested_again() -> None:
    owners = Owners({0: [running(0, 1)], 1: [running(0, 1)]}, away=5)
    await World(owners).run()
    assert len(owners.requests) == 2


async def test_a_partition_that_is_late_is_reported_with_its_last_status() -> None:
    with pytest.raises(
        RebuildFailed, match=r"\[0\]\): it has not caught up in time; last seen: replaying"
    ):
        await World(Owners({0: [REPLAYING], 1: [running(0, 1)]})).run(timeout_s=100)
