"""Measure rows per CPU-second of the history writer: from topic messages to Parquet on S3.

The history writer runs as the launcher runs it, in a process of its own with a database and a
bucket of its own, on the platform's Kafka, Postgres and S3. It gets the same work twice: the first
pass includes Spark's start, the second is the figure. Then nothing arrives for a while, and then
one small message per partition.

The peer in the same run is plain Structured Streaming: the same rows as JSON, one message each (its
format), with `availableNow` into Parquet files and a checkpoint on the local disk. It does not
write to S3 and keeps no rows about its files; its second run counts as well. A CPU-second is one of
the process and its children; those of broker and S3 are not counted.

    python -m benchmarks.history
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import psycopg
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from benchmarks.micro_batches import session
from fennel_core.apps.local.services import process_env
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.connections import migrate, s3
from fennel_core.connections.kafka import client_config, producer_config
from fennel_core.connections.postgres import connect, pool
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Field, Float, Int, Str
from fennel_core.vocab.ids import DatasetName, TopicName, WorkspaceId
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import FORMAT_HEADER, encode, with_meta

SCHEMA = Schema((Field("user", Int()),), (Field("amount", Float()), Field("city", Str())), "at")
WORKSPACE = WorkspaceId("bench")
DATASETS, PARTITIONS = 2, 4
ROWS_PER_MESSAGE = 5_000
CITIES = ("Rome", "Oslo", "Bonn")
START_S = 1_767_225_600
LAST_S = 600.0


@dataclass(frozen=True, slots=True)
class Spent:
    """What a piece of work took; CPU in seconds of one core."""

    rows: int
    cpu_s: float
    wall_s: float

    @property
    def rate(self) -> float:
        return self.rows / self.cpu_s


def batches(rows: int, per_message: int, seed: int) -> list[pa.Table]:
    """`rows` rows as tables of `per_message`."""
    draw = np.random.default_rng(seed)
    made = []
    for first in range(0, rows, per_message):
        count = min(per_message, rows - first)
        at = pa.array((START_S + first + np.arange(count)) * 1_000_000).cast(
            pa.timestamp("us", "UTC")
        )
        columns = {
            "user": draw.integers(0, 100_000, count),
            "amount": draw.random(count),
            "city": draw.choice(CITIES, count),
            "at": at,
        }
        made.append(pa.table(columns).cast(SCHEMA.arrow()))
    return made


def cpu_s(process: psutil.Process) -> float:
    """Of a process and all that it has started, also of those that have ended."""
    family = [process, *process.children(recursive=True)]
    return float(
        sum(sum(each.cpu_times()[:4]) for each in family)
    )  # user, system, and both of children that were waited for


class Writer:
    """The history writer on topics of its own. `rows` were sent so far."""

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[TopicName],
        files: PostgresHistoryFiles,
        started: subprocess.Popen[bytes],
    ) -> None:
        self._settings, self._topics, self._files, self._started = settings, topics, files, started
        self.process = psutil.Process(started.pid)
        self.rows = 0

    async def roll(self, rows: int, per_message: int = ROWS_PER_MESSAGE) -> Spent:
        """Send so many rows to each partition; what it takes until all are in history."""
        before = cpu_s(self.process)
        producer = Producer(producer_config(self._settings, f"bench-history-{time.time_ns()}"))
        producer.init_transactions(30)
        producer.begin_transaction()
        for topic in self._topics:
            for part in range(PARTITIONS):
                for number, table in enumerate(batches(rows, per_message, part)):
                    value = encode(with_meta(table, stamp(Hlc(number), 0, table.num_rows)))
                    producer.produce(topic, value, partition=part, headers=[FORMAT_HEADER])
                    producer.poll(0)
        producer.commit_transaction(60)
        sent = rows * len(self._topics) * PARTITIONS
        self.rows += sent
        begun = time.perf_counter()
        while (
            there := sum(total.rows for total in (await self._files.totals()).values())
        ) < self.rows:
            assert self._started.poll() is None, "the history writer has ended"
            assert time.perf_counter() - begun < LAST_S, (
                f"{there} of {self.rows} rows are in history"
            )
            await asyncio.sleep(0.1)
        return Spent(sent, cpu_s(self.process) - before, time.perf_counter() - begun)


@asynccontextmanager
async def writer(base: Settings, trigger_s: float) -> AsyncIterator[Writer]:
    """A history writer, until the end of the block; what it made goes with it."""
    name = f"bench_history_{time.time_ns() // 1_000_000}"
    dsn = base.postgres_dsn.get_secret_value()
    database = make_conninfo(dsn, dbname=name)
    topics = [TopicName(f"{name}.topic.{number}.1") for number in range(DATASETS)]
    admin = AdminClient(client_config(base))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with tempfile.TemporaryDirectory(prefix="fennel-bench-") as folder:
        changed = {
            "postgres_dsn": SecretStr(database),
            "s3_bucket": name.replace("_", "-"),
            "data_dir": Path(folder),
        }
        settings = base.model_copy(update=changed)
        try:
            with connect(database, name="bench") as connection:
                migrate.apply(connection, migrate.read())
            s3.ensure_bucket(s3.client(settings), settings.s3_bucket)
            for made in admin.create_topics(
                [NewTopic(topic, PARTITIONS, 1) for topic in topics]
            ).values():
                made.result(30)
            async with pool(database, name="bench", size=2) as connections:
                async with connections.connection() as connection:
                    await _serve(connection, topics)
                process = _started(settings, Path(folder), trigger_s)
                try:
                    yield Writer(settings, topics, PostgresHistoryFiles(connections), process)
                finally:
                    process.terminate()
                    process.wait(60)
        finally:
            admin.delete_topics(topics)
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(
                    sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
                )


async def _serve(connection: psycopg.AsyncConnection, topics: Sequence[TopicName]) -> None:
    """A branch that serves a dataset on each topic: that is how the writer knows what to roll
    up.
    """
    views = tuple(
        DatasetView(DatasetName(f"D{number}"), 1, SCHEMA, topic, None, False, True, (), True)
        for number, topic in enumerate(topics)
    )
    catalog = stored_names.dumps(Catalog(WORKSPACE, views, (), (), PARTITIONS))
    await connection.execute("INSERT INTO workspace (name) VALUES (%s)", (WORKSPACE,))
    await connection.execute(
        "INSERT INTO commit (id, workspace, branch, state, digest, request, options, catalog)"
        " VALUES ('c', %s, 'main', 'finished', '', '', '{}', %s)",
        (WORKSPACE, catalog),
    )
    await connection.execute(
        "INSERT INTO branch (workspace, name, target, serving) VALUES (%s, 'main', 'c', 'c')",
        (WORKSPACE,),
    )


def _started(settings: Settings, folder: Path, trigger_s: float) -> subprocess.Popen[bytes]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    changed = {"history_port": port, "history_trigger_s": trigger_s, "history_max_wait_s": 0.1}
    environment = {**os.environ, **process_env(settings.model_copy(update=changed))}
    with (folder / "history.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fennel_core.apps.history"],
            env=environment,
            stdout=log,
            stderr=log,
        )


def peer(settings: Settings, rows: int) -> list[Spent]:
    """Two runs of plain Structured Streaming over as many JSON rows."""
    spark = session(settings.jars_dir / "spark")
    admin = AdminClient(client_config(settings))
    process = psutil.Process()
    spent = []
    with tempfile.TemporaryDirectory(prefix="fennel-bench-") as folder:
        for number in range(2):
            topic = f"bench-peer-{time.time_ns() // 1_000_000}"
            for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
                made.result(30)
            producer = Producer(
                {**client_config(settings), "queue.buffering.max.messages": 1_000_000}
            )
            for table in batches(rows, ROWS_PER_MESSAGE, number):
                for row in table.to_pylist():
                    producer.produce(
                        topic, json.dumps(row | {"at": row["at"].isoformat()}).encode()
                    )
                producer.poll(0)
            producer.flush(120)
            before, begun = cpu_s(process), time.perf_counter()
            read = (
                spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", settings.kafka_bootstrap)
                .option("subscribe", topic)
            )
            text = (
                read.option("startingOffsets", "earliest")
                .load()
                .selectExpr("cast(value as string) as text")
            )
            parsed = text.selectExpr(
                "from_json(text, 'user bigint, amount double, city string, at timestamp') as row"
            ).select("row.*")
            query = parsed.writeStream.format("parquet").option(
                "checkpointLocation", f"{folder}/checkpoint-{number}"
            )
            query.trigger(availableNow=True).start(f"{folder}/rows-{number}").awaitTermination()
            assert spark.read.parquet(f"{folder}/rows-{number}").count() == rows, (
                "the peer lost rows"
            )
            spent.append(Spent(rows, cpu_s(process) - before, time.perf_counter() - begun))
            admin.delete_topics([topic])
    spark.stop()
    return spent


async def measured(chosen: argparse.Namespace, settings: Settings) -> dict[str, float]:
    async with writer(settings, chosen.trigger) as ours:
        each = chosen.rows // (DATASETS * PARTITIONS)
        first = await ours.roll(each)
        second = await ours.roll(each)
        await asyncio.sleep(2 * chosen.trigger)
        before, begun = cpu_s(ours.process), time.perf_counter()
        await asyncio.sleep(chosen.idle_seconds)
        idle = (cpu_s(ours.process) - before) / (time.perf_counter() - begun)
        trickle = await ours.roll(10, 10)
    found = {
        "first_rows_per_cpu_s": first.rate,
        "rows_per_cpu_s": second.rate,
        "rows_per_s": second.rows / second.wall_s,
    }
    return {**found, "idle_cores": idle, "trickle_cpu_s": trickle.cpu_s}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400_000, help="rows of a round")
    parser.add_argument("--trigger", type=float, default=10.0, help="FENNEL_HISTORY_TRIGGER_S, s")
    parser.add_argument("--idle-seconds", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    settings = Settings(_env_file=Settings().data_dir / "env")  # type: ignore[call-arg]  # pydantic-settings takes it at run time
    found = asyncio.run(measured(chosen, settings))
    plain = peer(settings, chosen.rows)
    found |= {
        "peer_rows_per_cpu_s": plain[1].rate,
        "ratio": found["rows_per_cpu_s"] / plain[1].rate,
    }
    print(f"\n{'rows per CPU-second':<34}{'first round':>14}{'second':>12}")
    print(
        f"{'history writer, topic to S3':<34}"
        f"{found['first_rows_per_cpu_s']:>14,.0f}{found['rows_per_cpu_s']:>12,.0f}"
    )
    print(
        f"{'Structured Streaming, JSON to disk':<34}{plain[0].rate:>14,.0f}{plain[1].rate:>12,.0f}"
    )
    print(f"{'ratio':<48}{found['ratio']:>12.1f}")
    print(
        f"idle: {100 * found['idle_cores']:.1f}% of a core; {DATASETS * PARTITIONS} "
        f"small files: {found['trickle_cpu_s']:.2f} CPU-seconds"
    )
    print(f"load average {psutil.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
