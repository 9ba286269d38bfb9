"""The Airflow DAGs of the simulated world: snapshots, pruning, drills and requested rebuilds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from fennel_core.connections.errors import ConnectionsError, SystemUnavailable
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.garbage import DeletionLimit, MemoryGarbageMarks
from fennel_core.connections.installation import BucketOfAnotherInstallation
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.engine.drill.compare import drill_partition
from fennel_core.engine.drill.subprocess_drill import replay_logic
from fennel_core.engine.errors import BrokerError
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.hangar.store import Hangar
from fennel_core.snapshots.drills import DrillFinding, DrillVerdict
from fennel_core.snapshots.pruning import prune_snapshots
from fennel_core.snapshots.rebuild import SlotReport
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.vocab.ids import JobPartition, PartitionIndex
from tests.sim.engine.disks import DiskHangar, restored
from tests.sim.engine.faulty_components import Process, ProcessDied, ProcessPool, SimBroker
from tests.sim.engine.model_archive import now
from tests.sim.engine.model_log import ModelLog
from tests.sim.engine.slots import DRIFTED

if TYPE_CHECKING:
    from tests.sim.engine.slots import LiveSlot
    from tests.sim.engine.world import World

KEPT: Final = 1
TRUSTED: Final = 0.25
"""Share of the rebuilds that trust committed outputs instead of comparing them."""
LIMIT: Final = DeletionLimit(20, 20)
DIFFERS_AS_TRUSTED: Final = f": 1 entries differ, the first at key {DRIFTED.hex()}"
"""What a drill says of a state whose difference an operator has accepted."""
GRACE: Final = timedelta(seconds=25)
"""Grace period of snapshots; longer than any pause of a process."""


class SimDrills:
    """As `engine.drill.subprocess_drill.DrillRunner`, without the child process."""

    def __init__(
        self, tools: SnapshotContext, process: Process, log: ModelLog, scratch: Callable[[], Path]
    ) -> None:
        self._tools, self._process, self._log, self._scratch = tools, process, log, scratch

    async def run(self, runner: Runner, max_bytes: int) -> DrillFinding:
        job, part = runner.job, PartitionIndex(runner.part)
        pointers = await self._tools.pointers.of(job.id, part)
        if not pointers:
            return DrillFinding(DrillVerdict.SKIPPED, "it has no snapshot yet")
        live = cast(DiskHangar, runner.hangar).copied()
        broker, pool, limits = (
            SimBroker(self._process, self._log),
            ProcessPool(self._process),
            RunnerLimits(6_000, "simulated"),
        )

        def runner_over(hangar: Hangar) -> Runner:
            return Runner(job, part, runner.epoch, replay_logic(job), hangar, broker, pool, limits)

        def opener(folder: Path) -> Hangar:
            return DiskHangar(self._process, restored(folder))

        try:
            return await drill_partition(
                self._tools, pointers[0], live, self._scratch(), opener, runner_over
            )
        except (BrokerError, ConnectionsError) as failed:
            return DrillFinding(DrillVerdict.UNKNOWN, str(failed))


class Dags:
    """The DAGs, on a machine of their own; `asked` holds the calls in flight."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked: set[asyncio.Task[None]] = set()
        self.trusted: set[JobPartition] = set()
        """Rebuilt by a slot with other libraries, whose results an operator has accepted."""
        self.findings: Counter[str] = Counter()

    async def archive(self) -> None:
        """Periodically take snapshots of what slots own and prune old ones."""
        world, dag = self._world, Process(self._world.dice)
        while True:
            await asyncio.sleep(world.dice.random.choice([1.0, 3.0, 6.0]))
            for living in world.slots:
                items = [list(key) for key in living.supervisor.hosted]
                if items and world.dice.random.random() < 0.5:
                    self._in_the_background(self._copied(living, items))
            try:
                await self.pruned(dag)
            except SystemUnavailable:
                continue  # the next round tries again

    async def pruned(self, process: Process) -> None:
        archive = self._world.archive
        await prune_snapshots(archive.tools(process), archive.marks, KEPT, GRACE, LIMIT)

    async def strangers(self) -> None:
        """Let installations that know none of the jobs prune the same bucket, without patience."""
        world, dag = self._world, Process(self._world.dice)
        marks = MemoryGarbageMarks(now)
        while True:
            await asyncio.sleep(2.0)
            neighbour, misled = world.archive.strangers(dag)
            for each in (neighbour, misled):
                try:
                    await prune_snapshots(
                        each, marks, KEPT, timedelta(milliseconds=1), DeletionLimit(0, 100)
                    )
                except BucketOfAnotherInstallation:
                    if each is neighbour:
                        world.broken.append("a neighbour with another prefix was refused")
                except SystemUnavailable:
                    continue  # the next round tries again
                else:
                    if each is misled:
                        world.broken.append("another database pruned this installation's prefix")

    def drill(self, living: LiveSlot) -> None:
        for key in list(living.supervisor.hosted):
            self._in_the_background(self._drilled(living, key))

    async def drilled_all(self) -> None:
        """Drill every job partition: each can be rebuilt from its undamaged snapshots."""
        for living in self._world.slots:
            await asyncio.gather(
                *(self._drilled(living, key) for key in list(living.supervisor.hosted))
            )

    def rebuild(self, living: LiveSlot) -> None:
        """Request a rebuild of what this slot runs, from any snapshot or from an old one."""
        before = self._world.dice.random.choice([None, None, 2, 4])
        trust_outputs = self._world.dice.random.random() < TRUSTED
        if trust_outputs and living.drifts:
            self.trusted |= living.supervisor.hosted.keys()
        order = {
            "items": [list(key) for key in living.supervisor.hosted],
            "why": "requested",
            "before": before,
            "trust_outputs": trust_outputs,
        }
        self._in_the_background(self._rebuilt(living, order))

    def _in_the_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.asked.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a request that ended with an error that no task awaits."""
        self.asked.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.broken.append(f"a request of a DAG failed: {error!r}")

    async def _copied(self, living: LiveSlot, items: list[list[Any]]) -> None:
        try:
            await living.process.gate()
            for job, part, code, text, _ in cast(
                list[list[str]], await living.service("snapshot", {"items": items})
            ):
                if code not in (
                    "taken",
                    "unchanged",
                    RefusalCode.NOT_OWNER,
                    RefusalCode.PARKED,
                    "failed",
                ):
                    self._world.broken.append(
                        f"a snapshot of {job}[{part}] returned {code}: {text}"
                    )
        except ProcessDied:
            self._world.record(f"{living.slot.id} died during a snapshot")

    async def _drilled(self, living: LiveSlot, key: JobPartition) -> None:
        try:
            await living.process.gate()
            verdict, told, *_ = cast(
                list[str], await living.service("drill", {"items": [key], "max_bytes": 1 << 30})
            )
        except RemoteError:
            return  # it moves
        except ProcessDied:
            self._world.record(f"{living.slot.id} died during a drill")
        else:
            self.findings[verdict] += 1
            if key in self.trusted and told.endswith(DIFFERS_AS_TRUSTED):
                return  # the snapshot is older than the state that the operator has accepted
            if verdict in (DrillVerdict.DIFFERS, DrillVerdict.LOST):
                self._world.broken.append(f"a drill of {key} reports {verdict}: {told}")

    async def _rebuilt(self, living: LiveSlot, order: dict[str, Any]) -> None:
        items = order["items"]
        try:
            await living.process.gate()
            epochs = cast(list[int | None], await living.service("rebuild", order))
            await living.process.delay()
            await living.process.gate()
            states = cast(list[SlotReport | None], await living.service("states", {"items": items}))
            for (job, part), epoch, state in zip(items, epochs, states, strict=True):
                if state is not None and epoch is not None and state.epoch < epoch:
                    self._world.broken.append(
                        f"{job}[{part}] was rebuilt under epoch {epoch} and is now at {state}"
                    )
        except ProcessDied:
            self._world.record(f"{living.slot.id} died during a rebuild request")
