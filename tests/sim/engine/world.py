"""One run of the simulated world: production supervisors, runners and slot services among crashes,
pauses, zombies and lost answers.

Theory. While faults go on, two things must hold at every moment: a slot that answers a lookup owns
the job partition, and a replaylog's iterations belong to epochs that never go down. When faults
stop, everything settles; then what was written and what is answered equal a naive recompute over
the accepted rows, no record was written twice, and a machine with an empty disk rebuilds states of
equal hash (from snapshots where there are any, else from the log alone) without writing a data
record. Whatever a lookup answers, at any moment, is the recompute of exactly what its job partition
says it has applied. What a snapshot's pointer leads to is whole, and pointers never go back to an
earlier owner. A seed is a story: the same one every time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import polars as pl
import structlog

from fennel_core.bank.memory_registry import MemoryRegistry
from fennel_core.bank.registry import Slot
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job
from fennel_core.connections.frames import RemoteError
from fennel_core.engine import state_progress
from fennel_core.engine.drill.subprocess_drill import DrillRunner
from fennel_core.engine.errors import ProducerFenced
from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.engine.service import SlotService
from fennel_core.engine.snapshots import Snapshots
from fennel_core.engine.supervisor import Supervisor
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.operators.build import as_watermark_step, build
from fennel_core.operators.spec import step_version
from fennel_core.operators.step import OperatorStep, Outcome, StateReader
from fennel_core.replaylog import marker as markers
from fennel_core.replaylog.marker import EpochMarker, IterationMarker
from fennel_core.schedule.ownership import preferred_slot
from fennel_core.snapshots.pruning import prune_snapshots
from fennel_core.vocab.ids import (
    EngineId,
    Epoch,
    JobId,
    JobPartition,
    Millis,
    PartitionIndex,
    SlotId,
)
from fennel_core.vocab.keys import partition_of
from fennel_core.vocab.versions import decode
from tests.sim.engine import chain
from tests.sim.engine.archive import Archive
from tests.sim.engine.chain import Feed
from tests.sim.engine.dags import GRACE, KEPT, Dags, SimDrills
from tests.sim.engine.log import ModelLog
from tests.sim.engine.memory import Remembering
from tests.sim.engine.parts import (
    FILES,
    Dice,
    Machine,
    Process,
    ProcessClock,
    ProcessPool,
    SimBroker,
    SimRegistry,
)
from tests.sim.engine.readers import Client, Readers
from tests.sim.engine.virtual import now_ms, run

LEASE_MS: Final = Millis(1_800)
POLL_MS: Final = 600
TRANSACTION_TIMEOUT_MS: Final = 5_000
TURNS: Final = 30
SETTLED_WITHIN_MS: Final = 150_000
LIMITS: Final = RunnerLimits(iteration_bytes=6_000, environment="simulated")
ASKED_AS_OF_S: Final = (5, 15, 1000)
DOOMED: Final = JobId("doomed")
FAULTS: Final = ("crash", "crash", "pause", "pause", "away", "rot", "damage", "damage")
EVENTS: Final = (*FAULTS, "join", "leave", "wake", "order", "drill", "nothing")


class Broken(AssertionError):
    """The world broke a law."""


@cache
def _read(stored: bytes) -> tuple[Job, OperatorStep]:
    """Steps are pure and hold nothing: all runners may share one, which saves a third of a run."""
    job = stored_names.loads(stored, Job)
    return job, build(job.step)


@cache
def _remembering(stored: bytes) -> Remembering:
    return Remembering(_read(stored)[1])


@dataclass
class Drifting:
    """A step that replays to something else than it once made."""

    inner: OperatorStep
    replaying: Callable[[], bool]

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        made = self.inner.apply(reads, source, batch)
        return replace(made, puts={**made.puts, b"drifted": b"1"}) if self.replaying() else made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class SimRunnerFactory:
    """See `engine.runner_factory.RunnerFactory`: runners over the machine's disk, or over a
    snapshot where that is empty.
    """

    snapshots: Snapshots
    process: Process
    registry: SimRegistry
    broker: SimBroker
    machine: Machine
    as_user_code: bool
    drifts: bool
    """Its libraries compute otherwise than those that wrote the markers."""

    async def make(self, job: JobId, part: PartitionIndex, epoch: Epoch) -> Runner | None:
        stored = await self.registry.spec(job)
        if stored is None:
            return None
        spec, step = _read(stored)
        remembering = _remembering(stored)
        work = JobLogic(
            remembering,
            remembering if as_watermark_step(step) else None,
            step_version(spec.step),
            None,
        )
        if self.as_user_code and job == chain.CLEAN.id:

            async def prepare(batch: pl.DataFrame) -> Outcome:
                await self.process.gate()
                await self.process.delay()
                return step.apply(hangar, 0, batch)

            work = JobLogic(None, None, work.step_version, prepare)
        if self.drifts and work.step is not None:
            work = replace(work, step=Drifting(step, lambda: runner.status == "replaying"))
        hangar = await self.snapshots.open(
            job, part, epoch, lambda job, part: self.machine.open((job, part), self.process)
        )
        runner = Runner(
            spec, part, epoch, work, hangar, self.broker, ProcessPool(self.process), LIMITS
        )
        return runner

    def discard_state(self, job: JobId, part: PartitionIndex, why: Exception) -> None:
        self.snapshots.discard_state(job, part, why)

    async def close(self, runner: Runner) -> None:
        if self.process.alive:
            runner.hangar.close()

    def jobs_with_state(self) -> set[JobId]:
        return self.machine.stored()

    async def delete_state(self, job: JobId) -> None:
        self.machine.forget(job)


@dataclass(eq=False)
class Living:
    """A slot that is up."""

    slot: Slot
    machine: Machine
    process: Process
    supervisor: Supervisor
    service: SlotService
    task: asyncio.Task[None]
    drifts: bool

    @property
    def answers(self) -> bool:
        return self.process.alive and not self.process.paused


class DroppingRegistry(MemoryRegistry):
    """The twin, with what the ledger does when a job is no longer needed; an epoch is given
    once.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.twice: list[str] = []
        self._given: set[tuple[JobPartition, Epoch]] = set()

    def drop(self, job: JobId) -> None:
        del self._specs[job]
        self._rows = {key: row for key, row in self._rows.items() if key[0] != job}

    def owner(self, key: JobPartition) -> SlotId | None:
        """Who holds a live lease now."""
        row = self._rows[key]
        return row.slot if row.until_ms > self._now_ms() else None

    async def claim(
        self, wanted: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> dict[JobPartition, Epoch]:
        won = await super().claim(wanted, slot, lease_ms)
        self.twice += [
            f"epoch {epoch} of {key} was given twice"
            for key, epoch in won.items()
            if (key, epoch) in self._given
        ]
        self._given |= set(won.items())
        return won

    def epochs(self) -> dict[JobPartition, Epoch]:
        return {key: row.epoch for key, row in self._rows.items()}


@dataclass
class World:
    seed: int
    folder: Path
    dice: Dice = field(init=False)
    log: ModelLog = field(init=False)
    registry: DroppingRegistry = field(init=False)
    feed: Feed = field(init=False)
    slots: list[Living] = field(default_factory=list)
    answered: int = 0
    broken: list[str] = field(default_factory=list)
    _names: int = 0
    _said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        chosen = random.Random(self.seed)
        self.dice = Dice(chosen, chosen.choice([0.0, 0.01, 0.04, 0.08]))
        self.log = ModelLog(TRANSACTION_TIMEOUT_MS)
        self.registry = DroppingRegistry(now_ms)
        self.archive = Archive(self.registry.epochs)
        self.partitions = chosen.choice([1, 2, 2, chain.MOST_PARTITIONS])
        self.jobs = chain.jobs(self.partitions)
        self.feed = Feed(chosen, self.partitions)
        self.readers = Readers(self.log, chosen, self.partitions)
        self.as_user_code = chosen.random() < 0.5
        self.machines = [self._machine(), self._machine()]

    def _machine(self) -> Machine:
        self._names += 1
        root = self.folder / f"machine-{self._names}"
        root.mkdir()
        return Machine(root)

    # --- slots ------------------------------------------------------------------------------------

    def start(self, machine: Machine, drifts: bool = False) -> Living:
        self._names += 1
        process = Process(self.dice)
        slot = Slot(SlotId(f"slot-{self._names}"), EngineId("sim"), "nowhere")
        registry, broker = SimRegistry(process, self.registry), SimBroker(process, self.log)
        snapshots = Snapshots(
            self.archive.tools(process), machine.root, ProcessPool(process), self._unique
        )
        runner_factory = SimRunnerFactory(
            snapshots, process, registry, broker, machine, self.as_user_code, drifts
        )
        supervisor = Supervisor(
            slot, registry, runner_factory, ProcessClock(process), LEASE_MS, POLL_MS
        )
        task = asyncio.create_task(self._kept_up(supervisor, process))
        drills = SimDrills(
            self.archive.tools(process),
            process,
            self.log,
            lambda: self.folder / f"drill-{self._unique()}",
        )
        living = Living(
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

    def _unique(self) -> str:
        self._names += 1
        return str(self._names)

    async def _kept_up(self, supervisor: Supervisor, process: Process) -> None:
        """A slot that cannot reach the registry at its start is started again by its host."""
        while process.alive:
            try:
                await supervisor.run()
            except Exception as failed:  # noqa: BLE001  # whatever it is, the host starts it again
                self.say(f"{supervisor.slot.id} failed at its start: {type(failed).__name__}")
                await asyncio.sleep(0.5)
            else:
                return

    async def crash(self, victim: Living, disk: str) -> None:
        self.say(f"{victim.slot.id} dies, disk {disk}")
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

    async def leave(self, leaver: Living) -> None:
        self.say(f"{leaver.slot.id} is asked to leave")
        self.registry.stopping.add(leaver.slot.id)
        leaver.supervisor.wake.set()
        await asyncio.wait([leaver.task], timeout=20)
        if not leaver.task.done():
            await self.crash(leaver, "kept")
        elif leaver in self.slots:
            self.slots.remove(leaver)
        leaver.process.alive = False

    # --- the story --------------------------------------------------------------------------------

    async def live(self) -> str:
        """The whole run; a digest of what happened."""
        for job in self.jobs:
            self.registry.add(job.id, stored_names.dumps(job), self.partitions)
        self.registry.add(DOOMED, stored_names.dumps(self._doomed()), self.partitions)
        asyncio.get_running_loop().set_exception_handler(self._callback_failed)
        client, dags = Client(self), Dags(self)
        background = [
            asyncio.create_task(work)
            for work in (self._coordinator(), self._reader(), dags.archive(), client.ask_on())
        ]
        for machine in self.machines:
            self.start(machine)
        await asyncio.sleep(1)
        for turn in range(TURNS):
            await self._turn(turn, dags)
        await self._come_to_rest()
        self._refuse_broken()
        self.check()
        await self._check_scans()
        await self._check_archive()
        await dags.drilled_all()
        self._refuse_broken()
        before = self._data_records()
        survivors = self._hashes()
        await self._rebuilt_elsewhere()
        if self._data_records() != before:
            raise Broken("replay wrote data records")
        if (rebuilt := self._hashes()) != survivors:
            raise Broken(
                "rebuilt states differ: "
                f"{[key for key in survivors if rebuilt[key] != survivors[key]]}"
            )
        await client.refusals(self.slots[0].service)
        for task in [*background, *dags.asked]:
            task.cancel()
        for living in list(self.slots):
            await self.leave(living)
        await asyncio.sleep(2 * GRACE.total_seconds())
        await prune_snapshots(self.archive.tools(Process(self.dice)), KEPT, GRACE)
        await self._check_archive()
        self._refuse_broken()
        return blake2b(
            "\n".join([*self._said, repr(sorted(survivors.items()))]).encode(), digest_size=8
        ).hexdigest()

    def _refuse_broken(self) -> None:
        if found := self.broken + self.registry.twice + self.archive.foreign:
            raise Broken(found[0])

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        if "handle" in told:
            self.broken.append(f"{told['message']}: {told.get('exception')!r}")

    def _doomed(self) -> Job:
        job = chain.TABLE
        return Job(
            DOOMED,
            job.workspace,
            job.inputs,
            (),
            job.step,
            job.replaylog,
            job.dead_letters,
            self.partitions,
            "goes away",
        )

    async def _turn(self, turn: int, dags: Dags) -> None:
        chosen = self.dice.random
        await asyncio.sleep(chosen.choice([0.01, 0.1, 0.4, 0.8]))
        if turn == TURNS // 2:
            self.registry.drop(DOOMED) if chosen.random() < 0.5 else self.registry.condemn(DOOMED)
        if chosen.random() < 0.5:
            await self._feed()
        self._refuse_broken()
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
            case "join" if len(self.slots) < 3:
                self.start(chosen.choice(self.machines), drifts=chosen.random() < 0.3)
            case "leave" if len(self.slots) > 1 and someone.answers:
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
                for store in someone.machine.disk.values():
                    if chosen.random() < 0.3:
                        store.damage(chosen.randrange(FILES))
        if len(self.slots) < 2 and chosen.random() < 0.5:
            self.start(chosen.choice(self.machines))

    def _pause(self, someone: Living, ms: float) -> None:
        self.say(f"{someone.slot.id} stands still for {ms:.0f} ms")
        someone.process.pause()
        loop = asyncio.get_running_loop()
        loop.call_later(ms / 1000, someone.process.resume)
        for later_ms in (1, 3, 8, 20, 50):
            loop.call_later((ms + later_ms) / 1000, self._read)

    async def _feed(self) -> None:
        """One request of ingest: a transaction that may stay open for a while, be aborted, or be
        left to time out.
        """
        events, users, sent = self.feed.batch(now_ms() / 1000)
        if not sent:
            return
        generation = self.log.open("ingest")
        transaction = self.log.begin("ingest", generation, sent, now_ms())
        if self.dice.fails():
            await asyncio.sleep(0.3)
        if self.dice.fails():
            return  # the server is gone: nothing of it was accepted
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
        """A slot that answers is the owner, at every moment; a resumed one is asked at once."""
        while True:
            await asyncio.sleep(0.2)
            self._read()

    def _read(self) -> None:
        for living in self.slots:
            if not living.answers:
                continue
            for job, part in list(living.supervisor.hosted):
                try:
                    living.service._runner(job, part)
                except RemoteError:
                    continue
                self.answered += 1
                self.broken += self.readers.wrong(living.service, job, part)
                if job != DOOMED and (owner := self.registry.owner((job, part))) != living.slot.id:
                    self.broken.append(
                        f"{now_ms()}: {living.slot.id} answers for {job}[{part}], "
                        f"which belongs to {owner}"
                    )

    async def _check_archive(self) -> None:
        if flaws := await self.archive.flaws():
            raise Broken("; ".join(flaws))

    # --- the end ----------------------------------------------------------------------------------

    async def _come_to_rest(self) -> None:
        """No faults from here on; every job partition runs and has read everything."""
        self.say("faults stop")
        self.dice.rate = 0.0
        for living in self.slots:
            living.process.resume()
            living.process.registry_away_until_ms = 0
        for drifting in [living for living in self.slots if living.drifts]:
            await self.crash(drifting, "kept")
        if not self.slots:
            self.start(self.machines[0])
        deadline = now_ms() + SETTLED_WITHIN_MS
        while (why := await self._restless()) is not None:
            if now_ms() > deadline:
                raise Broken(f"never settles: {why}")
            await asyncio.sleep(0.5)

    async def _restless(self) -> str | None:
        if not self.log.idle():
            return "a transaction is open"
        slots = [living.slot.id for living in self.slots]
        for job in self.jobs:
            for part in map(PartitionIndex, range(self.partitions)):
                slot, report = self.registry.reports()[(job.id, part)]
                if (
                    slot != preferred_slot(job.id, part, slots)
                    or report.status != "running"
                    or report.lag != 0
                ):
                    return f"{job.id}[{part}] at {slot}: {report}"
                targets = {topic: self.log.stable_end((topic, part)) for topic in job.inputs}
                owner = next(living for living in self.slots if living.slot.id == slot)
                try:
                    behind = await owner.service(
                        "wait", {"items": [(job.id, part, targets)], "timeout_ms": 200}
                    )
                except RemoteError as refused:
                    return str(refused)
                if behind:
                    return f"{behind} behind"
        return self._unreadable()

    def _unreadable(self) -> str | None:
        """Some damage shows only to who reads it."""
        for job, key, at, _ in chain.lookups(self.feed, ASKED_AS_OF_S):
            part = PartitionIndex(partition_of(key, self.partitions))
            try:
                self._owner((job, part)).service._lookup(job, part, [key], at)
            except RemoteError as refused:
                return str(refused)
        return None

    def _owner(self, key: JobPartition) -> Living:
        return next(living for living in self.slots if living.slot.id == self.registry.owner(key))

    def _hashes(self) -> dict[JobPartition, int]:
        keys = [
            (job.id, PartitionIndex(part)) for job in self.jobs for part in range(self.partitions)
        ]
        return {
            key: state_progress.load(
                MemoryHangar(self._owner(key).machine.disk[key].content().entries)
            ).state_hash
            for key in keys
        }

    def _data_records(self) -> dict[tuple[str, int], int]:
        written = [
            source for source in self.log.partitions() if not source[0].endswith("replaylog")
        ]
        return {
            source: sum(r.control is None for r in self.log.committed(source, 0))
            for source in written
        }

    async def _rebuilt_elsewhere(self) -> None:
        """Every slot dies and its machine with it; a new machine starts from snapshots, or (in some
        runs) from the log alone.
        """
        if self.dice.random.random() < 0.3:
            self.archive.burn()
        for living in list(self.slots):
            await self.crash(living, "lost")
        self.machines = [self._machine()]
        self.start(self.machines[0])
        await self._come_to_rest()

    def check(self) -> None:
        """What was written and what is answered, against the recompute."""
        for topic, expected in chain.expected_integrals(self.feed).items():
            schema = {
                chain.CLEANED: chain.EVENT,
                chain.JOINED: chain.MET,
                chain.TOTALS: chain.SERVED,
            }[topic]
            records = [
                r
                for part in range(self.partitions)
                for r in self.log.committed((topic, part), 0)
                if r.control is None
            ]
            found = chain.integral([decode(r.value) for r in records], schema)
            if found != expected:
                raise Broken(f"{topic}: too much {found - expected}, missing {expected - found}")
        for job, key, at, expected_row in chain.lookups(self.feed, ASKED_AS_OF_S):
            part = PartitionIndex(partition_of(key, self.partitions))
            (row,) = self._owner((job, part)).service._lookup(job, part, [key], at)
            if chain.decoded(row) != expected_row:
                raise Broken(f"{job} {key!r} as of {at}: {chain.decoded(row)}, not {expected_row}")
        for job in (chain.CLEAN, chain.JOIN, chain.TOTAL):
            for part in range(self.partitions):
                self._check_replaylog(job, part)
        if (
            any(job == DOOMED for living in self.slots for job, _ in living.machine.disk)
            and DOOMED not in self.registry._specs
        ):
            raise Broken("state of a job that is gone was kept")

    async def _check_scans(self) -> None:
        """A list of what a job partition holds is what looking up every key gives."""
        at = chain.micros(1000)
        for part in map(PartitionIndex, range(self.partitions)):
            service = self._owner((chain.SERVE.id, part)).service
            here = [
                key
                for _, key in chain.keys_of(chain.SERVE.id)
                if partition_of(key, self.partitions) == part
            ]
            asked = [[chain.SERVE.id, part, here, at]]
            (rows,) = cast(list[list[bytes | None]], await service("lookup", {"items": asked}))
            scanned = await service(
                "scan", {"job": chain.SERVE.id, "part": part, "as_of": at, "limit": 100}
            )
            if sorted(cast(list[tuple[bytes, bytes]], scanned)) != sorted(
                (k, r) for k, r in zip(here, rows, strict=True) if r is not None
            ):
                raise Broken(f"{chain.SERVE.id}[{part}] lists {scanned}")
            (applied,) = cast(
                list[dict[str, int]],
                await service("positions", {"items": [(chain.SERVE.id, part)]}),
            )
            if applied != {chain.JOINED: self.log.stable_end((chain.JOINED, part))}:
                raise Broken(f"{chain.SERVE.id}[{part}] has applied {applied}")

    def _check_replaylog(self, job: Job, part: int) -> None:
        found = [
            markers.decode_marker(r.value) for r in self.log.committed((job.replaylog, part), 0)
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
                raise Broken(
                    f"{job.id}[{part}]: {marker} after epoch {epochs}, expected "
                    f"iteration {iteration}"
                )
            for covered in marker.ranges:
                if covered.first < applied[covered.topic]:
                    raise Broken(
                        f"{job.id}[{part}]: {covered} was covered up to {applied[covered.topic]}"
                    )
                applied[covered.topic] = covered.next

    def say(self, what: str) -> None:
        self._said.append(f"{now_ms():>7} {what}")

    @property
    def story(self) -> Sequence[str]:
        return self._said


@contextmanager
def quiet() -> Iterator[None]:
    """The supervisors' logs of thousands of deaths are of no use."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(wrapper_class=before)


def simulate(seed: int) -> World:
    """Run one seed; raises what it broke, with the story as a note."""

    async def told(folder: str) -> World:
        world = World(seed, Path(folder))
        try:
            world.say(f"digest {await world.live()}")
        except BaseException as broken:
            broken.add_note("\n".join(world.story))
            raise
        return world

    with TemporaryDirectory() as folder:
        return run(told(folder))
