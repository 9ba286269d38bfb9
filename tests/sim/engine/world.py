"""One run of the simulated engine: production supervisors, runners and slot services among faults.

Theory. While faults occur, two laws hold at every moment: a slot that serves a lookup owns the job
partition, and the epochs of a replaylog's iterations never decrease. What a lookup returns is the
recompute of exactly the records that its job partition reports as applied. What a snapshot's
pointer leads to is intact, and pointers never go back to an earlier owner.

When the faults stop, everything settles. Then outputs, lookups and sinks equal a naive recompute
over the accepted rows, no record was written twice, and a machine with an empty disk rebuilds
states with equal hashes (from snapshots, or from the log alone) without writing a data record. A
seed always produces the same run.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast
from unittest.mock import patch

import structlog

from fennel_core.bank.registry import Slot
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.garbage import DeletionLimit
from fennel_core.engine import outputs
from fennel_core.engine.drill.subprocess_drill import DrillRunner
from fennel_core.engine.errors import ProducerFenced
from fennel_core.engine.kafka.consumer import ConsumerLimits
from fennel_core.engine.local_state import LocalStateGarbage
from fennel_core.engine.service import SlotService
from fennel_core.engine.snapshots import Snapshots
from fennel_core.engine.supervisor import Supervisor
from fennel_core.vocab.ids import (
    EngineId,
    Millis,
    SlotId,
    SlotName,
)
from tests.sim.engine import job_chain
from tests.sim.engine.dags import GRACE, Dags, SimDrills
from tests.sim.engine.disks import FILES, Machine
from tests.sim.engine.faulty_components import (
    Dice,
    Process,
    ProcessClock,
    ProcessPool,
    SimBroker,
    SimRegistry,
)
from tests.sim.engine.job_chain import RowSource
from tests.sim.engine.laws import REMOVED_JOB, Laws, LawViolated
from tests.sim.engine.model_archive import ModelArchive
from tests.sim.engine.model_log import ModelLog
from tests.sim.engine.readers import Client, Readers
from tests.sim.engine.sinks import SimSinks
from tests.sim.engine.slots import LEASE_MS, POLL_MS, LiveSlot, RecordingRegistry, SimRunnerFactory
from tests.sim.engine.virtual_time import now_ms, run

TRANSACTION_TIMEOUT_MS: Final = 5_000
TURNS: Final = 30
RECORD_BYTES: Final = 2_000
"""So small that outputs are split into several records."""
SETTLED_WITHIN_MS: Final = 150_000
STATE_GRACE_MS: Final = Millis(4_000)
"""Longer than a slot reads an empty registry."""
EMPTY_MS: Final = 3_000
LIMIT: Final = DeletionLimit(20, 20)
FAULTS: Final = ("crash", "crash", "pause", "pause", "away", "empty", "rot", "damage", "damage")
EVENTS: Final = (*FAULTS, "join", "leave", "wake", "order", "drill", "nothing")


@dataclass
class World:
    seed: int
    folder: Path
    dice: Dice = field(init=False)
    log: ModelLog = field(init=False)
    registry: RecordingRegistry = field(init=False)
    feed: RowSource = field(init=False)
    slots: list[LiveSlot] = field(default_factory=list)
    answered: int = 0
    broken: list[str] = field(default_factory=list)
    _names: int = 0
    _events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        chosen = random.Random(self.seed)  # noqa: S311  # repeatable, and no secret
        self.dice = Dice(chosen, chosen.choice([0.0, 0.01, 0.04, 0.08]))
        self.log = ModelLog(TRANSACTION_TIMEOUT_MS)
        self.registry = RecordingRegistry(now_ms)
        self.archive = ModelArchive(self.registry.epochs)
        self.partitions = chosen.choice([1, 2, 2, job_chain.MOST_PARTITIONS])
        self.jobs = job_chain.jobs(self.partitions)
        self.feed = RowSource(chosen, self.partitions)
        self.readers = Readers(self.log, chosen, self.partitions)
        self.sinks = SimSinks(self.log, self.seed, self.partitions)
        self.as_user_code = chosen.random() < 0.5
        self.limits = ConsumerLimits(
            buffer_bytes=chosen.choice([2_000, 10_000, 16_000_000]),
            slot_buffer_bytes=chosen.choice([10_000, 256_000_000]),
            crowded_buffer_bytes=1_000,
            turn_bytes=chosen.choice([2_000, 8_000, 8_000_000]),
        )
        self.machines = [self._machine(), self._machine()]
        self.laws = Laws(self)

    def _machine(self) -> Machine:
        self._names += 1
        root = self.folder / f"machine-{self._names}"
        root.mkdir()
        return Machine(root)

    # --- slots ------------------------------------------------------------------------------------

    def start(self, machine: Machine, drifts: bool = False) -> LiveSlot:
        self._names += 1
        process = Process(self.dice)
        slot = Slot(SlotId(f"slot-{self._names}"), self._slot_name(), EngineId("sim"), "nowhere")
        registry = SimRegistry(process, self.registry)
        broker = SimBroker(process, self.log, self.limits)
        snapshots = Snapshots(
            self.archive.tools(process),
            machine.folders(process),
            ProcessPool(process),
            self._unique,
        )
        runner_factory = SimRunnerFactory(
            snapshots, process, registry, broker, machine, self.as_user_code, drifts
        )
        supervisor = Supervisor(
            slot,
            registry,
            runner_factory,
            ProcessClock(process),
            LEASE_MS,
            POLL_MS,
            LocalStateGarbage(STATE_GRACE_MS, LIMIT),
        )
        task = asyncio.create_task(self._kept_up(supervisor, process))
        drills = SimDrills(
            self.archive.tools(process),
            process,
            self.log,
            lambda: self.folder / f"drill-{self._unique()}",
        )
        living = LiveSlot(
            slot,
            machine,
            process,
            supervisor,
            SlotService(supervisor, snapshots, cast(DrillRunner, drills)),
            task,
            drifts,
        )
        self.slots.append(living)
        return living

    def _slot_name(self) -> SlotName:
        """Return the name of a slot that does not run, or now and then of one that is paused.

        Spark starts a slot again when its host dies, and the paused process of that host may wake.
        """
        frozen = [living.slot.name for living in self.slots if living.process.paused]
        if frozen and self.dice.random.random() < 0.5:
            return self.dice.random.choice(frozen)
        used = {living.slot.name for living in self.slots}
        return next(name for number in count() if (name := SlotName(f"sim-{number}")) not in used)

    def _unique(self) -> str:
        self._names += 1
        return str(self._names)

    async def _kept_up(self, supervisor: Supervisor, process: Process) -> None:
        """Run a slot; start it again, as its host does, if its start fails."""
        while process.alive:
            try:
                await supervisor.run()
            except Exception as failed:  # noqa: BLE001  # the host starts a slot again after any failure
                self.record(f"{supervisor.slot.id} failed at its start: {type(failed).__name__}")
                await asyncio.sleep(0.5)
            else:
                return

    async def crash(self, victim: LiveSlot, disk: str) -> None:
        self.record(f"{victim.slot.id} dies, disk {disk}")
        victim.process.alive = False
        victim.process.resume()
        victim.task.cancel()
        self.slots.remove(victim)
        match disk:
            case "lost":
                victim.machine.lose(victim.process)
            case "older":
                victim.machine.go_back(victim.process)
        await asyncio.wait([victim.task])

    async def leave(self, leaver: LiveSlot) -> None:
        self.record(f"{leaver.slot.id} is asked to leave")
        self.registry.stopping.add(leaver.slot.id)
        leaver.supervisor.wake.set()
        await asyncio.wait([leaver.task], timeout=20)
        if not leaver.task.done():
            await self.crash(leaver, "kept")
        elif leaver in self.slots:
            self.slots.remove(leaver)
        leaver.process.alive = False

    # --- the run ----------------------------------------------------------------------------------

    async def live(self) -> str:
        """Run from start to end; return a digest of the events."""
        for job in self.jobs:
            self.registry.add(job.id, stored_names.dumps(job), self.partitions)
        self.registry.add(REMOVED_JOB, stored_names.dumps(self._removed_job()), self.partitions)
        asyncio.get_running_loop().set_exception_handler(self._callback_failed)
        await self.archive.claim()
        client, dags = Client(self), Dags(self)
        background = [
            asyncio.create_task(work)
            for work in (
                self._coordinator(),
                self._reader(),
                dags.archive(),
                dags.strangers(),
                client.query_forever(),
            )
        ]
        for machine in self.machines:
            self.start(machine)
        await asyncio.sleep(1)
        for turn in range(TURNS):
            await self._step(turn, dags)
        await self._settle()
        self._raise_violation()
        self.laws.check()
        self.broken += self.sinks.flaws(self.feed)
        await self.laws.check_scans()
        await self.laws.check_archive()
        await dags.drilled_all()
        self._raise_violation()
        await self._settle()  # job partitions may have moved to their preferred slots since
        before = self.laws.data_records()
        survivors, drifted = self.laws.state_hashes(), self.laws.drifted()
        if drifted - dags.trusted:
            raise LawViolated(f"other state than was committed: {drifted - dags.trusted}")
        await self._rebuilt_elsewhere()
        if self.laws.data_records() != before:
            raise LawViolated("replay wrote data records")
        rebuilt = self.laws.state_hashes()
        if differ := {key for key in survivors if rebuilt[key] != survivors[key]} - drifted:
            raise LawViolated(f"rebuilt states differ: {sorted(differ)}")
        await client.refusals(self.slots[0].service)
        for task in [*background, *dags.asked]:
            task.cancel()
        for living in list(self.slots):
            await self.leave(living)
        await asyncio.sleep(2 * GRACE.total_seconds())
        await dags.pruned(Process(self.dice))
        await self.laws.check_archive()
        self._raise_violation()
        return blake2b(
            "\n".join([*self._events, repr(sorted(survivors.items()))]).encode(), digest_size=8
        ).hexdigest()

    def _raise_violation(self) -> None:
        self.broken += [
            f"local state of {sorted(lost)} was deleted"
            for machine in self.machines
            if (lost := machine.forgotten - {REMOVED_JOB})
        ]
        self.broken += [each for machine in self.machines for each in machine.awaited]
        if found := self.broken + self.registry.granted_twice + self.archive.foreign:
            raise LawViolated(found[0])

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "handle" in context:
            self.broken.append(f"{context['message']}: {context.get('exception')!r}")

    def _removed_job(self) -> Job:
        job = job_chain.TABLE
        return Job(
            REMOVED_JOB,
            job.workspace,
            job.inputs,
            (),
            job.step,
            job.replaylog,
            job.dead_letters,
            self.partitions,
            "a job that is removed",
        )

    async def _step(self, turn: int, dags: Dags) -> None:
        chosen = self.dice.random
        await asyncio.sleep(chosen.choice([0.01, 0.1, 0.4, 0.8]))
        if turn == TURNS // 2:
            self.registry.drop(REMOVED_JOB) if chosen.random() < 0.5 else self.registry.condemn(
                REMOVED_JOB
            )
        if chosen.random() < 0.5:
            await self._feed()
        self.sinks.turn()
        self._raise_violation()
        if not self.slots:
            self.start(chosen.choice(self.machines))
        someone = chosen.choice(self.slots)
        match chosen.choice(EVENTS):
            case "crash":
                await self.crash(someone, chosen.choice(["kept", "kept", "lost", "older"]))
            case "pause":
                self._pause(
                    someone, chosen.choice([0.1, 0.5, 1.5]) * LEASE_MS * (0.5 + chosen.random())
                )
            case "away":
                someone.process.registry_away_until_ms = now_ms() + int(
                    2 * LEASE_MS * chosen.random()
                )
            case "empty" if now_ms() > (
                someone.process.registry_empty_until_ms + 2 * STATE_GRACE_MS
            ):  # two times that follow each other would be one of more than the grace period
                someone.process.registry_empty_until_ms = now_ms() + int(EMPTY_MS * chosen.random())
            case "join" if len(self.slots) < 3:
                self.start(chosen.choice(self.machines), drifts=chosen.random() < 0.3)
            case "leave" if len(self.slots) > 1 and someone.is_running:
                await self.leave(someone)
            case "wake":
                someone.supervisor.wake.set()
            case "rot" if chosen.random() < 0.5:
                self.archive.rot(chosen)
            case "drill":
                dags.drill(someone)
            case "order":
                dags.rebuild(someone)
            case "damage":
                for store in someone.machine.live():
                    if chosen.random() < 0.3:
                        store.damage(chosen.randrange(FILES))
        if len(self.slots) < 2 and chosen.random() < 0.5:
            self.start(chosen.choice(self.machines))

    def _pause(self, someone: LiveSlot, ms: float) -> None:
        self.record(f"{someone.slot.id} pauses for {ms:.0f} ms")
        someone.process.pause()
        loop = asyncio.get_running_loop()
        loop.call_later(ms / 1000, someone.process.resume)
        for later_ms in (1, 3, 8, 20, 50):
            loop.call_later((ms + later_ms) / 1000, self._read)

    async def _feed(self) -> None:
        """Write one request of ingest.

        Its transaction may stay open for a while, be aborted, or be left to time out.
        """
        events, users, sent = self.feed.batch(now_ms() / 1000)
        if not sent:
            return
        generation = self.log.open("ingest")
        transaction = self.log.begin("ingest", generation, sent, now_ms())
        if self.dice.fails():
            await asyncio.sleep(0.3)
        if self.dice.fails():
            return  # the server has died: nothing was accepted
        try:
            self.log.end(transaction, "aborted" if self.dice.fails() else "committed")
        except ProducerFenced:
            return
        if transaction.state == "committed":
            self.feed.accepted(events, users)

    async def _coordinator(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.log.expire(now_ms())

    async def _reader(self) -> None:
        """Check continually that a slot which serves a job partition owns it."""
        while True:
            await asyncio.sleep(0.2)
            self._read()

    def _read(self) -> None:
        for living in self.slots:
            if not living.is_running:
                continue
            for job, part in list(living.supervisor.hosted):
                try:
                    living.service._runner(job, part)
                except RemoteError:
                    continue
                self.answered += 1
                self.broken += self.readers.wrong(living.service, job, part)
                if (
                    job != REMOVED_JOB
                    and (owner := self.registry.owner((job, part))) != living.slot.id
                ):
                    self.broken.append(
                        f"{now_ms()}: {living.slot.id} serves {job}[{part}], "
                        f"which belongs to {owner}"
                    )

    # --- the end ----------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Stop the faults; wait until every job partition runs and has read everything."""
        self.record("faults stop")
        self.dice.rate = 0.0
        for living in self.slots:
            living.process.resume()
            living.process.registry_away_until_ms = 0
            living.process.registry_empty_until_ms = 0
        for drifting in [living for living in self.slots if living.drifts]:
            await self.crash(drifting, "kept")
        if not self.slots:
            self.start(self.machines[0])
        deadline = now_ms() + SETTLED_WITHIN_MS
        while (why := await self.laws.unsettled()) is not None:
            if now_ms() > deadline:
                raise LawViolated(f"does not settle: {why}")
            await asyncio.sleep(0.5)

    async def _rebuilt_elsewhere(self) -> None:
        """Lose every slot with its machine; start a new one from snapshots or the log alone."""
        if self.dice.random.random() < 0.3:
            self.archive.burn()
        for living in list(self.slots):
            await self.crash(living, "lost")
        self.machines = [self._machine()]
        self.start(self.machines[0])
        await self._settle()

    def record(self, event: str) -> None:
        self._events.append(f"{now_ms():>7} {event}")

    @property
    def events(self) -> Sequence[str]:
        return self._events


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the supervisors' logs of thousands of faults."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(wrapper_class=before)


def simulate(seed: int) -> World:
    """Run one seed; raise LawViolated with the events as a note."""

    async def run_in(folder: str) -> World:
        world = World(seed, Path(folder))
        try:
            world.record(f"digest {await world.live()}")
        except BaseException as broken:
            broken.add_note("\n".join(world.events))
            raise
        return world

    with TemporaryDirectory() as folder, patch.object(outputs, "RECORD_BYTES", RECORD_BYTES):
        return run(run_in(folder))
