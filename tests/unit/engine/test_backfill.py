"""The backfill in memory: published results equal the live path, whichever process dies."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from fennel_core.blueprints.spec import Job, Output
from fennel_core.connections.errors import TransactionOutcomeUnknown
from fennel_core.engine import state_progress
from fennel_core.engine.backfill import batch, manifest
from fennel_core.engine.backfill.batch import Share, compute
from fennel_core.engine.backfill.errors import BackfillCorrupt, BackfillImpossible
from fennel_core.engine.backfill.manifest import (
    BackfillManifest,
    Chunk,
    ChunkRef,
    decode_chunk,
    digest,
    encode_chunk,
)
from fennel_core.engine.backfill.start_mode import (
    InputLost,
    InputRange,
    StartLive,
    StartWithBackfill,
    batch_obstacle,
    choose_start_mode,
)
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.errors import LogTruncated
from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.memory_broker import MemoryBroker, MemoryLog, MemoryProducer
from fennel_core.engine.runner import Runner
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.history import parquet
from fennel_core.history.store import HistoryFile
from fennel_core.operators import spec
from fennel_core.operators.build import build
from fennel_core.operators.spec import step_version
from fennel_core.replaylog.marker import IterationMarker
from fennel_core.replaylog.marker import decode_marker as marker_of
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import (
    DatasetName,
    Epoch,
    JobId,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode, encode_frame
from fennel_core.wire import operators as wire
from fennel_core.wire.pycode import PyCode
from tests.support.histories import bag, integral
from tests.support.ingest_world import source
from tests.support.runner_world import LIMITS, FaultyBroker, InlinePool, ProcessDied, run_until

LEFT, RIGHT, OUT, LOG, DEAD = (TopicName(name) for name in ("left", "right", "out", "log", "dead"))
ROWS = Schema((), (Field("key", Str()), Field("value", Int())), "at")
TABLE = Schema((Field("key", Str()),), (Field("city", Int()),), "at")
JOINED = Schema((), (*ROWS.values, Field("city", Int())), "at")
TOTALS = Schema((Field("key", Str()),), (Field("n", Int()), Field("s", Int())), "at")
SPECS = (
    wire.Count("n", wire.Forever(), None, False, False, False),
    wire.Sum("s", wire.Forever(), "value"),
)
STEPS = {
    "table": ((RIGHT,), (), spec.TableSpec(TABLE)),
    "map": ((LEFT,), (Output(OUT, ("key",)),), spec.MapSpec((ROWS,), ((),), ROWS)),
    "terminal aggregate": (
        (LEFT,),
        (),
        spec.AggregateSpec(ROWS, ("key",), SPECS, None, True, TOTALS),
    ),
    "aggregate": (
        (LEFT,),
        (Output(OUT, ("key",)),),
        spec.AggregateSpec(ROWS, ("key",), SPECS, None, False, TOTALS),
    ),
    "join": (
        (LEFT, RIGHT),
        (Output(OUT, ("key",)),),
        spec.JoinSpec(ROWS, TABLE, ("key",), ("city",), True, None, 0, JOINED),
    ),
}
NEVER = 10**12
KEPT = 30
"""Messages in history per topic; what comes after is the tail."""


def make_job(name: str) -> Job:
    inputs, outputs, step = STEPS[name]
    return Job(JobId("job"), WorkspaceId("w"), inputs, outputs, step, LOG, DEAD, 1, name)


def messages(schema: Schema, value: str, seed: int) -> list[bytes]:
    seeded = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    out = []
    for number in range(40):
        size = seeded.randint(1, 9)
        rows = {
            "key": [seeded.choice("abcdefgh") for _ in range(size)],
            value: [seeded.randint(0, 5) for _ in range(size)],
            "at": [
                datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=seeded.randint(0, 50))
                for _ in range(size)
            ],
        }
        positions = pl.Series(
            "__pos", stamp(Hlc(1000 * seed + number), 0, size).to_pylist(), pl.Binary
        )
        frame = pl.DataFrame(rows).cast({"at": pl.Datetime("us", "UTC")}).select(*schema.names)
        frame = frame.with_columns(
            positions, pl.lit(1, pl.Int8).alias("__sign"), pl.lit(False).alias("__tombstone")
        )
        out.append(encode_frame(frame))
    return out


async def world() -> MemoryLog:
    log = MemoryLog()
    producer = MemoryProducer(log, "ingest")
    for left, right in zip(messages(ROWS, "value", 1), messages(TABLE, "city", 2), strict=True):
        await producer.commit([OutgoingRecord(LEFT, 0, left), OutgoingRecord(RIGHT, 0, right)])
    return log


@dataclass
class MemoryBackfillClient:
    """History as files of seven messages, and everything a batch staged over them."""

    log: MemoryLog
    shares: int = 1
    from_rows: int = 0
    kept: int = KEPT
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: int = 0

    def __post_init__(self) -> None:
        self.history = {
            topic: [(r.offset, r.value) for r in self.log.log((topic, 0)).records][: self.kept]
            for topic in (LEFT, RIGHT)
        }

    async def obtain(
        self, job: Job, part: PartitionIndex, starts: Mapping[TopicName, Offset]
    ) -> BackfillManifest | None:
        self.asked += 1
        inputs = [
            InputRange(
                topic,
                starts[topic],
                Offset(self.history[topic][-1][0] + 1),
                sum(decode(value).height for _, value in self.history[topic]),
            )
            for topic in job.inputs
        ]
        match choose_start_mode(job, part, inputs, self.from_rows):
            case StartLive():
                return None
            case InputLost(reason):
                raise BackfillImpossible(reason)
            case StartWithBackfill():
                return self.staged(job, part)

    def staged(self, job: Job, part: PartitionIndex) -> BackfillManifest:
        files, bodies, ends = [], {}, {}
        for topic in job.inputs:
            kept = self.history[topic]
            cuts = [kept[i : i + 7] for i in range(0, len(kept), 7)]
            names = [f"{topic}-{i}" for i in range(len(cuts))]
            bodies.update(
                {
                    name: parquet.encode_file(parquet.file_frame(cut, ("key",)))
                    for name, cut in zip(names, cuts, strict=True)
                }
            )
            files.append(names)
            ends[str(topic)] = int(kept[-1][0]) + 1
        pieces = []
        for number in range(self.shares):
            chunks = compute(
                job,
                part,
                Share(number, self.shares),
                files,
                lambda key: parquet.decode_file(bodies[key]),
                MemoryHangar(),
            )
            for chunk in chunks:
                key = f"piece-{len(pieces)}"
                self.objects[key] = encode_chunk(chunk.outgoing, chunk.puts)
                pieces.append(ChunkRef(key, digest(self.objects[key])))
        load = BackfillManifest(
            "backfill/job/0/x/manifest",
            job.id,
            0,
            step_version(job.step),
            state_progress.STATE_FORMAT,
            1,
            ends,
            pieces,
        )
        self.objects[load.key] = manifest.encode_manifest(load)
        return load

    async def archived_files(
        self, topic: TopicName, part: PartitionIndex, first: Offset
    ) -> list[HistoryFile]:
        raise AssertionError("a batch computes these jobs")

    async def archived_rows(self, file: HistoryFile) -> pl.DataFrame:
        raise AssertionError("a batch computes these jobs")

    async def manifest(self, key: str) -> BackfillManifest:
        return manifest.decode_manifest(self.objects[key])

    async def chunk(self, load: BackfillManifest, number: int) -> Chunk:
        return decode_chunk(load.chunks[number], self.objects.get(load.chunks[number].key))


def runner(
    job: Job,
    log: MemoryLog,
    hangar: MemoryHangar,
    epoch: int,
    backfill_client: MemoryBackfillClient | None,
    broker: MemoryBroker | None = None,
) -> Runner:
    work = JobLogic(build(job.step), None, step_version(job.step), None)
    return Runner(
        job,
        0,
        Epoch(epoch),
        work,
        hangar,
        broker or MemoryBroker(log),
        InlinePool(),
        LIMITS,
        backfill_client,
    )


async def finish(made: Runner, job: Job, log: MemoryLog) -> None:
    await run_until(made, {topic: log.log((topic, 0)).end for topic in job.inputs})


def written(log: MemoryLog) -> Sequence[str]:
    return bag(integral([decode(r.value) for r in log.log((OUT, 0)).records if r.control is None]))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks out of few rows."""
    monkeypatch.setattr(batch, "CHUNK_BYTES", 2_000)
    monkeypatch.setattr(batch, "BATCH_ROWS", 13)


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("name", STEPS)
async def test_a_backfill_and_the_live_tail_equal_the_live_path(name: str, shares: int) -> None:
    job, live_log, backfill_log = make_job(name), await world(), await world()
    live, backfilled, backfill_client = (
        MemoryHangar(),
        MemoryHangar(),
        MemoryBackfillClient(backfill_log, shares),
    )
    await finish(runner(job, live_log, live, 1, None), job, live_log)
    await finish(runner(job, backfill_log, backfilled, 1, backfill_client), job, backfill_log)
    assert backfill_client.asked == 1
    assert written(backfill_log) == written(live_log)
    assert state_progress.load(backfilled).state_hash == state_progress.load(live).state_hash
    markers = [
        m
        for r in backfill_log.log((LOG, 0)).records
        if isinstance(m := marker_of(r.value), IterationMarker)
    ]
    loaded = [m for m in markers if manifest.manifest_key(m.ranges[0].topic)]
    assert bool(loaded) == bool(job.outputs)
    firsts = {r.topic: r.first for m in reversed(markers) if m not in loaded for r in m.ranges}
    assert all(first >= KEPT for first in firsts.values()), "nothing of history is read live"


