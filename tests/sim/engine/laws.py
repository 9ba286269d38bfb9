"""The laws that a simulated world must satisfy once it has settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from fennel_core.blueprints.spec import Job
from fennel_core.connections.frames import RemoteError
from fennel_core.engine import state_progress
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.replaylog import marker as markers
from fennel_core.replaylog.marker import EpochMarker, IterationMarker
from fennel_core.schedule.ownership import place_partitions
from fennel_core.vocab.ids import (
    JobId,
    JobPartition,
    PartitionIndex,
)
from fennel_core.vocab.keys import partition_of
from fennel_core.vocab.versions import decode
from tests.sim.engine import job_chain
from tests.sim.engine.disks import DiskHangar
from tests.sim.engine.slots import DRIFTED

if TYPE_CHECKING:
    from tests.sim.engine.slots import LiveSlot
    from tests.sim.engine.world import World

AS_OF_S: Final = (5, 15, 1000)
REMOVED_JOB: Final = JobId("doomed")
"""The id decides the order of slots: changing it changes what every seed does."""


class LawViolated(AssertionError):
    """A law of the simulated world does not hold."""


class Laws:
    """Checks the content of a world; each check raises LawViolated."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def check_archive(self) -> None:
        if flaws := await self._world.archive.flaws():
            raise LawViolated("; ".join(flaws))

    async def unsettled(self) -> str | None:
        if not self._world.log.idle():
            return "a transaction is open"
        slots = (await self._world.registry.read(self._world.slots[0].slot.id)).slots
        if not slots:
            return "no slot is registered"
        for job in self._world.jobs:
            placed = place_partitions(job.id, self._world.partitions, slots.keys())
            for part in map(PartitionIndex, range(self._world.partitions)):
                slot, report = self._world.registry.reports()[(job.id, part)]
                if slot != slots[placed[part]] or report.status != "running" or report.lag != 0:
                    return f"{job.id}[{part}] at {slot}: {report}"
                targets = {topic: self._world.log.stable_end((topic, part)) for topic in job.inputs}
                owner = next(
                    (living for living in self._world.slots if living.slot.id == slot), None
                )
                if owner is None:
                    return f"{job.id}[{part}] at {slot}, which is dead"
                try:
                    behind = await owner.service(
                        "wait", {"items": [(job.id, part, targets)], "timeout_ms": 200}
                    )
                except RemoteError as refused:
                    return str(refused)
                if behind:
                    return f"{behind} behind"
        if REMOVED_JOB not in self._world.registry._specs and any(
            REMOVED_JOB in living.machine.stored() for living in self._world.slots
        ):
            return "the state of a removed job is kept"
        if superseded := self._superseded():
            return f"states of earlier owners are kept: {superseded}"
        return self._unreadable()

    def _superseded(self) -> list[str]:
        """Return the states that earlier owners left on the machines of their successors."""
        return [
            str(folder)
            for living in self._world.slots
            for folder in living.machine.folders(living.process).superseded(
                {key: hosted.epoch for key, hosted in living.supervisor.hosted.items()}
            )
        ]

    def _unreadable(self) -> str | None:
        """Return a refusal that a read of damaged state causes, None if all reads succeed."""
        for job, key, at, _ in job_chain.lookups(self._world.feed, AS_OF_S):
            part = PartitionIndex(partition_of(key, self._world.partitions))
            try:
                self._owner((job, part)).service.lookup_now(job, part, [key], at)
            except RemoteError as refused:
                return str(refused)
        return None

    def _owner(self, key: JobPartition) -> LiveSlot:
        return next(
            living
            for living in self._world.slots
            if living.slot.id == self._world.registry.owner(key)
        )

    def state_hashes(self) -> dict[JobPartition, int]:
        return {
            key: state_progress.load(MemoryHangar(self._store(key).content().entries)).state_hash
            for key in self._keys()
        }

    def drifted(self) -> set[JobPartition]:
        """Return the job partitions whose state is another one than was committed."""
        return {key for key in self._keys() if DRIFTED in self._store(key).content().entries}

    def _keys(self) -> list[JobPartition]:
        return [
            (job.id, PartitionIndex(part))
            for job in self._world.jobs
            for part in range(self._world.partitions)
        ]

    def _store(self, key: JobPartition) -> DiskHangar:
        runner = self._owner(key).supervisor.hosted[key].runner
        assert runner is not None, "a settled job partition runs"
        return cast(DiskHangar, runner.hangar)

    def data_records(self) -> dict[tuple[str, int], int]:
        written = [
            source for source in self._world.log.partitions() if not source[0].endswith("replaylog")
        ]
        return {
            source: sum(r.control is None for r in self._world.log.committed(source, 0))
            for source in written
        }

    def check(self) -> None:
        """Compare outputs, dead letters, lookups and replaylogs with the recompute."""
        for topic, expected in job_chain.expected_integrals(self._world.feed).items():
            schema = {
                job_chain.CLEANED: job_chain.EVENT,
                job_chain.JOINED: job_chain.MET,
                job_chain.TOTALS: job_chain.SERVED,
                job_chain.DEAD: job_chain.EVENT,
            }[topic]
            records = [
                r
                for part in range(self._world.partitions)
                for r in self._world.log.committed((topic, part), 0)
                if r.control is None
            ]
            found = job_chain.integral([decode(r.value) for r in records], schema)
            if found != expected:
                raise LawViolated(
                    f"{topic}: too much {found - expected}, missing {expected - found}"
                )
        for job, key, at, expected_row in job_chain.lookups(self._world.feed, AS_OF_S):
            part = PartitionIndex(partition_of(key, self._world.partitions))
            (row,) = self._owner((job, part)).service.lookup_now(job, part, [key], at)
            if job_chain.decoded(row) != expected_row:
                raise LawViolated(
                    f"{job} {key!r} as of {at}: {job_chain.decoded(row)}, not {expected_row}"
                )
        for job in (job_chain.CLEAN, job_chain.JOIN, job_chain.TOTAL):
            for part in range(self._world.partitions):
                self._check_replaylog(job, part)

    async def check_scans(self) -> None:
        """Compare scans of a job partition with lookups of all its keys."""
        at = job_chain.micros(1000)
        for part in map(PartitionIndex, range(self._world.partitions)):
            service = self._owner((job_chain.SERVE.id, part)).service
            here = [
                key
                for _, key in job_chain.keys_of(job_chain.SERVE.id)
                if partition_of(key, self._world.partitions) == part
            ]
            asked = [[job_chain.SERVE.id, part, here, at]]
            looked_up: Any = await service("lookup", {"items": asked})
            (rows,) = looked_up["rows"]
            reply: Any = await service(
                "scan", {"job": job_chain.SERVE.id, "part": part, "as_of": at, "limit": 100}
            )
            scanned = reply["rows"]
            if sorted(scanned) != sorted(
                (k, r) for k, r in zip(here, rows, strict=True) if r is not None
            ):
                raise LawViolated(f"{job_chain.SERVE.id}[{part}] lists {scanned}")
            (applied,) = cast(
                list[dict[str, int]],
                await service("positions", {"items": [(job_chain.SERVE.id, part)]}),
            )
            if applied != {job_chain.JOINED: self._world.log.stable_end((job_chain.JOINED, part))}:
                raise LawViolated(f"{job_chain.SERVE.id}[{part}] has applied {applied}")

    def _check_replaylog(self, job: Job, part: int) -> None:
        found = [
            markers.decode_marker(r.value)
            for r in self._world.log.committed((job.replaylog, part), 0)
        ]
        epochs = 0
        applied = dict.fromkeys(job.inputs, 0)
        iteration = 0
        for marker in found:
            if isinstance(marker, EpochMarker):
                epochs = max(epochs, marker.epoch)
                continue
            assert isinstance(marker, IterationMarker)
            iteration += 1
            if marker.epoch != epochs or marker.iteration != iteration:
                raise LawViolated(
                    f"{job.id}[{part}]: {marker} after epoch {epochs}, expected "
                    f"iteration {iteration}"
                )
            for covered in marker.ranges:
                if covered.first < applied[covered.topic]:
                    raise LawViolated(
                        f"{job.id}[{part}]: {covered} was covered up to {applied[covered.topic]}"
                    )
                applied[covered.topic] = covered.next
