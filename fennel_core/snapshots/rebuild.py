"""Rebuild job partitions on request: each owner discards its local state and restores it.

Theory. Only the owner of a job partition can rebuild it, so a rebuild is a request to a slot.
Whether it was carried out is read from that slot's own responses, never from the registry, which
may lag behind. A request counts for one ownership: if the owner changes before the rebuilt state
has caught up, the new owner may have started from a local state of its own, so the request is sent
again. A partition has caught up when all records are applied that its inputs held at the moment the
rebuilt state started to run live. A slot retries a parked partition by itself, so only one that
stays parked is a failure.
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
from fennel_core.snapshots.errors import RebuildFailed
from fennel_core.snapshots.selection import NamedPartition

POLL_S: Final = 0.25
REPORT_INTERVAL_S: Final = 10.0
FAILURE_AFTER_S: Final = 45.0
"""A partition that is parked, or has no responding owner, for this long has failed: by then leases
have expired and a slot has retried several times.
"""
OWNERS: Final = """
    SELECT p.job_id, p.part, s.address FROM job_partition p JOIN slot s ON s.id = p.slot_id
    WHERE s.lease_until > now() AND p.job_id = ANY(%s::text[])
"""


class SlotReport(NamedTuple):
    """The status of one job partition as its slot reports it.

    `seen`: sum of the next offsets of its inputs. `origin`: what its state was made from.
    """

    epoch: int
    status: str
    lag: int | None
    error: str | None
    seen: int
    origin: str


class SlotClient(Protocol):
    """Requests to the slots that own job partitions."""

    async def owners(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        """Return the address of the live owner of each partition of these jobs that has one."""
        ...

    async def call(self, address: str, op: str, argument: object) -> Any:
        """Return the response of one slot; OSError or RemoteError if there is none."""
        ...


@dataclass(slots=True)
class RebuildProgress:
    """The progress of one job partition as far as it was observed."""

    named: NamedPartition
    requested_epoch: int | None = None
    """The epoch whose owner accepted the request; None before that."""
    goal: int | None = None
    """The `seen` of a state that has caught up; None until it runs."""
    healthy_s: float = 0.0
    """When it was last observed in order. After parking it is in order again once it runs."""
    parked: bool = False
    problem: str = ""
    done: bool = False
    reported: str = ""
    reported_s: float = 0.0


@dataclass(slots=True)
class RebuildRun:
    """One rebuild of some job partitions.

    `before`: restore only snapshots with lower numbers; None: any snapshot. `trust_outputs`: accept
    a replay that computes other state than was committed. `report` receives lines of text for
    operators.
    """

    slots: SlotClient
    report: Callable[[str], None]
    now_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    reason: str
    before: int | None = None
    trust_outputs: bool = False
    watched: list[RebuildProgress] = field(default_factory=list)

    async def run(self, wanted: Sequence[NamedPartition], timeout_s: float) -> None:
        """Return when all have caught up; RebuildFailed lists those that have not, with reasons."""
        began = self.now_s()
        self.watched = [RebuildProgress(each, healthy_s=began) for each in wanted]
        while pending := [each for each in self.watched if not each.done]:
            await self._poll(pending)
            self._fail_if_stuck(pending, late=self.now_s() - began > timeout_s)
            await self.sleep(POLL_S)
        self.report(
            f"{len(self.watched)} job partitions rebuilt and caught up in "
            f"{self.now_s() - began:.1f} s"
        )

    async def _poll(self, pending: Sequence[RebuildProgress]) -> None:
        owners = await self.slots.owners(sorted({each.named.job for each in pending}))
        by_slot: dict[str, list[RebuildProgress]] = {}
        for each in pending:
            address = owners.get(each.named.partition)
            if address is None:
                each.problem = "no slot owns it; is an engine running?"
            else:
                by_slot.setdefault(address, []).append(each)
        for address, partitions in by_slot.items():
            try:
                await self._poll_slot(address, partitions)
            except (OSError, RemoteError) as lost:
                for each in partitions:
                    each.problem = f"its slot at {address} does not respond: {lost}"

    async def _poll_slot(self, address: str, partitions: Sequence[RebuildProgress]) -> None:
        responses = await self.slots.call(
            address, "states", {"items": [list(each.named.partition) for each in partitions]}
        )
        states = [None if response is None else SlotReport(*response) for response in responses]
        for each, state in zip(partitions, states, strict=True):
            if state is not None and each.requested_epoch == state.epoch:
                self._observe(each, state)
        fresh = [
            each
            for each, state in zip(partitions, states, strict=True)
            if state is not None and each.requested_epoch != state.epoch
        ]
        if not fresh:
            return
        request = {
            "items": [list(each.named.partition) for each in fresh],
            "why": self.reason,
            "before": self.before,
            "trust_outputs": self.trust_outputs,
        }
        for each, epoch in zip(
            fresh, await self.slots.call(address, "rebuild", request), strict=True
        ):
            again = "" if each.requested_epoch is None else " again because its owner has changed"
            each.requested_epoch, each.goal = epoch, None
            if epoch is not None:
                self._report(each, f"requested from {address}{again}")

    def _observe(self, each: RebuildProgress, state: SlotReport) -> None:
        if state.error is not None:
            each.parked, each.problem = True, f"it is parked: {state.error}"
            self._report(each, each.problem)
            return
        if state.status != "running" or state.lag is None:
            each.healthy_s = each.healthy_s if each.parked else self.now_s()
            self._report(each, state.status)
            return
        each.parked, each.healthy_s = False, self.now_s()
        if each.goal is None:
            each.goal = state.seen + state.lag
        each.done = state.seen >= each.goal
        self._report(
            each,
            f"{'caught up' if each.done else 'running'}, from {state.origin}",
            f", {state.lag} records behind",
        )

    def _fail_if_stuck(self, pending: Sequence[RebuildProgress], *, late: bool) -> None:
        now = self.now_s()
        lost = [
            each for each in pending if not each.done and now - each.healthy_s > FAILURE_AFTER_S
        ]
        if late and not lost:
            lost = [each for each in pending if not each.done]
            for each in lost:
                each.problem = (
                    f"it has not caught up in time; last seen: {each.reported or 'nothing'}"
                )
        if lost:
            named = "; ".join(f"{each.named}: {each.problem}" for each in lost)
            raise RebuildFailed(
                f"{len(lost)} of {len(self.watched)} job partitions were not rebuilt: {named}"
            )

    def _report(self, each: RebuildProgress, text: str, detail: str = "") -> None:
        """Report a new text at once and an old one at intervals."""
        if text != each.reported or self.now_s() - each.reported_s > REPORT_INTERVAL_S:
            each.reported, each.reported_s = text, self.now_s()
            self.report(f"{each.named}: {text}{detail}")


class SocketSlotClient:
    """A `SlotClient` over the registry and the slots' sockets."""

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
    report: Callable[[str], None],
    *,
    before: int | None,
    timeout_s: float,
    trust_outputs: bool = False,
) -> None:
    """Rebuild job partitions and wait until they have caught up.

    RebuildFailed lists those that have not, with the reasons. `report` receives lines of text.
    """
    run = RebuildRun(
        SocketSlotClient(settings),
        report,
        time.monotonic,
        asyncio.sleep,
        "rebuild requested by an operator (recovery)",
        before,
        trust_outputs,
    )
    asyncio.run(run.run(wanted, timeout_s))