@pytest.mark.parametrize("seed", range(8))
async def test_a_backfill_is_applied_once_whatever_dies_while_it_is_published(seed: int) -> None:
    seeded = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    job, live_log, log = make_job("aggregate"), await world(), await world()
    live, hangar, backfill_client = MemoryHangar(), MemoryHangar(), MemoryBackfillClient(log)
    await finish(runner(job, live_log, live, 1, None), job, live_log)
    for epoch in range(1, 300):
        if seeded.random() < 0.1:
            hangar = MemoryHangar()  # the disk is lost with the process
        try:
            await finish(
                runner(job, log, hangar, epoch, backfill_client, FaultyBroker(log, seeded)),
                job,
                log,
            )
            break
        except (ProcessDied, TransactionOutcomeUnknown):
            continue
    else:
        pytest.fail("never came through")
    assert written(log) == written(live_log)
    assert state_progress.load(hangar).state_hash == state_progress.load(live).state_hash


async def test_a_job_partition_that_started_live_requests_no_backfill() -> None:
    job, log, hangar = make_job("aggregate"), await world(), MemoryHangar()
    await finish(runner(job, log, hangar, 1, None), job, log)
    backfill_client = MemoryBackfillClient(log)
    await finish(runner(job, log, hangar, 2, backfill_client), job, log)
    assert backfill_client.asked == 0


