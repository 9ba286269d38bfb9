"""The Job Supervisor of one slot: runs exactly the job partitions that this slot owns.

Theory. The supervisor reads the registry periodically (and when notified), decides per job
partition with the pure rules of `schedule`, and starts and stops runners accordingly. A separate
task renews the leases, so that a long turn cannot lose them. A lease is trusted only until its end
on this process's monotonic clock, counted from before the renewal was requested. After that runners
begin no iteration, and continue if the registry turns out to have no other owner. When a runner
ends, the reason decides:

- Ownership is lost: drop the job partition; claim it again if it is still ours.
- The log or the registry is unavailable: start the runner again under the same epoch.
- The job failed: park it with its error and try again with back-off. Other jobs are unaffected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from fennel_core.bank.registry import PartitionReport, Registry, RegistryState, Slot
from fennel_core.connections.errors import ConnectionsError, ObjectStoreUnavailable
from fennel_core.engine.errors import (
    BrokerError,
    EpochSuperseded,
    OutputTopicMissing,
    ProducerFenced,
    RebuildRequested,
    StateUnusable,
)
from fennel_core.engine.local_state import LocalStateGarbage
from fennel_core.engine.runner import Runner
from fennel_core.engine.runner_factory import RunnerFactory
from fennel_core.hangar.store import HangarCorrupt, HangarInUse
from fennel_core.schedule.lease import Claim, Keep, Lease, Stop, StopAndRelease, decide_lease
from fennel_core.schedule.ownership import place_partitions
from fennel_core.vocab.ids import (
    Epoch,
    JobId,
    JobPartition,
    Millis,
    PartitionIndex,
    SlotName,
)

log = structlog.get_logger(__name__)

SETTLING_MS: Final = 50
"""Interval of reports while a runner is young or has not begun to read."""
SETTLED_MS: Final = 500
"""Interval of reports otherwise: a commit may wait for the progress of an old runner, too."""
YOUNG_MS: Final = 30_000
"""Commits usually wait for runners of this age."""
FIRST_BACKOFF_MS: Final = 500
LARGEST_BACKOFF_MS: Final = 30_000
HEALTHY_AFTER_MS: Final = 60_000
"""A runner that lived this long starts with the first back-off again."""


class MonotonicClock(Protocol):
    def monotonic_ms(self) -> int: ...

    async def sleep(self, ms: int) -> None: ...


@dataclass(slots=True)
class HostedPartition:
    """One job partition that this slot runs."""

    epoch: Epoch
    task: asyncio.Task[None] | None = None
    runner: Runner | None = None
    error: str | None = None
    lost: bool = False
    reported: PartitionReport | None = None
    backoff_ms: int = FIRST_BACKOFF_MS
    since_ms: int = 0
    trust_outputs: bool = False
    """An operator's order, until a runner has replayed its log."""

    @property
    def parked(self) -> str | None:
        """Return the last error, None once a runner got further than replaying.

        The error stays visible while the runner is tried again.
        """
        return self.error if self.runner is None or self.runner.status == "replaying" else None

    @property
    def is_live(self) -> bool:
        """Return whether the runner has replayed its log and reads its inputs."""
        return not self.lost and self.runner is not None and self.runner.status == "running"

    def report(self) -> PartitionReport:
        if self.parked is not None:
            return PartitionReport("parked", None, self.parked)
        if self.runner is None:
            return PartitionReport("replaying", None, None)
        runner = self.runner
        applied = dict(runner.applied) if runner.status == "running" else {}
        return PartitionReport(runner.status, runner.lag, None, applied)

    def is_settled(self, now_ms: int) -> bool:
        """Return whether reports of this partition are not urgent."""
        known = self.reported
        return (
            known is not None
            and now_ms - self.since_ms >= YOUNG_MS
            and (known.status == "parked" or (known.status == "running" and known.lag is not None))
        )


