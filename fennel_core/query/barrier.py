"""The barrier: return when all rows logged before the call are visible to every lookup.

The barrier takes the ends of the branch's source topics when the call arrives. A job partition has
processed them once its applied position (recorded after the state was written) has passed them. Its
output for them is on its output topics by then, so the ends of those topics are the targets of the
jobs that read them, and so on to the end of the graph. Jobs are processed in layers: the barrier
waits for all partitions of a layer at once, with one request per owner slot, and reads the ends of
all its input topics in one call.

Ends are high watermarks, not last stable offsets. The broker acknowledges a commit before it writes
the markers, so for a moment the stable end excludes rows that a client knows to be accepted.
Positions move past markers and aborted records, so a high watermark is always reached. A parked job
fails the barrier at once with its error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fennel_core.blueprints.job_layers import input_partitions, layers
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.connections.frames import RemoteError
from fennel_core.query.errors import BarrierTimeout, JobParked, SlotUnresponsive, ViewOutdated
from fennel_core.query.owners import Owners
from fennel_core.query.slot_connections import SlotConnections, retry_reason
from fennel_core.vocab.ids import JobId, JobPartition, TopicPartition, partition_indexes

WAIT_SLICE_MS = 1_000
"""The longest wait of one request to a slot, so that a change of owners is noticed."""
NO_OWNER_PAUSE_S = 0.02
SPECS_KEPT = 10_000
"""Specs never change; the cache is bounded because jobs are created and destroyed."""

Ends = Mapping[TopicPartition, int]


class TopicEnds(Protocol):
    """Reads the ends of topics."""

    async def ends(self, partitions: Sequence[TopicPartition]) -> Ends:
        """Return the high watermark of each partition."""
        ...


class Jobs(Protocol):
    """Reads the specifications of jobs; unknown jobs are absent."""

    async def read_jobs(self, jobs: Sequence[JobId]) -> Mapping[JobId, Job]: ...


@dataclass(frozen=True, slots=True)
class BarrierTarget:
    """The offsets that one job partition must have applied: the end of each input topic."""

    partition: JobPartition
    title: str
    offsets: Mapping[str, int]

    def item(self) -> list[object]:
        return [*self.partition, self.offsets]


def source_partitions(catalog: Catalog, jobs: Sequence[Job]) -> list[TopicPartition]:
    """Return every partition of every topic that ingest alone writes for a branch version.

    A topic that a source replay writes, too, is read when that job has been waited for.
    """
    replayed = {output.topic for job in jobs for output in job.outputs}
    topics = dict.fromkeys(b.topic for b in catalog.sources if b.topic not in replayed)
    return [(topic, part) for topic in topics for part in partition_indexes(catalog.partitions)]


def targets(layer: Sequence[Job], ends: Ends) -> list[BarrierTarget]:
    """Return the targets of a layer; partitions without input have none."""
    found = []
    for job in layer:
        for part in partition_indexes(job.partitions):
            offsets = {
                str(topic): ends[topic, part] for topic in job.inputs if ends[topic, part] > 0
            }
            if offsets:
                found.append(BarrierTarget((job.id, part), job.title, offsets))
    return found


class Barrier:
    """Waits for the jobs of a branch version; see the module."""

    def __init__(
        self, jobs: Jobs, topics: TopicEnds, owners: Owners, slots: SlotConnections
    ) -> None:
        self._jobs = jobs
        self._topics = topics
        self._owners = owners
        self._slots = slots
        self._specs: dict[JobId, Job] = {}

    async def wait(self, catalog: Catalog, timeout_s: float) -> None:
        """Return when all rows accepted before this call are applied by every job of the branch.

        Raises `JobParked`, `BarrierTimeout` (naming job, partition and lag) and `ViewOutdated`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        jobs = await self._specs_of(catalog.jobs)
        ends = await self._topics.ends(source_partitions(catalog, jobs))
        for layer in layers(jobs):
            unknown = [place for place in input_partitions(layer) if place not in ends]
            if unknown:
                ends = {**ends, **await self._topics.ends(unknown)}
            await self._wait_for(targets(layer, ends), deadline, timeout_s)

    async def _specs_of(self, jobs: Sequence[JobId]) -> list[Job]:
        missing = [job for job in jobs if job not in self._specs]
        if missing:
            if len(self._specs) > SPECS_KEPT:
                self._specs.clear()
                missing = list(jobs)
            self._specs.update(await self._jobs.read_jobs(missing))
        unknown = next((job for job in jobs if job not in self._specs), None)
        if unknown is not None:
            raise ViewOutdated(f"job `{unknown}` no longer exists")
        return [self._specs[job] for job in jobs]

    async def _wait_for(
        self, waiting: list[BarrierTarget], deadline: float, timeout_s: float
    ) -> None:
        while waiting:
            epoch = self._owners.epoch
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise BarrierTimeout(await self._late(waiting[0], len(waiting), timeout_s))
            by_owner: dict[str, list[BarrierTarget]] = {}
            nowhere: list[BarrierTarget] = []
            for target in waiting:
                address = self._owners.address(target.partition)
                (nowhere if address is None else by_owner.setdefault(address, [])).append(target)
            self._refuse_parked(nowhere)
            asked = [self._ask(address, group, left_s) for address, group in by_owner.items()]
            answers = await asyncio.gather(*asked) if len(asked) != 1 else [await asked[0]]
            waiting = nowhere + [target for late, _ in answers for target in late]
            if nowhere or any(lost for _, lost in answers):
                await self._owners.refresh(epoch, {target.partition[0] for target in waiting})
                await asyncio.sleep(NO_OWNER_PAUSE_S)

    async def _ask(
        self, address: str, group: list[BarrierTarget], left_s: float
    ) -> tuple[list[BarrierTarget], bool]:
        """Return the targets that are still behind, and whether their owner must be looked up
        again.
        """
        slice_ms = max(1, min(WAIT_SLICE_MS, int(left_s * 1000)))
        argument = {"items": [target.item() for target in group], "timeout_ms": slice_ms}
        try:
            async with asyncio.timeout(left_s + 1):
                late = await self._slots.call(address, "wait", argument)
        except RemoteError as refused:
            retry_reason(refused)
            return group, True
        except (OSError, TimeoutError, SlotUnresponsive):
            return group, True
        lagging = {(JobId(item[0]), int(item[1])) for item in late}
        return [target for target in group if target.partition in lagging], False

    def _refuse_parked(self, targets: Sequence[BarrierTarget]) -> None:
        for target in targets:
            parked = self._owners.parked(target.partition)
            if parked is not None:
                raise JobParked.of(target.partition, parked.error)

    async def _late(self, target: BarrierTarget, others: int, timeout_s: float) -> str:
        job, part = target.partition
        behind = await self._behind(target)
        lag = "its position is unknown" if behind is None else f"{behind} records behind"
        return (
            f"after {timeout_s:g} s job `{target.title}` ({job}) partition {part} is not "
            f"done: {lag}; {others} partitions of its layer are waiting"
        )

    async def _behind(self, target: BarrierTarget) -> int | None:
        address = self._owners.address(target.partition)
        if address is None:
            return None
        try:
            async with asyncio.timeout(1):
                [applied] = await self._slots.call(
                    address, "positions", {"items": [[*target.partition]]}
                )
        except (OSError, TimeoutError, RemoteError, SlotUnresponsive):
            return None
        return sum(
            max(0, offset - int(applied.get(topic, 0))) for topic, offset in target.offsets.items()
        )
