"""Drills in memory: a healthy partition always agrees, and every tampering is found."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.blueprints.spec import Job
from fennel_core.connections.object_store import MemoryObjectStore
from fennel_core.engine import state_progress
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.drill.compare import drill_partition
from fennel_core.engine.drill.subprocess_drill import replay_logic
from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.memory_broker import MemoryBroker, MemoryLog, MemoryProducer
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.engine.state_progress import STATE_FORMAT
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import Hangar, WriteBatch
from fennel_core.operators import spec
from fennel_core.operators.build import is_order_deterministic
from fennel_core.operators.step import Outcome
from fennel_core.snapshots import transfer
from fennel_core.snapshots.drills import DrillFinding, DrillVerdict
from fennel_core.snapshots.manifest import StatePosition
from fennel_core.snapshots.memory import MemoryPointers
from fennel_core.snapshots.transfer import SnapshotContext, SnapshotSource, SnapshotTaken
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import encode, with_meta
from fennel_core.wire import operators as wire
from tests.support.runner_world import (
    REPLAYLOG,
    SCHEMA,
    SOURCE,
    TARGET,
    CountingStep,
    InlinePool,
    SilentStep,
    feed,
    make_job,
    run_until,
)

JOB, PART = JobId("job"), PartitionIndex(0)
COUNTS = Schema((Field("key", Str()),), (Field("n", Int()),), "at")
TILES = spec.AggregateSpec(
    SCHEMA, ("key",), (wire.Sum("n", wire.Forever(), "value"),), None, True, COUNTS
)
FACTS = spec.with_validity(
    Schema((Field("id", Int()),), (Field("key", Str()), Field("value", Int())), "at")
)
LIVES = spec.AggregateSpec(
    FACTS, ("key",), (wire.Sum("n", wire.Forever(), "value"),), None, True, COUNTS
)
Rows = list[tuple[str, int]]


def work(kind: str) -> tuple[Job, JobLogic]:
    """A job with outputs and one without, with steps of the runner's tests, and a real one that
    writes tiles.
    """
    if kind in {"tiles", "lives"}:
        made = replace(make_job(outputs=False), step=TILES if kind == "tiles" else LIVES)
        return made, replay_logic(made)
    outputs = kind == "outputs"
    return make_job(outputs), JobLogic(CountingStep() if outputs else SilentStep(), None, 1, None)


async def lived(log: MemoryLog, rows: Rows) -> None:
    """`feed` for facts: every row ends a second after it began."""
    producer = MemoryProducer(log, "ingest")
    for number, (key, value) in enumerate(rows):
        begun = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
        moments = {"at": begun, "__valid_to": begun + timedelta(seconds=1)}
        times = {
            name: pa.array([moment], pa.timestamp("us", "UTC")) for name, moment in moments.items()
        }
        table = pa.table(
            {"id": [number], "key": pa.array([key], pa.large_string()), "value": [value], **times}
        )
        await producer.commit(
            [OutgoingRecord(SOURCE, 0, encode(with_meta(table, stamp(Hlc(number), 0, 1))))]
        )


@dataclass
class Partition:
    """A job partition, its log, and its snapshots."""

    kind: str
    folder: Path

    def __post_init__(self) -> None:
        self.log, self.live, self.epoch, self.copies = MemoryLog(), MemoryHangar(), 0, 0
        self.objects = MemoryObjectStore(lambda: datetime.now(UTC))
        self.tools = SnapshotContext(
            self.objects, MemoryPointers(lambda: datetime.now(UTC), {(JOB, PART): Epoch(1)})
        )

    def runner(self, hangar: Hangar, iteration_bytes: int) -> Runner:
        job, made = work(self.kind)
        limits = RunnerLimits(iteration_bytes, "test")
        return Runner(
            job, PART, Epoch(self.epoch), made, hangar, MemoryBroker(self.log), InlinePool(), limits
        )

    async def process(self, rows: Rows, iteration_bytes: int) -> None:
        """Log rows and apply them, as a new owner whose iterations are of this size at most."""
        await (lived if self.kind == "lives" else feed)(self.log, rows)
        self.epoch += 1
        await run_until(self.runner(self.live, iteration_bytes), self.log.log((SOURCE, 0)).end)

    def copy(self) -> Path:
        self.copies += 1
        target = self.folder / f"copy-{self.copies}"
        self.live.checkpoint(target)
        return target

    async def snapshot(self) -> str:
        async def checkpoint() -> Path:
            return self.copy()

        known = state_progress.load(self.live)
        position = StatePosition(known.iteration, known.replayed, known.offsets)
        made = await transfer.take_snapshot(
            self.tools,
            SnapshotSource(JOB, PART, Epoch(1), STATE_FORMAT, position),
            checkpoint,
            f"u{self.copies}",
        )
        assert isinstance(made, SnapshotTaken)
        return made.manifest

    async def drill(self, iteration_bytes: int = 2_000) -> DrillFinding:
        live = MemoryHangar.restore(self.copy())
        (pointer, *_) = await self.tools.pointers.of(JOB, PART)
        log_before = {
            topic: len(self.log.log((topic, 0)).records) for topic in (SOURCE, TARGET, REPLAYLOG)
        }

        def runner_over(hangar: Hangar) -> Runner:
            return self.runner(hangar, iteration_bytes)

        scratch = self.folder / f"scratch-{self.copies}"
        found = await drill_partition(
            self.tools, pointer, live, scratch, MemoryHangar.restore, runner_over
        )
        assert log_before == {
            topic: len(self.log.log((topic, 0)).records) for topic in log_before
        }, "a drill writes nothing"
        return found


ROWS = [("abc"[n % 3], n) for n in range(30)]
KINDS = ("outputs", "silent", "tiles")
SOME_ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-5, 5)), max_size=8)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-5, 5)), max_size=8),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
    st.lists(st.integers(300, 20_000), min_size=6, max_size=6),
)
async def test_a_drill_of_a_healthy_partition_agrees(
    kind: str, stretches: list[tuple[Rows, bool]], sizes: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        partition = Partition(kind, Path(folder))
        await partition.process(ROWS[:3], sizes[0])
        await partition.snapshot()
        for (rows, copied), size in zip(stretches, sizes, strict=False):
            await partition.process([*rows, ("a", 1)], size)
            if copied:
                await partition.snapshot()
        found = await partition.drill(sizes[-1])
        assert found.verdict is DrillVerdict.AGREES, found
        assert (
            found.live_hash
            == found.drilled_hash
            == f"{state_progress.load(partition.live).state_hash:032x}"
        )


@pytest.fixture(params=KINDS)
async def partition(request: pytest.FixtureRequest, tmp_path: Path) -> Partition:
    """With a snapshot of its first 20 rows, and 10 rows after it."""
    made = Partition(request.param, tmp_path)
    await made.process(ROWS[:20], 2_000)
    await made.snapshot()
    await made.process(ROWS[20:], 500)
    return made


def one_entry(hangar: MemoryHangar) -> tuple[bytes, bytes]:
    return next(state_progress.entries(hangar))


def changed(key: bytes, value: bytes) -> WriteBatch:
    return WriteBatch({key: value[:-1] + bytes([value[-1] ^ 1])})


TAMPERINGS: dict[str, Callable[[bytes, bytes], WriteBatch]] = {
    "a byte": changed,
    "an entry less": lambda key, value: WriteBatch(deletes=frozenset({key})),
    "an entry more": lambda key, value: WriteBatch({key + b"x": value}),
}


@pytest.mark.parametrize("how", TAMPERINGS)
async def test_a_tampered_live_state_is_found_with_both_hashes(
    partition: Partition, how: str
) -> None:
    kept = state_progress.load(partition.live).state_hash
    partition.live.write(TAMPERINGS[how](*one_entry(partition.live)))
    found = await partition.drill()
    assert found.verdict is DrillVerdict.DIFFERS
    assert (found.live_hash, found.drilled_hash) == (
        f"{state_progress.computed_state_hash(partition.live):032x}",
        f"{kept:032x}",
    )
    assert found.live_hash != found.drilled_hash


async def test_a_live_state_that_diverged_is_found_with_its_first_difference(
    partition: Partition,
) -> None:
    known = state_progress.load(partition.live)
    key, value = one_entry(partition.live)
    other = changed(key, value)
    outcome = Outcome(other.puts)
    after = replace(
        known,
        state_hash=state_progress.updated_state_hash(partition.live, known.state_hash, outcome),
    )
    partition.live.write(state_progress.write_batch(after, outcome))
    found = await partition.drill()
    assert found.verdict is DrillVerdict.DIFFERS
    assert f"1 entries differ, the first at key {key.hex()}" in found.detail
    assert found.live_hash == f"{after.state_hash:032x}"
    assert found.drilled_hash == f"{known.state_hash:032x}"


async def test_a_tampered_state_is_found_although_the_snapshots_checksums_match(
    partition: Partition,
) -> None:
    key, value = one_entry(partition.live)
    partition.live.write(changed(key, value))
    await partition.process([("another key", 1)], 2_000)
    await partition.snapshot()
    partition.live.write(WriteBatch({key: value}))
    found = await partition.drill()
    assert found.verdict is DrillVerdict.CORRUPT
    assert "snapshot #2 holds other entries than were written" in found.detail
    assert found.live_hash != found.drilled_hash


@pytest.mark.parametrize("lost", [False, True])
async def test_a_snapshot_with_a_corrupt_file_is_found_and_named(
    partition: Partition, lost: bool
) -> None:
    [name] = [name for name in partition.objects.contents if "/files/" in name]
    if lost:
        del partition.objects.contents[name]
    else:
        partition.objects.contents[name] = partition.objects.contents[name][:-1] + b" "
    found = await partition.drill()
    assert found.verdict is DrillVerdict.CORRUPT
    assert "snapshot #1 cannot be used" in found.detail
    assert name in found.detail


async def test_records_that_a_recovery_would_miss_are_reported(partition: Partition) -> None:
    for topic in (SOURCE, REPLAYLOG):
        log = partition.log.log((topic, 0))
        partition.log.truncate((topic, 0), Offset(max(log.end - 1, 0)))
    found = await partition.drill()
    assert found.verdict is DrillVerdict.LOST
    assert "are deleted" in found.detail


async def test_a_live_state_behind_its_snapshot_is_skipped(
    partition: Partition,
) -> None:
    behind = MemoryHangar.restore(partition.copy())
    await partition.process([("a", 1)], 2_000)
    await partition.snapshot()
    partition.live = behind
    assert (await partition.drill()).verdict is DrillVerdict.SKIPPED


async def test_a_replay_with_other_mutations_than_the_marker_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Partition("outputs", tmp_path)
    await partition.process(ROWS[:20], 2_000)
    await partition.snapshot()
    await partition.process(ROWS[20:], 500)
    monkeypatch.setattr(
        CountingStep,
        "apply",
        lambda self, reads, source, batch: Outcome({b"sum/a": b"0"}),
    )
    found = await partition.drill()
    assert found.verdict is DrillVerdict.DIFFERS
    assert "snapshot #1 cannot be replayed" in found.detail


@pytest.fixture
async def lives(tmp_path: Path) -> Partition:
    """An aggregation of keyed input: the live path read the last ten rows in one batch, a drill
    reads them one by one.
    """
    made = Partition("lives", tmp_path)
    await made.process(ROWS[:20], 20_000)
    await made.snapshot()
    await made.process(ROWS[20:], 20_000)
    return made


async def test_served_rows_are_compared_where_bytes_depend_on_batches(lives: Partition) -> None:
    found = await lives.drill(300)
    assert found.verdict is DrillVerdict.AGREES, found
    assert (
        found.live_hash
        == found.drilled_hash
        != f"{state_progress.load(lives.live).state_hash:032x}"
    ), "the bytes themselves are others"


async def test_other_served_rows_differ_where_bytes_depend_on_batches(
    lives: Partition,
) -> None:
    twin = Partition("lives", lives.folder / "twin")
    await twin.process([*ROWS[:20], ("a", 7), *ROWS[21:]], 20_000)
    lives.live = twin.live
    found = await lives.drill(300)
    assert found.verdict is DrillVerdict.DIFFERS
    assert found.live_hash != found.drilled_hash


def test_the_steps_whose_bytes_depend_on_batches_are_known() -> None:
    known = {kind: made.step for kind in ("tiles", "lives") for _, made in [work(kind)]}
    assert {
        kind: step is not None and is_order_deterministic(step) for kind, step in known.items()
    } == {
        "tiles": True,
        "lives": False,
    }
