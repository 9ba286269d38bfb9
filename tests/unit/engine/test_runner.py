"""The runner over in-memory log and store: exactly once, whatever fails between its steps."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import polars as pl
import pytest

from fennel_core.blueprints.spec import Output
from fennel_core.connections.errors import TransactionOutcomeUnknown
from fennel_core.engine import state_progress
from fennel_core.engine.broker import OutgoingRecord, Record
from fennel_core.engine.errors import (
    EpochSuperseded,
    LogTruncated,
    ProducerFenced,
    ReplayMismatch,
    StateAheadOfLog,
    StateDiscarded,
)
from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.memory_broker import MemoryBroker, MemoryLog, MemoryProducer
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import HangarBusy, WriteBatch
from fennel_core.operators import spec
from fennel_core.operators.build import build
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.replaylog import marker as markers
from fennel_core.vocab.ids import Epoch, JobId, Offset, TopicName
from fennel_core.vocab.versions import decode
from tests.support.polling import eventually
from tests.support.runner_world import (
    LIMITS,
    REPLAYLOG,
    SCHEMA,
    SOURCE,
    TARGET,
    CountingStep,
    FaultyBroker,
    InlinePool,
    ProcessDied,
    emitted,
    encoded_row,
    expected,
    feed,
    make_job,
    make_runner,
    run_until,
)

ROWS = [(random.Random(n).choice("abc"), n) for n in range(40)]  # noqa: S311  # repeatable, and no secret


async def test_outputs_and_state_equal_a_single_pass() -> None:
    log, hangar = MemoryLog(), MemoryHangar()
    await feed(log, ROWS)
    await run_until(make_runner(log, hangar, 1), 2 * len(ROWS))
    assert emitted(log) == expected(ROWS)


async def test_records_count_as_lag_until_the_iteration_that_reads_them_is_applied() -> None:
    log, seen = MemoryLog(), []
    await feed(log, ROWS[:1])

    class ObservedStep(CountingStep):
        def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
            seen.append((runner.lag, dict(runner.applied)))
            return super().apply(reads, source, batch)

    logic = JobLogic(ObservedStep(), None, 1, None)
    runner = Runner(
        make_job(), 0, Epoch(1), logic, MemoryHangar(), MemoryBroker(log), InlinePool(), LIMITS
    )
    await run_until(runner, 2)
    assert seen == [(2, {SOURCE: 0})], "the record and its transaction marker"
    assert runner.applied == {SOURCE: 2}


async def test_a_lost_state_is_replayed_without_emitting_again() -> None:
    log = MemoryLog()
    await feed(log, ROWS)
    survivor = MemoryHangar()
    await run_until(make_runner(log, survivor, 1), 2 * len(ROWS))
    rebuilt = MemoryHangar()
    await run_until(make_runner(log, rebuilt, 2), 2 * len(ROWS))
    assert emitted(log) == expected(ROWS)
    assert state_progress.load(rebuilt).state_hash == state_progress.load(survivor).state_hash
    assert rebuilt.scan(b"sum/", b"sum0") == survivor.scan(b"sum/", b"sum0")


async def test_a_job_without_outputs_writes_nothing_to_the_log() -> None:
    log, hangar = MemoryLog(), MemoryHangar()

    await feed(log, ROWS)
    await run_until(make_runner(log, hangar, 1, outputs=False), 2 * len(ROWS))
    assert log.log((REPLAYLOG, 0)).records == []
    assert {k: int(v) for k, v in hangar.scan(b"sum/", b"sum0")} == {
        b"sum/" + k.encode(): v for k, v in dict(expected(ROWS)).items()
    }


async def test_a_newer_owner_fences_the_older_one() -> None:
    log, hangar = MemoryLog(), MemoryHangar()
    await feed(log, ROWS[:5])
    older = make_runner(log, MemoryHangar(), 1)
    zombie = asyncio.create_task(older.run())
    await eventually(lambda: older.status == "running")
    await run_until(make_runner(log, hangar, 2), 10)
    await feed(log, ROWS[5:])
    with pytest.raises(ProducerFenced):
        async with asyncio.timeout(5):
            await zombie
    await run_until(make_runner(log, hangar, 3), 2 * len(ROWS))
    assert emitted(log) == expected(ROWS)


async def test_an_owner_of_an_old_epoch_stops_before_it_reads_anything() -> None:
    log = MemoryLog()
    await feed(log, ROWS[:3])
    await run_until(make_runner(log, MemoryHangar(), 7), 6)
    with pytest.raises(EpochSuperseded):
        await make_runner(log, MemoryHangar(), 6).run()


@pytest.mark.parametrize("outputs", [True, False])
async def test_a_state_that_a_later_owner_wrote_is_refused_before_anything_is_fenced(
    outputs: bool,
) -> None:
    log, hangar = MemoryLog(), MemoryHangar()
    await feed(log, ROWS[:3])
    await run_until(make_runner(log, hangar, 7, outputs=outputs), 6)
    written = list(log.log((REPLAYLOG, 0)).records)
    with pytest.raises(EpochSuperseded, match="epoch 7, which is later than ours, 6"):
        await make_runner(log, hangar, 6, outputs=outputs).run()
    assert log.log((REPLAYLOG, 0)).records == written
    await run_until(make_runner(log, hangar, 8, outputs=outputs), 6)


async def test_a_replay_with_different_mutations_is_refused() -> None:
    log = MemoryLog()
    await feed(log, ROWS[:3])
    await run_until(make_runner(log, MemoryHangar(), 1), 6)

    class Drifted(CountingStep):
        def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
            return super().apply(reads, source, batch.with_columns(pl.col("value") + 1))

    drifted = Runner(
        make_job(),
        0,
        Epoch(2),
        JobLogic(Drifted(), None, 1, None),
        MemoryHangar(),
        MemoryBroker(log),
        InlinePool(),
        LIMITS,
    )
    with pytest.raises(ReplayMismatch, match="older snapshot"):
        await drifted.run()


async def test_a_different_replay_is_accepted_on_an_operators_order_and_emits_nothing() -> None:
    log = MemoryLog()
    await feed(log, ROWS[:3])
    await run_until(make_runner(log, MemoryHangar(), 1), 6)
    before = emitted(log)

    class Upgraded(CountingStep):
        """Another version of the step: it counts twice."""

        def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
            return super().apply(reads, source, batch.with_columns(pl.col("value") * 2))

    def upgraded(epoch: int, hangar: MemoryHangar) -> Runner:
        logic = JobLogic(Upgraded(), None, 1, None)
        broker = MemoryBroker(log)
        return Runner(make_job(), 0, Epoch(epoch), logic, hangar, broker, InlinePool(), LIMITS)

    hangar = MemoryHangar()
    rebuilt = upgraded(2, hangar)
    rebuilt.trust_outputs = True
    await run_until(rebuilt, 6)
    assert emitted(log) == before, "the outputs stay as they were committed"
    assert {key: int(value) for key, value in hangar.scan(b"sum/", b"sum0")} == {
        b"sum/" + key.encode(): 2 * value for key, value in dict(expected(ROWS[:3])).items()
    }
    await run_until(upgraded(3, hangar), 6)  # from its own state it needs no order


async def test_an_iteration_has_a_bounded_number_of_rows() -> None:
    log = MemoryLog()
    await feed(log, ROWS)
    broker = MemoryBroker(log)
    logic = JobLogic(CountingStep(), None, 1, None)
    limits = RunnerLimits(2_000_000, "test", iteration_rows=3)
    runner = Runner(make_job(), 0, Epoch(1), logic, MemoryHangar(), broker, InlinePool(), limits)
    await run_until(runner, 2 * len(ROWS))
    written = [markers.decode_marker(record.value) for record in log.log((REPLAYLOG, 0)).records]
    spans = [m.ranges[0] for m in written if isinstance(m, markers.IterationMarker)]
    assert all(span.next - span.first <= 2 * 3 for span in spans), "a row has two offsets"
    assert len(spans) >= len(ROWS) / 3
    assert emitted(log) == expected(ROWS)


async def test_a_busy_store_delays_an_iteration_and_loses_nothing() -> None:
    log = MemoryLog()
    await feed(log, ROWS)

    class BusyHangar(MemoryHangar):
        refusals = 0

        def write(self, batch: WriteBatch) -> None:
            BusyHangar.refusals += 1
            if BusyHangar.refusals % 3:
                raise HangarBusy("it writes files")
            super().write(batch)

    hangar = BusyHangar()
    runner = make_runner(log, hangar, 1)
    await run_until(runner, 2 * len(ROWS))
    assert emitted(log) == expected(ROWS)
    assert state_progress.load(hangar) == runner.progress


@pytest.mark.parametrize("outputs", [True, False])
async def test_a_runner_that_needs_deleted_records_names_them_and_skips_nothing(
    outputs: bool,
) -> None:
    log, hangar = MemoryLog(), MemoryHangar()
    await feed(log, ROWS)
    log.truncate((SOURCE, 0), Offset(6))
    runner = make_runner(log, hangar, 1, outputs=outputs)
    with pytest.raises(
        LogTruncated,
        match=r"a job \(job\[0\]\).*source\[0\] begins at 6: its records from 0 to 5 are deleted"
        r".*new version",
    ):
        await runner.run()
    assert runner.status != "running"
    assert emitted(log) == []


async def test_a_state_ahead_of_its_log_is_refused() -> None:
    log, hangar = MemoryLog(), MemoryHangar()
    await feed(log, ROWS)
    await run_until(make_runner(log, hangar, 1), 2 * len(ROWS))
    with pytest.raises(StateAheadOfLog, match="another log"):
        await make_runner(MemoryLog(), hangar, 2).run()


def _is_running(runner: Runner) -> bool:
    return runner.status == "running"


async def test_a_runner_whose_state_is_discarded_ends_with_the_reason_unless_cancelled() -> None:
    log = MemoryLog()
    for cancelled in (False, True):
        runner = make_runner(log, MemoryHangar(), 1)
        task = asyncio.create_task(runner.run())
        await eventually(partial(_is_running, runner))
        runner.discard_state("a block is damaged")
        if cancelled:
            task.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else StateDiscarded):
            await task


@pytest.mark.parametrize("outputs", [True, False])
async def test_persisting_offsets_stores_skipped_records_and_changes_nothing_else(
    outputs: bool,
) -> None:
    log, hangar = MemoryLog(), MemoryHangar()
    await feed(log, ROWS[:3])
    runner = make_runner(log, hangar, 1, outputs=outputs)
    task = asyncio.create_task(runner.run())
    await eventually(lambda: not runner.behind({SOURCE: Offset(6)}))
    await MemoryProducer(log, "other").commit(
        [OutgoingRecord(SOURCE, 0, b"7", (("c", b"watermark"),))]
    )
    await eventually(lambda: not runner.behind({SOURCE: Offset(8)}))
    before = runner.progress
    assert before.offsets[SOURCE] == 6, "an unused control record needs no iteration"
    assert runner.persist_offsets() == dataclasses.replace(before, offsets={SOURCE: Offset(8)})
    assert state_progress.load(hangar) == runner.progress
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    log.truncate((SOURCE, 0), Offset(8))
    await feed(log, ROWS[3:])
    await run_until(make_runner(log, hangar, 2, outputs=outputs), 2 * len(ROWS) + 2)
    assert emitted(log) == (expected(ROWS) if outputs else [])


async def test_every_iteration_leaves_a_marker_with_its_range() -> None:
    log = MemoryLog()
    await feed(log, ROWS)
    await run_until(make_runner(log, MemoryHangar(), 1), 2 * len(ROWS))
    found = [markers.decode_marker(r.value) for r in log.log((REPLAYLOG, 0)).records]
    assert isinstance(found[0], markers.EpochMarker)
    iterations = [m for m in found if isinstance(m, markers.IterationMarker)]
    assert [m.iteration for m in iterations] == list(range(1, len(iterations) + 1))
    covered = [r for m in iterations for r in m.ranges]
    assert all(a.next == b.first for a, b in pairwise(covered))
    assert (covered[0].first, covered[-1].next) == (0, 2 * len(ROWS))


@pytest.mark.parametrize("seed", range(40))
async def test_each_row_counts_once_whichever_commit_fails_and_whichever_state_survives(
    seed: int,
) -> None:
    seeded = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    log, hangar, epoch = MemoryLog(), MemoryHangar(), 0
    await feed(log, ROWS)
    for _ in range(200):
        epoch += 1
        if seeded.random() < 0.2:
            hangar = MemoryHangar()  # the disk is lost with the process
        try:
            await run_until(
                make_runner(log, hangar, epoch, broker=FaultyBroker(log, seeded)), 2 * len(ROWS)
            )
            break
        except (ProcessDied, TransactionOutcomeUnknown):
            continue
    else:
        pytest.fail("no attempt reached the end")
    assert emitted(log) == expected(ROWS)
    fresh = MemoryHangar()
    await run_until(make_runner(log, fresh, epoch + 1), 2 * len(ROWS))
    assert state_progress.load(fresh).state_hash == state_progress.load(hangar).state_hash


def _has_value(records: Sequence[Record], value: int) -> bool:
    return any(decode(record.value)["value"][0] == value for record in records)


class WatermarkEmittingStep(CountingStep):
    """A step with windows: it emits the watermark whenever it grows."""

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        return Outcome(super().apply(reads, source, batch).puts)

    def advance(self, reads: StateReader, watermark: int) -> Outcome:
        (before,) = reads.get_many([b"watermark"])
        (total,) = reads.get_many([b"sum/a"])
        if before is not None and int(before) >= watermark:
            return Outcome()
        row = pl.DataFrame(
            {"key": ["watermark"], "value": [watermark], "at": [datetime.fromtimestamp(0, UTC)]}
        ).with_columns(
            __pos=pl.lit(b"0" * 14), __sign=pl.lit(1, pl.Int8), __tombstone=pl.lit(False)
        )
        return Outcome(
            {b"watermark": b"%d" % watermark, b"seen": total or b""}, emits=(OutputBatch(0, row),)
        )


async def test_every_partition_gets_the_watermark_and_windows_close_by_it() -> None:
    log = MemoryLog()
    start = datetime(2026, 1, 1, tzinfo=UTC)

    producer = MemoryProducer(log, "ingest")
    for number, minutes in enumerate((5, 9, 7)):
        await producer.commit(
            [
                OutgoingRecord(
                    SOURCE, 0, encoded_row(number, "a", 1, start + timedelta(minutes=minutes))
                )
            ]
        )
    same = spec.MapSpec((SCHEMA,), ((),), SCHEMA)
    mapped = dataclasses.replace(
        make_job(), step=same, partitions=3, outputs=(Output(TARGET, ("key",), watermark=True),)
    )
    copying = JobLogic(build(same), None, 1, None)
    await run_until(
        Runner(
            mapped,
            0,
            Epoch(1),
            copying,
            MemoryHangar(),
            MemoryBroker(log),
            InlinePool(),
            RunnerLimits(1, "test"),
        ),
        6,
    )
    micros = [int((start + timedelta(minutes=m)).timestamp() * 1e6) for m in (5, 9)]
    received = {
        part: [
            int.from_bytes(r.value[1:], "big") for r in log.log((TARGET, part)).records if r.control
        ]
        for part in range(3)
    }
    assert received == dict.fromkeys(range(3), micros), "a smaller time is not written"

    final = TopicName("final")
    closing = dataclasses.replace(
        make_job(),
        id=JobId("closing"),
        inputs=(TARGET,),
        outputs=(Output(final, ()),),
        partitions=3,
    )
    step = WatermarkEmittingStep()
    for part in range(3):
        runner = Runner(
            closing,
            part,
            Epoch(1),
            JobLogic(step, step, 1, None),
            MemoryHangar(),
            MemoryBroker(log),
            InlinePool(),
            LIMITS,
        )
        task = asyncio.create_task(runner.run())
        records = log.log((final, part)).records
        await eventually(partial(_has_value, records, micros[1]))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