async def test_a_corrupt_chunk_is_an_error_with_the_next_action() -> None:
    job, backfill_client = make_job("terminal aggregate"), MemoryBackfillClient(await world())
    load = backfill_client.staged(job, PartitionIndex(0))
    backfill_client.objects[load.chunks[0].key] += b"x"
    with pytest.raises(BackfillCorrupt, match="new version"):
        await backfill_client.chunk(load, 0)
    del backfill_client.objects[load.chunks[0].key]
    with pytest.raises(BackfillCorrupt, match="missing"):
        await backfill_client.chunk(load, 0)


@pytest.mark.parametrize("name", STEPS)
async def test_a_new_job_over_truncated_logs_equals_the_live_path(
    name: str,
) -> None:
    job, live_log, log = make_job(name), await world(), await world()
    live, hangar, backfill_client = (
        MemoryHangar(),
        MemoryHangar(),
        MemoryBackfillClient(log, from_rows=NEVER),
    )
    await finish(runner(job, live_log, live, 1, None), job, live_log)
    gone = job.inputs[0]
    log.truncate((gone, 0), Offset(int(backfill_client.history[gone][-1][0]) - 3))
    await finish(runner(job, log, hangar, 1, backfill_client), job, log)
    assert written(log) == written(live_log)
    assert state_progress.load(hangar).state_hash == state_progress.load(live).state_hash


async def test_a_new_job_whose_records_are_lost_parks_with_the_next_action() -> None:
    job, log = make_job("join"), await world()
    backfill_client = MemoryBackfillClient(log, from_rows=NEVER, kept=10)
    end = backfill_client.history[RIGHT][-1][0] + 1
    log.truncate((RIGHT, 0), Offset(end + 1))
    with pytest.raises(LogTruncated) as told:
        await runner(job, log, MemoryHangar(), 1, backfill_client).run()
    for said in (
        "join (job[0])",
        f"right[0] starts at {end + 1}: offsets 0 to {end} are deleted",
        f"history on S3 ends at {end}.",
        "new version",
    ):
        assert said in str(told.value)


def input_of(start: int, end: int, rows: int) -> InputRange:
    return InputRange(LEFT, Offset(start), Offset(end), rows)


