"""The program that maintains history, with real Spark, S3, Kafka and Postgres."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from pathlib import Path

import polars as pl
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.connections import offsets, s3
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.kafka import client_config
from fennel_core.connections.object_store import ObjectStore
from fennel_core.connections.postgres import pool
from fennel_core.history import parquet
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.roll import object_key
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import (
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
)
from tests.support.erased_dataset import ACCOUNTS, CLICKS, HISTORY_US, accept, commit_dataset, erase
from tests.support.history_world import LAYOUT, TOPIC, batch
from tests.support.s3 import S3Server

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "fennel_core" / "apps" / "spark_jobs" / "history_maintenance.py"
PARTITIONS = 2
FILES = 12
LOG_STARTS = (12, 6)
"""Where Kafka's log begins: rows of later records stay in history for now."""
ERASED = 3
OTHER = TopicName("w.topic.broken.2")


def environment(
    server: S3Server, kafka: Settings, dsn: str, data: Path, bucket: str
) -> dict[str, str]:
    return {
        "FENNEL_POSTGRES_DSN": dsn,
        "FENNEL_S3_ENDPOINT": server.s3_endpoint,
        "FENNEL_S3_REGION": server.s3_region,
        "FENNEL_S3_ACCESS_KEY": server.s3_access_key,
        "FENNEL_S3_SECRET_KEY": server.s3_secret_key.get_secret_value(),
        "FENNEL_S3_BUCKET": bucket,
        "FENNEL_KAFKA_BOOTSTRAP": kafka.kafka_bootstrap,
        "FENNEL_KAFKA_SECURITY": kafka.kafka_security,
        "FENNEL_KAFKA_USER": kafka.kafka_user,
        "FENNEL_KAFKA_PASSWORD": kafka.kafka_password.get_secret_value(),
        "FENNEL_DATA_DIR": str(data),
        "FENNEL_HISTORY_RETENTION": "true",
    }


async def maintained(variables: dict[str, str], removed: int, expired: int) -> None:
    """Run the program as Airflow's operator does; it fails, because one merge is refused."""
    submit = ("spark-submit", "--master", "local[1]", "--conf", "spark.log.level=WARN")
    status, out = await output_of(variables, *submit, str(PROGRAM))
    assert status == 1, out
    expected = (
        f"1 files or merges were refused, 4 were made and {removed} rows of erased keys and "
        f"{expired} expired ones removed"
    )
    assert expected in out, out


