"""Rebuilding job partitions on a person's order: each owner puts its local state aside, and we
watch until all have caught up.

Theory. Only the owner of a job partition can rebuild it, so an order is a request to a slot, and
whether it was carried out is read from that slot's own answers, never from the registry, which may
be a moment behind. An order counts for one ownership: when the owner has changed before the rebuilt
state has caught up, the new one may have begun from a local state of its own, so it is ordered
again. Caught up means: everything that stood in the inputs when the rebuilt state began to run live
has been applied. A parked partition is tried again by its slot, so only one that stays parked is a
failure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, cast

from fennel_core.connections import postgres
from fennel_core.connections.frames import Channel, RemoteError
from fennel_core.settings.model import Settings
from fennel_core.snapshots.selection import NamedPartition

POLL_S: Final = 0.25
REPORT_INTERVAL_S: Final = 10.0
FAILURE_AFTER_S: Final = 45.0
"""Parked, or without an owner that answers, this long in a row is a failure: leases have lapsed, a
slot has tried half a dozen times.
"""
OWNERS: Final = """
    SELECT p.job_id, p.part, s.address FROM job_partition p JOIN slot s ON s.id = p.slot_id
    WHERE s.lease_until > now() AND p.job_id = ANY(%s::text[])
"""


class RebuildFailed(Exception):
    """Some job partitions have not caught up again; the text says which and why."""


class SlotReport(NamedTuple):
    """What a slot says of one of its job partitions. `seen`: sum of the next offsets of its inputs;
    `origin`: what it was made from.
    """

    epoch: int
    status: str
    lag: int | None
    error: str | None
    seen: int
    origin: str


class SlotClient(Protocol):
    """The owners, to be asked."""

    async def owners(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        """Address of the live owner of each partition of these jobs that has one."""
        ...

    async def call(self, address: str, op: str, argument: object) -> Any:
        """OSError or RemoteError without an answer."""
        ...


@dataclass(slots=True)
class RebuildProgress:
    """One job partition under way, as far as it was seen."""

    named: NamedPartition
    ordered: int | None = None
    """The epoch whose owner took the order; None while nobody has."""
    goal: int | None = None
    """`seen` of a state that has caught up; None until it runs."""
    well_s: float = 0.0
    """When it was last seen in order. One that was parked is not in order again before it runs."""
    parked: bool = False
    trouble: str = ""
    done: bool = False
    said: str = ""
    said_s: float = 0.0


@dataclass(slots=True)
class RebuildRun:
    """One rebuilding. `before`: only from snapshots with lower numbers; None: from any. `tell` is
    given lines for people.
    """

    slots: SlotClient
    tell: Callable[[str], None]
    now_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    why: str
    before: int | None = None
    watched: list[RebuildProgress] = field(default_factory=list)

    async def run(self, wanted: Sequence[NamedPartition], timeout_s: float) -> None:
        """Return when all have caught up again. NotRebuilt names those that have not, and why."""
        began = self.now_s()
        self.watched = [RebuildProgress(each, well_s=began) for each in wanted]
        while open_ := [each for each in self.watched if not each.done]:
            await self._look(open_)
            self._give_up_on_lost(open_, late=self.now_s() - began > timeout_s)
            await self.sleep(POLL_S)
        self.tell(
            f"{len(self.watched)} job partitions rebuilt and caught up in "
            f"{self.now_s() - began:.1f} s"
        )

    async def _look(self, open_: Sequence[RebuildProgress]) -> None:
        owners = await self.slots.owners(sorted({each.named.job for each in open_}))
        by_slot: dict[str, list[RebuildProgress]] = {}
        for each in open_:
            address = owners.get(each.named.place)
            if address is None:
                each.trouble = "no slot owns it: does an engine run?"
            else:
                by_slot.setdefault(address, []).append(each)
        for address, theirs in by_slot.items():
            try:
                await self._ask(address, theirs)
            except (OSError, RemoteError) as lost:
                for each in theirs:
                    each.trouble = f"its slot at {address} does not answer: {lost}"

    async def _ask(self, address: str, theirs: Sequence[RebuildProgress]) -> None:
        answers = await self.slots.call(
            address, "states", {"items": [list(each.named.place) for each in theirs]}
        )
        states = [None if answer is None else SlotReport(*answer) for answer in answers]
        for each, state in zip(theirs, states, strict=True):
            if state is not None and each.ordered == state.epoch:
                self._seen(each, state)
        fresh = [
            each
            for each, state in zip(theirs, states, strict=True)
            if state is not None and each.ordered != state.epoch
        ]
        if not fresh:
            return
        order = {
            "items": [list(each.named.place) for each in fresh],
            "why": self.why,
            "before": self.before,
        }
        for each, epoch in zip(
            fresh, await self.slots.call(address, "rebuild", order), strict=True
        ):
            again = "" if each.ordered is None else " again: it has another owner now"
            each.ordered, each.goal = epoch, None
            if epoch is not None:
                self._say(each, f"ordered from {address}{again}")

    def _seen(self, each: RebuildProgress, state: SlotReport) -> None:
        if state.error is not None:
            each.parked, each.trouble = True, f"it is parked: {state.error}"
            self._say(each, each.trouble)
            return
        if state.status != "running" or state.lag is None:
            each.well_s = each.well_s if each.parked else self.now_s()
            self._say(each, state.status)
            return
        each.parked, each.well_s = False, self.now_s()
        if each.goal is None:
            each.goal = state.seen + state.lag
        each.done = state.seen >= each.goal
        self._say(
            each,
            f"{'caught up' if each.done else 'running'}, from {state.origin}",
            f", {state.lag} records behind",
        )

    def _give_up_on_lost(self, open_: Sequence[RebuildProgress], *, late: bool) -> None:
        now = self.now_s()
        lost = [each for each in open_ if not each.done and now - each.well_s > FAILURE_AFTER_S]
        if late and not lost:
            lost = [each for each in open_ if not each.done]
            for each in lost:
                each.trouble = f"it has not caught up in time; last seen: {each.said or 'nothing'}"
        if lost:
            named = "; ".join(f"{each.named}: {each.trouble}" for each in lost)
            raise RebuildFailed(
                f"{len(lost)} of {len(self.watched)} job partitions were not rebuilt: {named}"
            )

    def _say(self, each: RebuildProgress, said: str, also: str = "") -> None:
        """Once when it changes, and every now and then."""
        if said != each.said or self.now_s() - each.said_s > REPORT_INTERVAL_S:
            each.said, each.said_s = said, self.now_s()
            self.tell(f"{each.named}: {said}{also}")


class SocketSlotClient:
    """See `SlotClient`: over the registry and the slots' sockets."""

    def __init__(self, settings: Settings) -> None:
        self._dsn = settings.postgres_dsn.get_secret_value()

    async def owners(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        def read() -> list[tuple[object, ...]]:
            with postgres.connect(self._dsn, name="snapshots") as connection:
                return connection.execute(OWNERS, (list(jobs),)).fetchall()

        return {
            (str(job), cast(int, part)): str(address)
            for job, part, address in await asyncio.to_thread(read)
        }

    async def call(self, address: str, op: str, argument: object) -> Any:
        channel = await Channel.open(address)
        try:
            return await channel.call(op, argument)
        finally:
            await channel.close()


def rebuild_partitions(
    settings: Settings,
    wanted: Sequence[NamedPartition],
    tell: Callable[[str], None],
    *,
    before: int | None,
    timeout_s: float,
) -> None:
    """Rebuild job partitions and wait until they have caught up; NotRebuilt names those that have
    not, and why.
    """
    recovery = RebuildRun(
        SocketSlotClient(settings),
        tell,
        time.monotonic,
        asyncio.sleep,
        "an order to rebuild it (recovery)",
        before,
    )
    asyncio.run(recovery.run(wanted, timeout_s))