def test_a_backfill_is_used_for_long_history_and_for_truncated_logs() -> None:
    job = make_job("aggregate")
    assert choose_start_mode(job, 0, [input_of(0, 9, 99)], 100) == StartLive()
    assert choose_start_mode(
        job, 0, [input_of(0, 9, 60), input_of(0, 9, 40)], 100
    ) == StartWithBackfill(100, required=False)
    assert choose_start_mode(job, 0, [input_of(1, 1, 0)], 100) == StartWithBackfill(
        0, required=True
    ), "what is gone may have been control records only"
    assert choose_start_mode(
        job, 0, [input_of(0, 9, 60), input_of(9, 9, 40)], 1
    ) == StartWithBackfill(100, required=True)
    assert isinstance(choose_start_mode(job, 0, [input_of(10, 9, 1_000)], 100), InputLost), (
        "offset 9 is nowhere"
    )
    lacking = replace(input_of(5, 9, 60), lost=(Offset(2), Offset(4)))
    lost = choose_start_mode(job, 0, [lacking], 1)
    assert isinstance(lost, InputLost)
    assert "history on S3 lacks 2 to 3, which were deleted before it had them" in lost.reason


def job_of(step: spec.StepSpec, *, watermark: bool = False) -> Job:
    outputs = (Output(OUT, (), watermark),)
    return Job(JobId("j"), WorkspaceId("w"), (LEFT,), outputs, step, LOG, DEAD, 1, "title")


USER_CODE = spec.UserCodeSpec("filter", PyCode("f", "", "", "", "", (), ()), None, ROWS, ROWS)
CLOSING = spec.AggregateSpec(
    ROWS,
    ("key",),
    (wire.Count("n", wire.Hopping(60, 60, 0), None, False, False, False),),
    None,
    False,
    TOTALS,
)


@pytest.mark.parametrize(
    ("job", "reason"),
    [(job_of(USER_CODE, watermark=True), "user code"), (job_of(CLOSING), "windows")],
    ids=["user code with watermark", "windows"],
)
def test_a_job_that_no_batch_computes_is_lost_on_a_truncated_log(job: Job, reason: str) -> None:
    assert choose_start_mode(job, 0, [input_of(0, 9, 99)], 1) == StartLive()
    lost = choose_start_mode(job, 0, [input_of(3, 9, 99)], 1)
    assert isinstance(lost, InputLost)
    assert "left[0] starts at 3: offsets 0 to 2 are deleted. History on S3 has them" in lost.reason
    assert reason in lost.reason


def test_user_code_and_source_replays_read_history_themselves() -> None:
    replay = job_of(spec.SourceReplaySpec(DatasetName("Rows"), source(), ROWS))
    for job in (job_of(USER_CODE), replay):
        assert choose_start_mode(job, 0, [input_of(9, 9, 99)], 1) == StartLive()
    # A lost record parks user code; a source replay logs it and continues.
    assert isinstance(choose_start_mode(job_of(USER_CODE), 0, [input_of(10, 9, 9)], 1), InputLost)
    assert choose_start_mode(replay, 0, [input_of(10, 9, 9)], 1) == StartLive()


def test_windows_that_close_are_left_to_the_live_path() -> None:
    hopping = wire.Count("n", wire.Hopping(60_000_000, 60_000_000, 0), None, False, False, False)
    closing = spec.AggregateSpec(ROWS, ("key",), (hopping,), None, False, TOTALS)
    assert batch_obstacle(make_job("aggregate")) is None
    assert batch_obstacle(
        Job(
            JobId("j"),
            WorkspaceId("w"),
            (LEFT,),
            (Output(OUT, ()),),
            closing,
            LOG,
            DEAD,
            1,
            "closing",
        )
    )
    watermarking = Job(
        JobId("j"),
        WorkspaceId("w"),
        (LEFT,),
        (Output(OUT, (), watermark=True),),
        STEPS["map"][2],
        LOG,
        DEAD,
        1,
        "watermarking",
    )
    assert batch_obstacle(watermarking), (
        "it would have to write watermarks, which history does not have"
    )


def test_the_stored_bytes_of_a_manifest_do_not_depend_on_python_names() -> None:
    stored = BackfillManifest("k", "j", 0, 1, 2, 3, {"t": 4}, [ChunkRef("c", "sha")])
    body = manifest.encode_manifest(stored)
    assert body == (
        b'{"key":"k","job":"j","part":0,"step_version":1,"state_format":2,"rows":3,'
        b'"end_offsets":{"t":4},"chunks":[{"key":"c","sha256":"sha"}],"format":1}'
    )
    assert manifest.decode_manifest(body) == stored
