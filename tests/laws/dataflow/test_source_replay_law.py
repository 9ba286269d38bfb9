"""The law of recomputed sources: a dataset that comes after the rows of its endpoint has each row
that its definition admits once, with the row's position, as if it had always been there.

Clients log through several servers while a commit replaces version 1 of a dataset by version 2.
Servers learn of it late, transactions begun before it end after it, the runners of the source
replay start at any time, die and start again. The oracle types every accepted request, row by row.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.admission.errors import RowsRejected
from fennel_core.admission.validator import Validator
from fennel_core.blueprints.commit_plan import asset_id
from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.logical import AssetKey, Compiled
from fennel_core.blueprints.resolve import resolve_catalog, resolve_job
from fennel_core.blueprints.source_replays import with_needed_replays
from fennel_core.blueprints.spec import Job, SourceBinding
from fennel_core.connections.erasures import Erased, ErasedKeys
from fennel_core.engine.backfill.manifest import BackfillManifest, Chunk
from fennel_core.engine.backfill.start_mode import InputRange, StartLive, choose_start_mode
from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.runner import Runner
from fennel_core.engine.source_replay import run_source_replay
from fennel_core.executors.client import NO_CALLBACKS
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.history import parquet
from fennel_core.history.store import HistoryFile
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
from fennel_core.operators.spec import SourceReplaySpec, step_version
from fennel_core.vocab.dtypes import Dtype, Field, Int, Optional, Str
from fennel_core.vocab.ids import (
    AssetId,
    BranchName,
    CommitId,
    DatasetName,
    Epoch,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
    partition_indexes,
)
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.raw_batches import RawRequest, requests_of
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import POS, SIGN, decode
from fennel_core.wire.connectors import Constant, PreProc
from tests.sim.engine.faulty_components import Dice, Process, ProcessPool, SimBroker
from tests.sim.engine.model_log import ModelLog
from tests.sim.engine.virtual_time import run
from tests.support.cluster import FAR_FUTURE_MS, LIMITS, ModelProducer
from tests.support.compiler_inputs import sourced, webhook
from tests.support.ingest_world import NoExecutors

WORKSPACE, MAIN, DEV = WorkspaceId("w"), BranchName("main"), BranchName("dev")
USERS = DatasetName("Users")
PARTITIONS = 2
NOW_US = Micros(1_700_000_000_000_000)
BASE_MS = NOW_US // 1000 - 1_000_000
DAY_US = 24 * 3600 * 1_000_000
AGE, NAME = Field("age", Int()), Field("user", Str())
Row = dict[str, Any]


def users(
    values: Sequence[Field],
    version: int,
    *,
    keyed: bool = True,
    preproc: tuple[tuple[str, PreProc], ...] = (),
    disorder_us: int = DAY_US,
) -> DatasetInput:
    """Return a version of the dataset with these value fields."""
    shape = Schema((NAME,), tuple(values), "at") if keyed else Schema((), (NAME, *values), "at")
    source = webhook("e", preproc=preproc, disorder_us=disorder_us)
    return sourced("Users", shape, version=version, source=source)


@dataclass(frozen=True)
class Version:
    """Version 2 of the dataset, and the oracle that types one logged row for it.

    The oracle returns None for a row that is not admitted.
    """

    made: DatasetInput
    typed: Callable[[Row], Row | None]


def _with(row: Row, **changes: Any) -> Row:
    return {"user": row["user"], "age": row["age"], **changes}


def _required(row: Row) -> Row | None:
    return _with(row, city=row["city"]) if isinstance(row.get("city"), str) else None


def _text(row: Row) -> Row:
    return _with(row, age=str(row["age"]))


CITY: Dtype = Str()
VERSIONS = {
    "an optional field is added": Version(
        users([AGE, Field("city", Optional(CITY))], 2), lambda row: _with(row, city=row.get("city"))
    ),
    "a required field is added": Version(users([AGE, Field("city", CITY)], 2), _required),
    "a field with a default is added": Version(
        users([AGE, Field("city", CITY)], 2, preproc=(("city", Constant("oslo", Str())),)),
        lambda row: _with(row, city="oslo"),
    ),
    "a field is removed": Version(users([], 2), lambda row: {"user": row["user"]}),
    "a type is changed": Version(users([Field("age", Str())], 2), _text),
    "the key is removed": Version(users([AGE], 2, keyed=False), _with),
    "nothing is changed": Version(users([AGE], 2), _with),
}
OLD = users([AGE], 1)


@dataclass
class Archive:
    """History of raw topics, as the backfill client reads it."""

    files: dict[tuple[TopicName, int], list[HistoryFile]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)

    def add(self, log: ModelLog, topic: TopicName, part: int, first: int, end: int) -> None:
        """Archive the records of [first, end)."""
        records = log.committed((topic, part), first, end)
        key = f"{topic}/{part}/{first}"
        rows = 0
        if records:
            frame = parquet.file_frame([(r.offset, r.value) for r in records], ())
            self.objects[key], rows = parquet.encode_file(frame), frame.height
            at = Micros(0)
            file = HistoryFile(
                topic, PartitionIndex(part), Offset(first), Offset(end), key, rows, 1, at, at
            )
            self.files.setdefault((topic, part), []).append(file)

    async def obtain(
        self, job: Job, part: PartitionIndex, starts: Mapping[TopicName, Offset]
    ) -> BackfillManifest | None:
        found = [InputRange(topic, start, Offset(0), 0) for topic, start in starts.items()]
        assert choose_start_mode(job, part, found, 0) == StartLive()
        return None

    async def archived_files(
        self, topic: TopicName, part: PartitionIndex, first: Offset
    ) -> list[HistoryFile]:
        return [f for f in self.files.get((topic, part), []) if f.next_offset > first]

    async def archived_rows(self, file: HistoryFile) -> pl.DataFrame:
        return parquet.decode_file(self.objects[file.object_key])

    async def manifest(self, key: str) -> BackfillManifest:
        raise AssertionError("no batch computes a source replay")

    async def chunk(self, manifest: BackfillManifest, number: int) -> Chunk:
        raise AssertionError("no batch computes a source replay")


def ids(compiled: Compiled, known: dict[AssetKey, AssetId], incarnation: int) -> None:
    """Name the assets that are new."""
    for blueprint in compiled.blueprints:
        known.setdefault(blueprint.key, asset_id(WORKSPACE, blueprint.key, incarnation))


@dataclass
class SlowProducer(ModelProducer):
    """A producer that may be frozen before its transaction begins."""

    pause_s: Callable[[], float] = lambda: 0.0

    async def commit(
        self, messages: Sequence[ProducerRecord], deadline_s: float = math.inf
    ) -> None:
        await asyncio.sleep(self.pause_s())
        await ModelProducer.commit(self, messages)


@dataclass
class SwitchedWorld:
    """Servers, the log, and the source replay of version 2 after the switch."""

    version: Version
    seed: int
    old: DatasetInput = OLD
    archive: Archive | None = None
    erased: dict[DatasetName, tuple[ErasedKeys, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311  # repeatable, and no secret
        self.log = ModelLog(FAR_FUTURE_MS)
        process = Process(Dice(self.random, 0.0, held_s=(0.0, 0.0, 0.5, 3.0)))
        self.broker, self.pool = SimBroker(process, self.log), ProcessPool(process)
        names: dict[AssetKey, AssetId] = {}
        before = with_needed_replays(compile_datasets([self.old], PARTITIONS), ())
        ids(before, names, 1)
        known = frozenset(names)
        after = with_needed_replays(compile_datasets([self.version.made], PARTITIONS), known)
        ids(after, names, 2)
        self.before = resolve_catalog(before, WORKSPACE, names)
        self.after = resolve_catalog(after, WORKSPACE, names)
        self.jobs = [
            resolve_job(job, WORKSPACE, names)
            for job in after.jobs
            if isinstance(job.step, SourceReplaySpec)
        ]
        self.directory = MemoryDirectory()
        self.point_to("1", self.before)
        self.committers: list[Committer] = []
        self.clock = MemoryIngestClock(self._now_us, self.directory)
        self.servers = [self._server(number) for number in range(3)]
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.runners: dict[tuple[str, int], Runner] = {}
        self.stores: dict[tuple[str, int], MemoryHangar] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        self.lost: set[bytes] = set()

    def _now_us(self) -> Micros:
        return Micros(NOW_US + int(asyncio.get_running_loop().time() * 1e6))

    def point_to(self, version: str, catalog: Any) -> None:
        found = (BranchCatalog(MAIN, CommitId(f"c{version}"), catalog),)
        self.directory.workspaces[WORKSPACE] = Branches(version, found, self.erased)

    def _server(self, number: int) -> LogService:
        def pause_s() -> float:
            return self.random.choice([0.0, 0.0, 0.01, 4.0])

        lanes = [
            SlowProducer(self.log, f"ingest-{number}-{lane}", pause_s=pause_s) for lane in range(2)
        ]
        committer = Committer(self.clock, lanes, number)
        self.committers.append(committer)
        return LogService(Catalogs(self.directory), committer, NoExecutors(), _no_secret, 10_000)

    async def log_rows(self, server: int, columns: dict[str, list[Any]]) -> bool:
        """Log a request; return whether it was accepted."""
        body = json.dumps({"webhook": "hook", "endpoint": "e", "data": columns}).encode()
        try:
            await self.servers[server].log(WORKSPACE, MAIN, body)
        except RowsRejected:
            return False  # version 2 may reject what version 1 accepts
        return True

    # --- the source replay

    def start(self) -> None:
        for job in self.jobs:
            for part in partition_indexes(job.partitions):
                self._start(job, part)

    def _start(self, job: Job, part: int) -> None:
        key = (job.id, part)
        self.epochs[key] = self.epochs.get(key, 0) + 1
        assert isinstance(job.step, SourceReplaySpec)
        logic = JobLogic(
            None,
            None,
            step_version(job.step),
            partial(
                run_source_replay,
                Validator(NoExecutors(), NO_CALLBACKS),
                self._read_erased,
                job.step,
                job.outputs[0].topic,
            ),
        )
        store = self.stores.setdefault(key, MemoryHangar())
        self.runners[key] = Runner(
            job,
            part,
            Epoch(self.epochs[key]),
            logic,
            store,
            self.broker,
            self.pool,
            LIMITS,
            self.archive,
        )
        self.tasks[key] = asyncio.create_task(self.runners[key].run())

    async def _read_erased(self) -> Erased:
        return self.erased

    async def kill(self, number: int) -> None:
        """Kill a runner where it is and start another one over its state."""
        if not self.tasks:
            return
        key = list(self.tasks)[number % len(self.tasks)]
        self.tasks[key].cancel()
        await asyncio.wait([self.tasks[key]])
        (job,) = [job for job in self.jobs if job.id == key[0]]
        self._start(job, key[1])

    async def settle(self) -> None:
        """Wait until the replay has read every request."""
        while any(
            runner.status != "running"
            or runner.behind({t: self.log.stable_end((t, part)) for t in runner.job.inputs})
            for (_, part), runner in self.runners.items()
        ):
            for task in self.tasks.values():
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)  # virtual time

    async def close(self) -> None:
        for committer in self.committers:
            await committer.close()
        for task in self.tasks.values():
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks.values())

    # --- what is on the log

    def frames(self, topic: TopicName) -> list[Any]:
        return [
            decode(record.value)
            for part in range(PARTITIONS)
            for record in self.log.committed((topic, part), 0)
        ]

    def raw(self) -> list[RawRequest]:
        return [r for frame in self.frames(self.source.raw_topic) for r in requests_of(frame)]

    @property
    def source(self) -> SourceBinding:
        (found,) = self.after.sources
        return found

    def content(self) -> list[tuple[bytes, Row]]:
        rows = [row for frame in self.frames(self.source.topic) for row in frame.to_dicts()]
        assert all(row[SIGN] == 1 for row in rows)
        return sorted((row[POS], _values(row)) for row in rows)

    def dead(self) -> list[bytes]:
        letters = self.frames(self.source.dead_letters)
        return sorted(position for frame in letters for position in frame[POS].to_list())

    # --- the oracle

    def expected(self) -> tuple[list[tuple[bytes, Row]], list[bytes]]:
        """Return content and dead letters, from the accepted requests, row by row."""
        good: list[tuple[bytes, Row]] = []
        dead: list[bytes] = []
        for request in self.raw():
            if request.position in self.lost:
                continue
            columns = json.loads(request.body)["data"]
            for number in range(request.rows):
                if number in request.late.get(USERS, []):
                    continue
                row = {name: values[number] for name, values in columns.items()}
                position = _advanced(request.position, number)
                typed = self.version.typed(row)
                if typed is None:
                    dead.append(position)
                elif row["user"] not in self._erased_users():
                    at_us = row["at"] * 1000
                    good.append((position, {**typed, "at": at_us}))
        return sorted(good, key=lambda each: each[0]), sorted(dead)

    def _erased_users(self) -> set[str]:
        found = {keys for each in self.erased.get(USERS, ()) for keys in each.keys}
        return {u for u in "abc" if key_bytes(pl.DataFrame({"user": [u]}), ["user"])[0] in found}


def _values(row: Row) -> Row:
    at_us = int(row["at"].timestamp() * 1e6)
    return {name: v for name, v in row.items() if not name.startswith("__")} | {"at": at_us}


def _advanced(position: bytes, rows: int) -> bytes:
    return position[:-4] + (int.from_bytes(position[-4:]) + rows).to_bytes(4)


async def _no_secret(workspace: WorkspaceId, version: str, name: str) -> str | None:
    return None


# --- the law


@dataclass(frozen=True)
class Step:
    """One request after a pause, and the death of a runner before it, if any."""

    server: int
    columns: dict[str, list[Any]]
    pause_s: float
    death: int | None


def requests() -> st.SearchStrategy[dict[str, list[Any]]]:
    """Return requests that version 1 accepts; not all of them have a city."""

    def of(count: int) -> st.SearchStrategy[dict[str, list[Any]]]:
        def column(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
            return st.lists(values, min_size=count, max_size=count)

        fields = {
            "user": column(st.sampled_from("abc")),
            "age": column(st.integers(0, 99)),
            "at": column(st.integers(BASE_MS, BASE_MS + 50_000)),
        }
        cities = {"city": column(st.sampled_from(["rome", "lima", None]))}
        return st.fixed_dictionaries(fields) | st.fixed_dictionaries({**fields, **cities})

    return st.integers(1, 4).flatmap(of)


STEP = st.builds(
    Step,
    st.integers(0, 2),
    requests(),
    st.sampled_from([0.0, 0.0, 0.05, 2.0]),
    st.none() | st.none() | st.integers(0, 9),
)
STEPS = st.lists(STEP, max_size=12)
MANY_STEPS = st.lists(STEP, min_size=7, max_size=12)


async def check(world: SwitchedWorld, steps: Sequence[Step], switch: int, start: int) -> None:
    """Log, switch before step `switch`, start the replay `start` steps later."""
    logging: list[asyncio.Task[bool]] = []
    for number, step in enumerate([*steps, None, None]):
        if number == min(switch, len(steps)):
            world.point_to("2", world.after)
        if number == min(switch + start, len(steps) + 1):
            world.start()
        if step is not None:
            await asyncio.sleep(step.pause_s)
            if step.death is not None:
                await world.kill(step.death)
            logging.append(asyncio.create_task(world.log_rows(step.server, step.columns)))
    accepted = sum(await asyncio.gather(*logging))
    await world.settle()
    assert sum(1 for _ in world.raw()) == accepted
    content, dead = world.expected()
    assert world.content() == content
    assert world.dead() == dead
    await world.close()


@pytest.mark.parametrize("name", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(steps=STEPS, switch=st.integers(0, 12), start=st.integers(0, 3), seed=st.integers(0, 2**32))
def test_a_new_version_has_every_row_that_it_admits_once(name, steps, switch, start, seed):
    async def world() -> None:
        await check(SwitchedWorld(VERSIONS[name], seed), steps, switch, start)

    run(world())


@settings(max_examples=25, deadline=None)
@given(steps=MANY_STEPS, switch=st.integers(6, 12), seed=st.integers(0, 2**32))
def test_rows_that_were_late_for_the_old_version_are_late_for_the_new_one(steps, switch, seed):
    async def world() -> None:
        version = Version(users([AGE], 2, disorder_us=5_000_000), _with)
        old = users([AGE], 1, disorder_us=5_000_000)
        await check(SwitchedWorld(version, seed, old=old), steps, switch, 1)

    run(world())


@settings(max_examples=15, deadline=None)
@given(steps=MANY_STEPS, switch=st.integers(3, 12), seed=st.integers(0, 2**32))
def test_rows_with_erased_keys_do_not_come_back(steps, switch, seed):
    async def world() -> None:
        keys = frozenset(key_bytes(pl.DataFrame({"user": ["a"]}), ["user"]))
        erased = {USERS: (ErasedKeys(("user",), keys),)}
        await check(
            SwitchedWorld(VERSIONS["nothing is changed"], seed, erased=erased), steps, switch, 0
        )

    run(world())


@settings(max_examples=25, deadline=None)
@given(
    steps=MANY_STEPS,
    cuts=st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted),
    start=st.floats(0, 1),
    after=st.lists(STEP, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_requests_that_left_kafka_are_read_from_history(steps, cuts, start, after, seed):
    """Requests that are neither in the log nor in history are lost, and nothing else is."""

    async def world() -> None:
        made = SwitchedWorld(VERSIONS["nothing is changed"], seed, archive=Archive())
        assert made.archive is not None
        for step in steps:
            await made.log_rows(step.server, step.columns)
        topic = made.source.raw_topic
        for part in range(PARTITIONS):
            end = made.log.stable_end((topic, part))
            middle, archived = (round(cut * end) for cut in cuts)
            begins = Offset(round(start * end))
            made.archive.add(made.log, topic, part, 0, middle)
            made.archive.add(made.log, topic, part, middle, archived)
            made.lost |= {
                request.position
                for record in made.log.committed((topic, part), archived, begins)
                for request in requests_of(decode(record.value))
            }
            made.log.truncate((topic, part), begins)
        made.point_to("2", made.after)
        made.start()
        for step in after:
            await asyncio.sleep(step.pause_s)
            if step.death is not None:
                await made.kill(step.death)
            await made.log_rows(step.server, step.columns)
        await made.settle()
        assert (made.content(), made.dead()) == made.expected()
        await made.close()

    run(world())


def test_the_worlds_make_a_difference_to_each_part_of_the_law():
    """A world with each feature: late rows, requests from before, during and after the switch."""

    async def world() -> tuple[int, int, int]:
        version = Version(users([AGE], 2, disorder_us=0), _with)
        made = SwitchedWorld(version, 1, old=users([AGE], 1, disorder_us=0))
        row = {"user": ["a"], "age": [1]}
        for at in (100, 200, 50):
            await made.log_rows(0, {**row, "at": [BASE_MS + at]})
        made.point_to("2", made.after)
        await made.log_rows(0, {**row, "at": [BASE_MS + 300]})
        made.start()
        await made.settle()
        replayed = [r for r in made.raw() if made.source.topic not in r.judged_for]
        late = sum(len(r.late) for r in made.raw())
        found = len(replayed), late, len(made.content())
        await made.close()
        return found

    assert run(world()) == (3, 1, 3)
