"""A whole data plane in one process: ingest servers, runners of every job of a commit, and lookups.

Theory. Log, stores and registry are in-memory implementations; everything between the body of a
`log` request and the body of a lookup's response is production code. Time is virtual, and one seed
makes every choice: how batches are cut, which input a runner reads next, which topics are delayed
and for how long, and which runners die and replay. A law over it is a law over all orders of
delivery.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from fennel_core.blueprints.commit_plan import BankFacts, plan_commit
from fennel_core.blueprints.resolve import resolve_catalog, resolve_job
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.definition import validation
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.engine.service import SlotService
from fennel_core.engine.supervisor import HostedPartition
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.history.asof import without_erased
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.committer import Committer
from fennel_core.ingest.log_service import LogService
from fennel_core.ingest.store import (
    BranchCatalog,
    Branches,
    MemoryDirectory,
    MemoryIngestClock,
    ProducerRecord,
)
from fennel_core.integrity.checks import CheckedDataset, DatasetCheck
from fennel_core.integrity.errors import RowsUnreadable
from fennel_core.integrity.naive_outputs import compared_spec
from fennel_core.integrity.output_checks import CheckedJob, OutputCheck
from fennel_core.operators.build import as_watermark_step, build
from fennel_core.operators.spec import AggregateSpec, TableSpec, step_version
from fennel_core.operators.step import OperatorStep
from fennel_core.query.lookups import Lookups
from fennel_core.query.owners import Owners, Ownership
from fennel_core.query.service import QueryLimits, QueryService
from fennel_core.query.view import BranchKey, ServingVersion, Views
from fennel_core.vocab.ids import (
    BranchName,
    CommitId,
    DatasetName,
    Epoch,
    JobId,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.versions import SIGN, decode, encode_frame
from fennel_core.wire.entities import SyncRequest
from tests.sim.engine.faulty_components import Dice, Process, ProcessPool, SimBroker
from tests.sim.engine.model_log import ModelLog
from tests.sim.engine.virtual_time import now_ms
from tests.support.fake_slots import nothing_hidden
from tests.support.ingest_world import NoExecutors

GOLDEN = Path(__file__).parents[1] / "golden" / "wire"
WORKSPACE, MAIN = WorkspaceId("w"), BranchName("main")
PARTITIONS = 4
LIMITS = RunnerLimits(iteration_bytes=6_000, environment="cluster")
FAR_FUTURE_MS = 1 << 50


@dataclass(frozen=True)
class Blueprint:
    """A recorded commit, compiled."""

    request: SyncRequest
    catalog: Catalog
    jobs: tuple[Job, ...]
    steps: Mapping[JobId, OperatorStep]

    def behind(self, datasets: Sequence[str]) -> tuple[Job, ...]:
        """Return the jobs that compute and serve these datasets, producers first."""
        wanted = {view.served_by for view in self.catalog.datasets if view.name in datasets}
        topics = {view.topic for view in self.catalog.datasets if view.name in datasets}
        for job in reversed(self.jobs):
            if job.id in wanted or topics.intersection(output.topic for output in job.outputs):
                wanted.add(job.id)
                topics.update(job.inputs)
        return tuple(job for job in self.jobs if job.id in wanted)


@cache
def blueprint(subject: str) -> Blueprint:
    """Compile the commit recorded as `tests/golden/wire/<subject>.binpb`."""
    read = validation.decode_commit((GOLDEN / f"{subject}.binpb").read_bytes())
    compiled = validation.compile_definitions(
        validation.validate_definitions(read, None, incremental=False), PARTITIONS
    )
    names = plan_commit(BankFacts(WORKSPACE, 1), compiled).ids()
    jobs = tuple(resolve_job(job, WORKSPACE, names) for job in compiled.jobs)
    return Blueprint(
        read.request,
        resolve_catalog(compiled, WORKSPACE, names),
        jobs,
        {job.id: build(job.step) for job in jobs},
    )


# --- ingest ---------------------------------------------------------------------------------------


@dataclass
class ModelProducer:
    """The transactional producer of ingest over the model of the log."""

    log: ModelLog
    name: str

    async def commit(
        self, messages: Sequence[ProducerRecord], deadline_s: float = math.inf
    ) -> None:
        records = [OutgoingRecord(m.topic, m.partition, m.value, m.headers) for m in messages]
        transaction = self.log.begin(self.name, self.log.open(self.name), records, now_ms())
        await asyncio.sleep(0.001)  # a transaction takes time, in which others may act
        self.log.end(transaction, "committed")


# --- lookups --------------------------------------------------------------------------------------


@dataclass
class InProcessSlots:
    """`query.slots.Slots` with one slot; requests and responses are encoded to bytes."""

    service: SlotService

    async def call(self, address: str, op: str, argument: object) -> Any:
        assert address == "slot", "there is one slot"
        return msgspec.msgpack.decode(
            msgspec.msgpack.encode(
                await self.service(op, msgspec.msgpack.decode(msgspec.msgpack.encode(argument)))
            )
        )


@dataclass
class FakeSupervisor:
    """The attributes of a supervisor that `SlotService` uses."""

    hosted: dict[tuple[JobId, PartitionIndex], HostedPartition] = field(default_factory=dict)

    def lease_is_live(self) -> bool:
        return True

    async def read_owners(self, jobs: Collection[JobId] | None = None) -> Ownership:
        return Ownership(dict.fromkeys(self.hosted, "slot"), {}, {job for job, _ in self.hosted})


@dataclass
class FakeBranchStore:
    """The catalog of the one branch, as a query server reads it."""

    made: Blueprint

    async def read_serving(
        self, key: BranchKey, known: CommitId | None
    ) -> ServingVersion | CommitId | None:
        return ServingVersion(CommitId("c1"), self.made.request, self.made.catalog)


# --- integrity checks -----------------------------------------------------------------------------


@dataclass
class OwnedSlot:
    """`snapshots.rebuild.SlotClient` of the one slot."""

    slot: FakeSupervisor
    slots: InProcessSlots

    async def owners(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        return {(job, part): "slot" for job, part in self.slot.hosted if job in jobs}

    async def call(self, address: str, op: str, argument: object) -> Any:
        await asyncio.sleep(0.01)  # others act before the request arrives
        return await self.slots.call(address, op, argument)


@dataclass
class LogRows:
    """`integrity.output_checks.WrittenRows` over the model of the log.

    `removed`: the erased keys whose rows are not in the history of a topic any more.
    """

    log: ModelLog
    removed: Mapping[TopicName, tuple[ErasedKeys, ...]] = field(default_factory=dict)

    def below(
        self,
        partition: TopicPartition,
        end: Offset,
        columns: Sequence[str],
        groups: Sequence[str] = (),
    ) -> Iterator[pl.DataFrame]:
        erased = self.removed.get(partition[0], ())
        if any(not set(each.columns) <= set(groups) for each in erased):
            raise RowsUnreadable("any group may have lost rows")
        for rows in self.between(partition, Offset(0), end, columns):
            yield without_erased(rows, erased)

    def expired_to(self, partition: TopicPartition) -> None:
        """No row is too old in the model."""

    def erased(self, topic: TopicName) -> Sequence[ErasedKeys]:
        return self.removed.get(topic, ())

    def end(self, partition: TopicPartition) -> Offset:
        return self.log.stable_end(partition)

    def settled_end(self, partition: TopicPartition) -> Offset:
        """Refuse where production waits: time does not go on in a thread of the model."""
        if (end := self.end(partition)) < len(self.log.log(partition).entries):
            raise RowsUnreadable("a transaction is open")
        return end

    def between(
        self, partition: TopicPartition, first: Offset, end: Offset, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        for record in self.log.committed(partition, first, end):
            if record.control is None:
                yield decode(record.value).select(columns)


# --- the cluster ----------------------------------------------------------------------------------


class Cluster:
    """Runs the jobs behind `datasets`. Use it inside `tests.sim.engine.virtual_time.run`."""

    def __init__(
        self, subject: str, datasets: Sequence[str], seed: int, skews_us: Sequence[int], now_us: int
    ) -> None:
        self.made = blueprint(subject)
        self.random = random.Random(seed)  # noqa: S311  # repeatable, and no secret
        self.log = ModelLog(FAR_FUTURE_MS)
        self._broker = SimBroker(
            Process(Dice(self.random, 0.0, held_s=(0.0, 0.0, 0.0, 0.5, 3.0))), self.log
        )
        self._pool = ProcessPool(Process(Dice(self.random, 0.0)))
        self._jobs = {job.id: job for job in self.made.behind(datasets)}
        self._stores = {
            (job.id, part): MemoryHangar()
            for job in self._jobs.values()
            for part in range(job.partitions)
        }
        self._epochs = dict.fromkeys(self._stores, 0)
        self._tasks: dict[tuple[JobId, int], asyncio.Task[None]] = {}
        self._slot = FakeSupervisor()
        self._committers: list[Committer] = []
        self.servers = self._ingest(skews_us, now_us)
        self._query = self._front(now_us)
        for key in self._stores:
            self._start(key)

    def _ingest(self, skews_us: Sequence[int], now_us: int) -> list[LogService]:
        """Create one server per skew of the database's clock, from which positions come."""
        directory = MemoryDirectory(
            {WORKSPACE: Branches("1", (BranchCatalog(MAIN, CommitId("c1"), self.made.catalog),))}
        )
        clock = MemoryIngestClock(lambda: Micros(now_us), directory)
        made = []
        for number, skew_us in enumerate(skews_us):

            def skewed(skew_us: int = skew_us) -> Micros:
                return Micros(now_us + skew_us)

            own = MemoryIngestClock(skewed, directory, clock.stamps, clock.sources, clock.discarded)
            committer = Committer(
                own,
                [ModelProducer(self.log, f"ingest-{number}-{lane}") for lane in range(2)],
                number,
            )
            self._committers.append(committer)
            made.append(
                LogService(Catalogs(directory), committer, NoExecutors(), _no_secret, 10_000)
            )
        return made

    def _front(self, now_us: int) -> QueryService:
        service = SlotService(self._slot, None, None)  # type: ignore[arg-type]  # stand-ins: snapshots and drills are not used here
        self._service = service
        lookups = Lookups(InProcessSlots(service), Owners(self._slot), 30.0, nothing_hidden)  # type: ignore[arg-type]  # the one method that is called
        absent: Any = None
        return QueryService(
            Views(FakeBranchStore(self.made)),
            lookups,
            absent,
            absent,
            absent,
            _no_secret,
            lambda: now_us,
            QueryLimits(1000, 60.0, 5.0),
        )

    # --- runners

    def _start(self, key: tuple[JobId, int]) -> None:
        job, part = self._jobs[key[0]], key[1]
        self._epochs[key] += 1
        step = self.made.steps[job.id]
        work = JobLogic(step, as_watermark_step(step), step_version(job.step), None)
        runner = Runner(
            job,
            part,
            Epoch(self._epochs[key]),
            work,
            self._stores[key],
            self._broker,
            self._pool,
            LIMITS,
        )
        self._slot.hosted[(job.id, PartitionIndex(part))] = HostedPartition(Epoch(1), runner=runner)
        self._tasks[key] = asyncio.create_task(runner.run(), name=f"{job.title}[{part}]")

    async def restart(self, number: int) -> None:
        """Kill a runner where it is and start another one over its state."""
        key = list(self._tasks)[number % len(self._tasks)]
        self._tasks[key].cancel()
        await asyncio.wait([self._tasks[key]])
        self._start(key)

    # --- the client's calls

    async def log_rows(self, server: int, endpoint: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """One `log` call."""
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        body = json.dumps({"webhook": "door", "endpoint": endpoint, "data": columns}).encode()
        await self.servers[server].log(WORKSPACE, MAIN, body)

    async def lookup(
        self, dataset: str, keys: Sequence[Mapping[str, Any]], at: Sequence[float] | None
    ) -> list[dict[str, Any] | None]:
        """Return the row of each key as of each second (`at` None: now), None if there is none."""
        body: dict[str, Any] = {"keys": keys}
        if at is not None:
            body["timestamps"] = at
        answer = json.loads(
            (await self._query.lookup((WORKSPACE, MAIN), dataset, json.dumps(body).encode())).body
        )
        names = list(answer["data"])
        rows = [
            dict(zip(names, values, strict=True))
            for values in zip(*answer["data"].values(), strict=True)
        ]
        return [row if there else None for row, there in zip(rows, answer["found"], strict=True)]

    async def query(
        self, inputs: Sequence[str], outputs: Sequence[str], data: Mapping[str, Sequence[Any]]
    ) -> dict[str, list[Any]]:
        body = {"inputs": inputs, "outputs": outputs, "data": data}
        found: dict[str, list[Any]] = json.loads(
            (await self._query.query((WORKSPACE, MAIN), json.dumps(body).encode())).body
        )
        return found

    # --- integrity checks

    def checked(self, dataset: str) -> CheckedDataset:
        """Return what a check of a dataset needs to know."""
        (view,) = [each for each in self.made.catalog.datasets if each.name == dataset]
        assert view.served_by is not None, f"{dataset} cannot be looked up"
        job = self._jobs[view.served_by]
        assert isinstance(job.step, TableSpec | AggregateSpec), "only these serve lookups"
        return CheckedDataset(WORKSPACE, view.name, job.id, job.inputs[0], job.step, job.partitions)

    def integrity(self, *, keys: int, seed: int, now_us: int) -> DatasetCheck:
        """Return a check of this cluster's datasets over its log and its slot."""
        return DatasetCheck(
            OwnedSlot(self._slot, InProcessSlots(self._service)),
            LogRows(self.log),
            keys=keys,
            seed=seed,
            now=Micros(now_us),
        )

    def written(self, datasets: Sequence[str]) -> list[CheckedJob]:
        """Return the jobs behind datasets whose written rows are compared."""
        found = []
        for job in self.made.behind(datasets):
            spec = compared_spec(job.step)
            if spec is not None and job.outputs:
                (output,) = job.outputs
                dataset = DatasetName(job.title.partition(".")[0])
                found.append(
                    CheckedJob(
                        *(WORKSPACE, dataset, job.id, job.title, job.inputs, output.topic),
                        *(spec, job.partitions),
                    )
                )
        return found

    def repeat_first_row(self, topic: TopicName, partitions: int, sign: int) -> None:
        """Write the first row of a topic again, or take it back, which no job has done."""
        for part in range(partitions):
            for record in self.log.committed((topic, PartitionIndex(part)), 0):
                if record.control is None:
                    row = decode(record.value)[:1].with_columns(pl.lit(sign, pl.Int8).alias(SIGN))
                    written = OutgoingRecord(topic, part, encode_frame(row))
                    generation = self.log.open("damage")
                    self.log.end(
                        self.log.begin("damage", generation, [written], now_ms()), "committed"
                    )
                    return
        raise AssertionError(f"{topic} has no row")

    def output_check(
        self,
        *,
        keys: int,
        seed: int,
        removed: Mapping[TopicName, tuple[ErasedKeys, ...]] | None = None,
    ) -> OutputCheck:
        """Return a check of the rows that this cluster's jobs have written, where rows of `removed`
        keys have left the topics' history.
        """
        slots = OwnedSlot(self._slot, InProcessSlots(self._service))
        return OutputCheck(slots, LogRows(self.log, removed or {}), keys=keys, seed=seed)

    def store(self, job: JobId, part: int) -> MemoryHangar:
        """Return the state of a job partition."""
        return self._stores[(job, part)]

    # --- waiting

    async def settle(self) -> None:
        """Wait until every runner has applied all records; raise what a runner raised."""
        while self._behind():
            for task in self._tasks.values():
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)  # virtual time

    def _behind(self) -> bool:
        if not self.log.idle():
            return True
        for (job, part), hosting in self._slot.hosted.items():
            runner = hosting.runner
            assert runner is not None, "every hosted partition of a cluster has a runner"
            targets = {
                topic: self.log.stable_end((topic, part)) for topic in self._jobs[job].inputs
            }
            if runner.status != "running" or runner.behind(targets):
                return True
        return False

    async def close(self) -> None:
        for committer in self._committers:
            await committer.close()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values())


async def _no_secret(workspace: WorkspaceId, version: str, name: str) -> str | None:
    return None