async def output_of(variables: dict[str, str], program: str, *args: str) -> tuple[int | None, str]:
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        str(tools / program),
        *args,
        env={**os.environ, **variables, "PYTHONPATH": str(ROOT), "PATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()[-6000:]


async def dry_run(variables: dict[str, str], removed: int, expired: int, replaced: int) -> None:
    """Run what `fennel-core maintain-history --dry-run` does."""
    show = (
        "from fennel_core.apps.state_commands import show_removable_rows\n"
        "from fennel_core.settings.model import Settings\n"
        "show_removable_rows(Settings(), print)"
    )
    status, out = await output_of(variables, "python", "-c", show)
    assert status == 0, out
    for topic, rows in ((CLICKS, expired), (ACCOUNTS, replaced)):
        line = f"{topic}: {rows} rows older than `history` would leave 3 files; 1 files"
        assert line in out, out
    assert f"rows of erased keys removed: {removed} from 18 of 18 files" in out, out


def write_log(settings: Settings) -> None:
    """Create the topics; the log of the first begins at `LOG_STARTS`, those of the others at 3."""
    admin = AdminClient(client_config(settings))
    for topic in (TOPIC, CLICKS, ACCOUNTS):
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer(client_config(settings))
    for part in range(PARTITIONS):
        for _ in range(FILES):
            producer.produce(TOPIC, b"a record", partition=part)
            producer.produce(CLICKS, b"a record", partition=part)
            producer.produce(ACCOUNTS, b"a record", partition=part)
    assert producer.flush(30) == 0
    starts = {(TOPIC, PartitionIndex(n)): Offset(at) for n, at in enumerate(LOG_STARTS)}
    starts |= {(topic, PartitionIndex(0)): Offset(3) for topic in (CLICKS, ACCOUNTS)}
    offsets.delete_before(admin, starts, 30)


async def write_files(files: PostgresHistoryFiles, objects: ObjectStore) -> list[pl.DataFrame]:
    """Store a file per record, and files whose objects are missing; return the rows."""
    written = []
    for part in range(PARTITIONS):
        frames = []
        for n in range(FILES):
            frame = parquet.file_frame([(Offset(n), batch(100 * n, 20))], LAYOUT.keys)
            body = parquet.encode_file(frame)
            key = object_key(TOPIC, PartitionIndex(part), Offset(n), uuid.uuid4().hex)
            await objects.put(key, body)
            place = (TOPIC, PartitionIndex(part), Offset(n), Offset(n + 1))
            times = Micros(100 * n), Micros(100 * n + 19)
            assert await files.add(HistoryFile(*place, key, 20, len(body), *times))
            frames.append(frame)
        written.append(pl.concat(frames).sort(parquet.GROUP, parquet.OFFSET, maintain_order=True))
    for n in range(3):
        place = (OTHER, PartitionIndex(0), Offset(n), Offset(n + 1))
        lost = HistoryFile(*place, f"history/{OTHER}/0/{n}", 1, 10, Micros(0), Micros(0))
        assert await files.add(lost)
    return written


async def write_clicks(files: PostgresHistoryFiles, objects: ObjectStore, now: Micros) -> None:
    """Store four files of 20 rows; every second row is of 1970, the others are of now."""
    old = pl.col("k") % 2 == 0
    time = pl.when(old).then(pl.lit(5)).otherwise(pl.lit(now)).cast(pl.Datetime("us", "UTC"))
    for n in range(4):
        frame = parquet.file_frame([(Offset(n), batch(100 * n, 20))], ()).with_columns(at=time)
        body = parquet.encode_file(frame)
        key = object_key(CLICKS, PartitionIndex(0), Offset(n), uuid.uuid4().hex)
        await objects.put(key, body)
        place = (CLICKS, PartitionIndex(0), Offset(n), Offset(n + 1))
        assert await files.add(HistoryFile(*place, key, 20, len(body), Micros(5), now))


async def write_accounts(files: PostgresHistoryFiles, objects: ObjectStore) -> pl.DataFrame:
    """Store four files of 20 versions of 1970, of five keys; return the rows that stay."""
    frames = []
    for n in range(4):
        frame = parquet.file_frame([(Offset(n), batch(100 * n, 20))], LAYOUT.keys)
        body = parquet.encode_file(frame)
        key = object_key(ACCOUNTS, PartitionIndex(0), Offset(n), uuid.uuid4().hex)
        await objects.put(key, body)
        place = (ACCOUNTS, PartitionIndex(0), Offset(n), Offset(n + 1))
        times = Micros(100 * n), Micros(100 * n + 19)
        assert await files.add(HistoryFile(*place, key, 20, len(body), *times))
        frames.append(frame)
    searched = pl.concat(frames[:3]).sort("at").unique("k", keep="last")
    return pl.concat([searched, frames[3]]).sort(parquet.GROUP, parquet.OFFSET, "at")


async def test_the_program_merges_small_files_and_only_rows_of_erased_keys_and_expired_ones_leave(
    s3_server: S3Server, secured_kafka: Settings, database: str, tmp_path: Path
) -> None:
    bucket = f"test-{uuid.uuid4().hex[:8]}"
    variables = environment(s3_server, secured_kafka, database, tmp_path, bucket)
    settings = Settings.model_validate(
        {name.removeprefix("FENNEL_").lower(): value for name, value in variables.items()}
    )
    s3.ensure_bucket(s3.client(settings), bucket)
    write_log(settings)
    async with pool(database, name="test", size=2) as connections:
        files = PostgresHistoryFiles(connections)
        objects = installation_objects(settings, connections)
        written = await write_files(files, objects)
        now = Micros(int((await files.now()).timestamp() * 1_000_000))
        await write_clicks(files, objects, now)
        accounts = await write_accounts(files, objects)
        await commit_dataset(connections, PARTITIONS, clicks=True)
        await accept(connections)
        await erase(connections, [ERASED])
        removed = 0
        for part, (rows, start) in enumerate(zip(written, LOG_STARTS, strict=True)):
            gone = (pl.col("k") == ERASED) & (pl.col(parquet.OFFSET) < start)
            written[part] = rows.filter(~gone)
            removed += rows.height - written[part].height
        assert removed == 4 * sum(LOG_STARTS)
        expired, replaced = 3 * 12, 3 * 20 - 5
        await dry_run(variables, removed, expired, replaced)
        assert len(await files.files(CLICKS, PartitionIndex(0))) == 4
        assert len(await files.files(ACCOUNTS, PartitionIndex(0))) == 4
        assert await files.retired() == frozenset()
        stored = [
            await objects.list_objects(f"history/{topic}/") for topic in (TOPIC, CLICKS, ACCOUNTS)
        ]
        assert sum(map(len, stored)) == PARTITIONS * FILES + 8, "nothing is written"
        await maintained(variables, removed, expired + replaced)
        (clicks,) = await files.files(CLICKS, PartitionIndex(0))
        assert (clicks.first_offset, clicks.next_offset) == (0, 4)
        assert (clicks.row_count, clicks.expired_rows, clicks.removed_rows) == (44, expired, 0)
        assert (clicks.min_ts, clicks.max_ts) == (5, now), "the last file waits"
        assert now - HISTORY_US <= clicks.expired_to <= now + 10**9 - HISTORY_US
        assert (await files.totals())[CLICKS].expired_rows == expired
        (versions,) = await files.files(ACCOUNTS, PartitionIndex(0))
        assert (versions.row_count, versions.expired_rows) == (25, replaced)
        assert 0 < versions.expired_to <= now + 10**9 - HISTORY_US
        body = await objects.get(versions.object_key)
        assert body is not None
        left = parquet.decode_file(body).sort(parquet.GROUP, parquet.OFFSET, "at")
        assert left.equals(accounts)
        for part, start in enumerate(LOG_STARTS):
            (merged,) = await files.files(TOPIC, PartitionIndex(part))
            assert (merged.first_offset, merged.next_offset) == (0, 12)
            assert (merged.row_count, merged.removed_rows) == (240 - 4 * start, 4 * start)
            assert (merged.searched_to > 0) == (start == FILES)
            assert (merged.min_ts, merged.max_ts) == (0, 1119)
            body = await objects.get(merged.object_key)
            assert body is not None
            assert parquet.decode_file(body).equals(written[part])
        assert len(await files.files(OTHER, PartitionIndex(0))) == 3, "one refusal stops no other"
        assert len(await files.retired()) == PARTITIONS * FILES + sum(LOG_STARTS) + 2 * (4 + 3)
        totals = (await files.totals())[TOPIC]
        assert (totals.files, totals.rows) == (2, 480 - removed)