@dataclass(slots=True)
class Supervisor:
    slot: Slot
    registry: Registry
    runner_factory: RunnerFactory
    clock: MonotonicClock
    lease_ms: Millis
    poll_ms: int
    garbage: LocalStateGarbage
    hosted: dict[JobPartition, HostedPartition] = field(default_factory=dict)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _lease_until_ms: int = 0
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while `hosted` changes, and while the registry says what of it is still owned."""
    _placements: dict[JobId, Mapping[PartitionIndex, SlotName]] = field(default_factory=dict)
    _superseded: bool = False
    _placed_on: frozenset[SlotName] = frozenset()
    """The slots that `_placements` was computed for."""

    _renewed: asyncio.Event = field(default_factory=asyncio.Event)
    _claims_others_from_ms: int = 0
    """After the registry was out of reach, other slots get time to renew their leases."""

    def lease_is_live(self) -> bool:
        """Return True while no other slot can own what this slot owns."""
        return self.clock.monotonic_ms() < self._lease_until_ms

    async def lease_held(self) -> None:
        """Return once the lease is live."""
        while not self.lease_is_live():
            await self._renewed.wait()

    async def run(self) -> None:
        """Run until `stop` is set by the registry or the host; then release everything."""
        await self._renew()
        helpers = [asyncio.create_task(self._renewals()), asyncio.create_task(self._reports())]
        try:
            while not self.stop.is_set():
                await self._guarded(self.tick)
                await self._pause()
        finally:
            for helper in helpers:
                helper.cancel()
            await self.shut_down()

    async def rebuild(self, partition: JobPartition, why: Exception) -> Epoch | None:
        """Start a job partition again at once, but not from its local state.

        It may be running, replaying or parked; its back-off ends. Returns its epoch, None if this
        slot does not own it.
        """
        async with self._changing:
            hosted = self.hosted.get(partition)
            if hosted is None or hosted.lost:
                return None
            self.runner_factory.discard_state(*partition, why)
            await self._stop(partition)
            trust_outputs = isinstance(why, RebuildRequested) and why.trust_outputs
            self._start(partition, hosted.epoch, trust_outputs=trust_outputs)
            return hosted.epoch

    async def shut_down(self) -> None:
        """Stop every runner and release every lease."""
        async with self._changing:
            await asyncio.gather(*(self._stop(partition) for partition in list(self.hosted)))
        await self._guarded(lambda: self.registry.deregister(self.slot.id))

    async def tick(self) -> None:
        """Read the registry once and act on it."""
        # Listed before the registry is read: the state of a job that is new by then is not unknown.
        stored, asked_ms = self.runner_factory.jobs_with_state(), self.clock.monotonic_ms()
        seen = await self.registry.read(self.slot.id)
        read_ms = self.clock.monotonic_ms()
        if seen.stopping:
            self.stop.set()
            return
        self._warn_if_superseded(seen)
        async with self._changing:
            await self._act(*self._decisions(seen))
        for job in self.garbage.to_delete(stored, seen.jobs, asked_ms, read_ms):
            log.info("local state is deleted", job=job, slot=self.slot.id)
            await self.runner_factory.delete_state(job)
        await self._delete_superseded(seen)

    async def _delete_superseded(self, seen: RegistryState) -> None:
        """Delete what earlier owners on this machine have left of partitions that run here.

        Only of those that this slot owns according to the registry: a slot that has lost a
        partition unnoticed must not delete the state of its successor.
        """
        running = {
            (entry.id, part): hosted.epoch
            for entry in seen.jobs
            for part, lease in entry.leases.items()
            if (hosted := self.hosted.get((entry.id, part))) is not None
            and hosted.is_live
            and (lease.slot, lease.epoch) == (self.slot.id, hosted.epoch)
        }
        superseded = await self.runner_factory.superseded(running)
        now_ms = self.clock.monotonic_ms()
        for state in self.garbage.superseded_to_delete(superseded, now_ms):
            if await self.runner_factory.delete_superseded(state):
                log.info("superseded local state is deleted", folder=str(state), slot=self.slot.id)

    def _warn_if_superseded(self, seen: RegistryState) -> None:
        newest = seen.slots.get(self.slot.name)
        superseded = newest is not None and newest != self.slot.id
        if superseded and not self._superseded:
            log.warning(
                "a later process has the name of this slot and takes its job partitions: give "
                "each engine its own FENNEL_ENGINE",
                slot=self.slot.id,
                later=newest,
            )
        self._superseded = superseded

    async def _act(
        self,
        wanted: list[tuple[JobPartition, Epoch]],
        leaving: list[JobPartition],
        held: list[tuple[JobPartition, Epoch]],
    ) -> None:
        await asyncio.gather(*(self._stop(partition) for partition in leaving))
        if held:
            await self.registry.release(held, self.slot.id)
        if wanted:
            for partition, epoch in (
                await self.registry.claim(wanted, self.slot.id, self.lease_ms)
            ).items():
                await self._stop(partition)
                self._start(partition, epoch)

    def _decisions(
        self, seen: RegistryState
    ) -> tuple[
        list[tuple[JobPartition, Epoch]], list[JobPartition], list[tuple[JobPartition, Epoch]]
    ]:
        """Return what to claim, what to stop, and which leases to release after that."""
        wanted: list[tuple[JobPartition, Epoch]] = []
        held: list[tuple[JobPartition, Epoch]] = []
        kept: set[JobPartition] = set()
        placements = self._place(seen)
        for entry in seen.jobs:
            placed = placements[entry.id]
            for part, lease in entry.leases.items():
                partition = (entry.id, part)
                hosted = self.hosted.get(partition)
                running = hosted.epoch if hosted is not None and not hosted.lost else None
                best = (
                    seen.slots[placed[part]] if entry.desired == "run" and part in placed else None
                )
                match decide_lease(self.slot.id, lease, running, best):
                    case Keep() if entry.desired == "run":
                        kept.add(partition)
                    case Claim() if self._waits_for(lease):
                        pass
                    case Claim(epoch):
                        kept.add(partition)
                        wanted.append((partition, epoch))
                    case Keep(epoch) | StopAndRelease(epoch):
                        held.append((partition, epoch))
                    case Stop():
                        pass
        return wanted, [partition for partition in self.hosted if partition not in kept], held

    def _waits_for(self, lease: Lease) -> bool:
        """Return whether the last owner, another slot, may still renew an ended lease."""
        return (
            lease.slot not in (None, self.slot.id)
            and self.clock.monotonic_ms() < self._claims_others_from_ms
        )

    def _place(self, seen: RegistryState) -> Mapping[JobId, Mapping[PartitionIndex, SlotName]]:
        """Return where every partition belongs; a job is placed again only when slots change."""
        names = frozenset(seen.slots)
        known = self._placements if names == self._placed_on else {}
        self._placements = {
            entry.id: known[entry.id]
            if entry.id in known
            else place_partitions(entry.id, len(entry.leases), names)
            for entry in seen.jobs
        }
        self._placed_on = names
        return self._placements

    def _start(self, partition: JobPartition, epoch: Epoch, *, trust_outputs: bool = False) -> None:
        hosted = HostedPartition(
            epoch, since_ms=self.clock.monotonic_ms(), trust_outputs=trust_outputs
        )
        self.hosted[partition] = hosted
        hosted.task = asyncio.create_task(
            self._host(partition, hosted), name=f"{partition[0]}-{partition[1]}"
        )

    async def _stop(self, partition: JobPartition) -> None:
        hosted = self.hosted.pop(partition, None)
        if hosted is None or hosted.task is None:
            return
        hosted.task.cancel()
        await asyncio.wait([hosted.task])

    async def _host(self, partition: JobPartition, hosted: HostedPartition) -> None:
        bound = log.bind(job=partition[0], part=partition[1], epoch=hosted.epoch, slot=self.slot.id)
        while not hosted.lost:
            started = self.clock.monotonic_ms()
            try:
                await self._run_once(partition, hosted)
            except (ProducerFenced, EpochSuperseded) as superseded:
                bound.warning("ownership lost", error=str(superseded))
                hosted.lost = True
                self.wake.set()
            except (ObjectStoreUnavailable, OutputTopicMissing) as unavailable:
                # Retried like any failure, but reported: commits may wait for this job.
                bound.warning("job parked", error=str(unavailable))
                hosted.error = f"{type(unavailable).__name__}: {unavailable}"
            except (BrokerError, ConnectionsError, HangarInUse) as unavailable:
                bound.warning("runner restarts", error=str(unavailable))
            except Exception as failed:  # noqa: BLE001  # last line of defence: a failure parks this job only
                bound.exception("job parked")
                hosted.error = f"{type(failed).__name__}: {failed}"
            if self.clock.monotonic_ms() - started > HEALTHY_AFTER_MS:
                hosted.backoff_ms = FIRST_BACKOFF_MS
            if not hosted.lost:
                await self.clock.sleep(hosted.backoff_ms)
                hosted.backoff_ms = min(hosted.backoff_ms * 2, LARGEST_BACKOFF_MS)

    async def _run_once(self, partition: JobPartition, hosted: HostedPartition) -> None:
        runner = await self.runner_factory.make(*partition, hosted.epoch)
        if runner is None:
            hosted.lost = True
            return
        hosted.runner = runner
        runner.may_begin = self.lease_held
        runner.trust_outputs = hosted.trust_outputs
        try:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # `asyncio.wait_for` of Python 3.11, which connection pools use, may swallow a
                # cancellation that arrives together with its result.
                raise asyncio.CancelledError
            await runner.run()
        except (StateUnusable, HangarCorrupt) as wrong:
            self.runner_factory.discard_state(*partition, wrong)
            raise
        finally:
            hosted.error = hosted.parked
            hosted.trust_outputs &= runner.status == "replaying"
            hosted.runner = None
            await self.runner_factory.close(runner)

    async def _renewals(self) -> None:
        while True:
            await self.clock.sleep(self.lease_ms // 3)
            await self._guarded(self._renew)

    async def _renew(self) -> None:
        requested_ms = self.clock.monotonic_ms()
        await self.registry.heartbeat(self.slot, self.lease_ms)
        if 0 < self._lease_until_ms <= self.clock.monotonic_ms():
            await self._resume()
        self._lease_until_ms = requested_ms + self.lease_ms
        renewed, self._renewed = self._renewed, asyncio.Event()
        renewed.set()

    async def _resume(self) -> None:
        """Go on after the lease has ended with the partitions that no other slot has claimed.

        The registry was out of reach, or this process was paused. Nothing changes for a partition
        whose row still has this slot and epoch; the others are lost.
        """
        async with self._changing:  # a turn or a rebuild may not start one that is not asked for
            running = {key: hosted for key, hosted in self.hosted.items() if not hosted.lost}
            held = [(key, hosted.epoch) for key, hosted in running.items()]
            kept = await self.registry.resume(held, self.slot.id, self.lease_ms)
            for key, hosted in running.items():
                if key not in kept:
                    hosted.lost = True
        self._claims_others_from_ms = self.clock.monotonic_ms() + self.lease_ms
        self.wake.set()

    async def _reports(self) -> None:
        while True:
            await self._guarded(self._report)
            now_ms = self.clock.monotonic_ms()
            settled = all(hosted.is_settled(now_ms) for hosted in self.hosted.values())
            await self.clock.sleep(SETTLED_MS if settled else SETTLING_MS)

    async def _report(self) -> None:
        changed = {
            partition: (h.epoch, report)
            for partition, h in self.hosted.items()
            if (report := h.report()) != h.reported
        }
        if not changed:
            return
        for partition in changed:
            # The registry may hold either report until it has confirmed this one.
            self.hosted[partition].reported = None
        await self.registry.report(changed, self.slot.id)
        for partition, (epoch, report) in changed.items():
            hosted = self.hosted.get(partition)
            if hosted is not None and hosted.epoch == epoch:
                hosted.reported = report

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` and log its failure.

        While the registry is unavailable, runners continue until the lease ends; reads go on after
        that, marked as stale.
        """
        try:
            await work()
        except Exception:  # last line of defence: log, and try again at the next turn
            log.exception("registry turn failed", slot=self.slot.id)

    async def _pause(self) -> None:
        """Wait until woken, stopped, or for the poll interval."""
        async with asyncio.TaskGroup() as group:
            waits = [
                group.create_task(wait)
                for wait in (_set(self.wake), _set(self.stop), self.clock.sleep(self.poll_ms))
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        self.wake.clear()


async def _set(event: asyncio.Event) -> None:
    await event.wait()
