"""Backfills over real Spark, Kafka, Postgres, S3 and RocksDB: the rows of a live run."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr
from pyspark.sql import SparkSession
from rocksdict import Cache

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job, Output
from fennel_core.connections import offsets, postgres, s3
from fennel_core.connections.kafka import client_config
from fennel_core.engine import state_progress
from fennel_core.engine.backfill.driver import BackfillDriver, backfill_lane
from fennel_core.engine.backfill.manifest import PREFIX
from fennel_core.engine.backfill.queue import BackfillQueue
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.host import engine_session
from fennel_core.engine.kafka.broker import KafkaBroker
from fennel_core.engine.slot import run_slot
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.history import parquet
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.operators import spec
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.vocab.ids import (
    EngineId,
    JobId,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.vocab.keys import key_bytes, partition_of
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode, encode_frame
from fennel_core.wire import operators as wire
from tests.support.installation import own_prefix, own_state
from tests.support.log_ranges import read_range
from tests.support.polling import eventually

pytestmark = pytest.mark.platform
PARTITIONS, MESSAGES, TAIL, KEYS = 4, 27, 2, 8_000
ROWS = int(os.environ.get("BACKFILL_ROWS", "1000"))
"""Rows of a message; `make backfill-test` has a million in all."""
EVENTS = Schema((), (Field("card", Int()), Field("cents", Int())), "at")
TOTALS = Schema((Field("card", Int()),), (Field("n", Int()), Field("s", Int())), "at")
SPECS = (
    wire.Count("n", wire.Forever(), None, False, False, False),
    wire.Sum("s", wire.Sliding(3_600_000_000), "cents"),
)
NEVER = 10**12


@dataclass
class Bench:
    settings: Settings
    broker: KafkaBroker
    pool: postgres.Pool
    topic: TopicName
    copies: dict[str, TopicName]
    logs: dict[str, TopicName]
    messages: int = MESSAGES
    rows: int = ROWS

    def job(self, name: str, path: str) -> Job:
        terminal = spec.AggregateSpec(EVENTS, ("card",), SPECS, None, True, TOTALS)
        step = terminal if name == "aggregate" else spec.MapSpec((EVENTS,), ((),), EVENTS)
        outputs = () if name == "aggregate" else (Output(self.copies[path], ("card",)),)
        dead = TopicName(f"{self.topic}.dead")
        return Job(
            JobId(f"{self.topic}.{name}.{path}"),
            WorkspaceId("w"),
            (self.topic,),
            outputs,
            step,
            self.logs[path],
            dead,
            PARTITIONS,
            name,
        )

    async def register(self, job: Job) -> None:
        async with self.pool.connection() as connection:
            await connection.execute(
                "INSERT INTO job (id, workspace, spec) VALUES (%s, 'w', %s)",
                (job.id, stored_names.dumps(job)),
            )
            await connection.execute(
                "INSERT INTO job_partition (job_id, part) SELECT %s, p FROM "
                "generate_series(0, 3) p",
                (job.id,),
            )

    async def caught_up(self, job: Job) -> None:
        question = (
            "SELECT count(*) FROM job_partition WHERE job_id = %s AND status = 'running' "
            "AND lag = 0"
        )

        async def complete() -> bool:
            async with self.pool.connection() as connection:
                row = await (await connection.execute(question, (job.id,))).fetchone()
            return bool(row == (PARTITIONS,))

        await eventually(complete, within_s=120, interval_s=0.1, what=f"{job.id} is caught up")

    def state(self, job: Job) -> list[state_progress.StateProgress]:
        found = []
        for part in range(PARTITIONS):
            states = (own_state(self.settings) / job.id).glob(f"state-{part}-*")
            newest = max(states, key=lambda state: int(state.name.rpartition("-")[2]))
            hangar = RocksHangar(newest, Cache(1 << 20))
            found.append(state_progress.load(hangar))
            hangar.close()
        return found

    async def written(self, path: str, part: int) -> pl.DataFrame:
        records = await read_range(self.broker, (self.copies[path], part), Offset(0))
        return pl.concat([decode(r.value) for r in records]).sort("__pos")


def batches(bench: Bench, part: int) -> Iterator[pl.DataFrame]:
    random = np.random.default_rng(part)
    owner = np.array(
        [
            partition_of(key, PARTITIONS)
            for key in key_bytes(pl.DataFrame({"card": range(KEYS)}), ["card"])
        ]
    )
    cards, rows = np.flatnonzero(owner == part), bench.rows
    for number in range(bench.messages):
        at = 1_760_000_000_000_000 + random.integers(0, 86_400_000_000, rows)
        frame = pl.DataFrame(
            {
                "card": random.choice(cards, rows),
                "cents": random.integers(0, 10_000, rows),
                "at": at,
            }
        )
        positions = pl.from_arrow(stamp(Hlc(1 + number), part, rows))
        assert isinstance(positions, pl.Series)
        yield frame.cast({"at": pl.Datetime("us", "UTC")}).with_columns(
            positions.alias("__pos"),
            pl.lit(1, pl.Int8).alias("__sign"),
            pl.lit(False).alias("__tombstone"),
        )


async def fill(bench: Bench) -> int:
    """Write the topic, and all but its tail to history; return the number of rows in history."""
    files, client = PostgresHistoryFiles(bench.pool), s3.client(bench.settings)
    s3.ensure_bucket(client, bench.settings.s3_bucket)
    producer = await bench.broker.producer(f"{bench.topic}-fill")
    for part in range(PARTITIONS):
        values = [encode_frame(frame) for frame in batches(bench, part)]
        for value in values:
            await producer.commit([OutgoingRecord(bench.topic, part, value)])
        kept = [
            (r.offset, r.value)
            for r in await read_range(bench.broker, (bench.topic, part), Offset(0))
        ][: bench.messages - TAIL]
        first = Offset(0)
        for start in range(0, len(kept), 10):
            cut = kept[start : start + 10]
            frame = parquet.file_frame(cut, ("card",))
            body, key, following = (
                parquet.encode_file(frame),
                f"history/{bench.topic}/{part}-{start}",
                Offset(cut[-1][0] + 1),
            )
            assert s3.put_new(
                client, bench.settings.s3_bucket, own_prefix(bench.settings) + key, body
            )
            times = frame["at"].to_physical()
            times = (Micros(int(times.min())), Micros(int(times.max())))  # type: ignore[arg-type,assignment]  # integers
            file = HistoryFile(
                bench.topic,
                PartitionIndex(part),
                first,
                following,
                key,
                len(frame),
                len(body),
                *times,
            )
            assert await files.add(file)
            first = following
    await producer.close()
    return PARTITIONS * (bench.messages - TAIL) * bench.rows


@pytest.fixture
async def bench(infra: None, database: str, tmp_path: Path) -> AsyncIterator[Bench]:
    run = uuid.uuid4().hex[:8]
    settings = Settings().model_copy(
        update={
            "postgres_dsn": SecretStr(database),
            "data_dir": tmp_path,
            "run_dir": Path("/tmp") / f"fc-{run}",  # noqa: S108  # a path of the machine of the test
            "s3_prefix": f"test-{run}/",
            "supervisor_poll_ms": 300,
        }
    )
    names = {path: TopicName(f"backfill-{run}.copy-{path}") for path in ("live", "backfill")}
    topic, logs = (
        TopicName(f"backfill-{run}.source"),
        {path: TopicName(f"backfill-{run}.log-{path}") for path in ("live", "backfill")},
    )
    topics = [topic, *names.values(), *logs.values()]
    admin = AdminClient(client_config(settings))
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in topics]).values():
        created.result(10)
    broker = KafkaBroker(settings)
    async with postgres.pool(database, name="test", size=2) as pool:
        yield Bench(settings, broker, pool, topic, names, logs)
    await broker.close()
    client = s3.client(settings)
    for key in stored_keys(client, settings.s3_bucket, settings.s3_prefix):
        s3.delete(client, settings.s3_bucket, key)
    admin.delete_topics(topics)


@asynccontextmanager
async def slot(bench: Bench, from_rows: int) -> AsyncIterator[None]:
    settings = bench.settings.model_copy(update={"backfill_from_rows": from_rows})
    task = asyncio.create_task(run_slot(settings, EngineId("e"), 0))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def spark_driver(bench: Bench) -> AsyncIterator[SparkSession]:
    environment = {
        name: value for name, value in os.environ.items() if name.startswith("FENNEL_")
    } | {"POLARS_MAX_THREADS": "1"}
    environment["FENNEL_DATA_DIR"] = str(bench.settings.data_dir)
    spark = await asyncio.to_thread(engine_session, bench.settings, EngineId("e"))
    task = asyncio.create_task(
        backfill_lane(spark.sparkContext, bench.settings, environment, bench.pool).run()
    )
    yield spark
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(spark.stop)


@pytest.mark.long
async def test_a_spark_batch_gives_the_state_and_content_of_the_live_path(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = await fill(bench)
    assert rows >= 100 * ROWS
    for name in ("aggregate", "map"):
        await bench.register(bench.job(name, "live"))
    async with slot(bench, NEVER):
        for name in ("aggregate", "map"):
            await bench.caught_up(bench.job(name, "live"))
    for name in ("aggregate", "map"):
        await bench.register(bench.job(name, "backfill"))
    async with spark_driver(bench), slot(bench, rows // 10):
        for name in ("aggregate", "map"):
            await bench.caught_up(bench.job(name, "backfill"))
    told = [line for line in capsys.readouterr().err.splitlines() if "backfill" in line]
    staged = [json.loads(line) for line in told if '"backfill staged"' in line]
    assert {(line["job"], line["part"]): line["rows"] for line in staged} == {
        (bench.job(name, "backfill").id, part): rows // PARTITIONS
        for name in ("aggregate", "map")
        for part in range(PARTITIONS)
    }, told
    live, backfilled = (
        bench.state(bench.job("aggregate", "live")),
        bench.state(bench.job("aggregate", "backfill")),
    )
    assert [each.state_hash for each in backfilled] == [each.state_hash for each in live]
    for part in range(PARTITIONS):
        assert (await bench.written("backfill", part)).equals(await bench.written("live", part))


async def parked(bench: Bench, job: Job) -> list[str]:
    """Wait until every partition of a job is parked; return their errors in order."""
    question = (
        "SELECT error FROM job_partition WHERE job_id = %s AND status = 'parked' ORDER BY part"
    )

    async def errors() -> list[str] | None:
        async with bench.pool.connection() as connection:
            rows = await (await connection.execute(question, (job.id,))).fetchall()
        return [str(error) for (error,) in rows] if len(rows) == PARTITIONS else None

    found: list[str] = await eventually(errors, within_s=60, interval_s=0.05)
    return found


def forget(bench: Bench, before: Mapping[offsets.Source, Offset]) -> None:
    """Delete the records of these logs below the given offsets, as retention does."""
    offsets.delete_before(AdminClient(client_config(bench.settings)), before, 30)


@pytest.mark.long
async def test_new_jobs_over_a_truncated_log_wait_for_a_batch_and_equal_a_recompute(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennel_core.engine.backfill.client.CLAIM_TIMEOUT_MS", 0)
    bench.messages, bench.rows = 7, 40
    await fill(bench)
    for name in ("aggregate", "map"):
        await bench.register(bench.job(name, "live"))
    async with slot(bench, NEVER):
        for name in ("aggregate", "map"):
            await bench.caught_up(bench.job(name, "live"))
    ends = await PostgresHistoryFiles(bench.pool).ends([bench.topic])
    forget(bench, {(topic, int(part)): Offset(end - 1) for (topic, part), end in ends.items()})
    for name in ("aggregate", "map"):
        await bench.register(bench.job(name, "backfill"))
    async with slot(bench, NEVER):
        for error in await parked(bench, bench.job("map", "backfill")):
            assert "needs records that only history has" in error
            assert "FENNEL_ENGINE_SPARE_SLOTS" in error
        monkeypatch.undo()
        async with spark_driver(bench):
            for name in ("aggregate", "map"):
                await bench.caught_up(bench.job(name, "backfill"))
    live, backfilled = (
        bench.state(bench.job("aggregate", "live")),
        bench.state(bench.job("aggregate", "backfill")),
    )
    assert [each.state_hash for each in backfilled] == [each.state_hash for each in live]
    for part in range(PARTITIONS):
        recomputed = pl.concat(batches(bench, part)).sort("__pos")
        assert (await bench.written("backfill", part)).select(recomputed.columns).equals(recomputed)


async def test_a_new_job_over_lost_records_parks_with_the_next_action(
    bench: Bench,
) -> None:
    bench.messages, bench.rows = 4, 10
    await fill(bench)
    ends = await PostgresHistoryFiles(bench.pool).ends([bench.topic])
    forget(bench, {(topic, int(part)): Offset(end + 1) for (topic, part), end in ends.items()})
    job = bench.job("aggregate", "backfill")
    await bench.register(job)
    async with slot(bench, 0):
        for part, error in enumerate(await parked(bench, job)):
            end = ends[bench.topic, PartitionIndex(part)]
            assert f"aggregate ({job.id}[{part}]) starts without state" in error
            assert (
                f"{bench.topic}[{part}] starts at {end + 1}: offsets 0 to {end} are "
                f"deleted, and history on S3 ends at {end}."
            ) in error
            assert "Commit the dataset that it reads under a new version" in error


def stored_keys(client: Any, bucket: str, prefix: str) -> list[str]:
    return [each.key for each in s3.list_objects(client, bucket, prefix)]


async def test_staged_objects_are_deleted_with_their_job(bench: Bench) -> None:
    client, bucket, job = (
        s3.client(bench.settings),
        bench.settings.s3_bucket,
        bench.job("aggregate", "backfill"),
    )
    s3.ensure_bucket(client, bucket)
    prefix = f"{own_prefix(bench.settings)}{PREFIX}/{job.id}/"
    assert s3.put_new(client, bucket, f"{prefix}0/x/0-0", b"chunk")
    await bench.register(job)
    queue = BackfillQueue(bench.pool)
    await queue.request(job.id, PartitionIndex(0), 1)
    driver = BackfillDriver(None, bench.settings, {}, bench.pool, queue)  # type: ignore[arg-type]  # tidying runs no Spark job
    await driver.delete_orphans()
    assert stored_keys(client, bucket, prefix) != []
    async with bench.pool.connection() as connection:
        await connection.execute("DELETE FROM job WHERE id = %s", (job.id,))
    await driver.delete_orphans()
    assert stored_keys(client, bucket, prefix) == []
    assert await queue.find(job.id, PartitionIndex(0)) is None
