"""Measure rows and bytes per second of a core from sources into datasets, and of `log`.

    kafka      JSON messages of a topic
    parquet    files on S3
    postgres   a table
    http       `log`, in requests of 50,000 rows and of one

Sources are read by the code of the platform (`ingest_spark.py`), and beside it by plain Spark,
which reads the same with Spark's connectors and writes the same Arrow messages with the same acks.
Runs alternate, each in a process of its own, and the values of both are compared. A figure is rows
per CPU-second of the application (driver, JVM, Python workers), because a machine may be shared;
broker and stores are not counted. The ratio is the median over the rounds.

    ratio_spark      plain Spark writes typed rows only. Ours always writes the raw rows, too, which
                     a dataset that comes later is computed from.
    ratio_spark_raw  plain Spark writes them, too, as JSON.

`http_rows_per_cpu_s`: rows per CPU-second of client, query server (front door), ingest, broker and
engine, until an aggregate of the rows is visible; for requests of 50,000 rows. `http_single_…`: of
one row.

On the platform of this checkout, whose own sources must not run, because they would read, too:

    export FENNEL_ORCHESTRATOR=inline
    fennel-core up --only definition --only ingest --only engine --only query --only executors
    eval "$(fennel-core env --all FENNEL_POSTGRES_DSN FENNEL_S3_SECRET_KEY FENNEL_ADMIN_TOKEN \\
        FENNEL_SECRETS_KEY_FILE)"
    python -m benchmarks.ingest --json figures.json
    python -m benchmarks.ingest kafka --rows 20000 --rounds 1     # a smoke run
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import psutil
import psycopg
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.http1 import Address, Connection
from benchmarks.ingest_spark import Spent, Work, pause, run, view_of, views_of
from benchmarks.processes import parts
from fennel_core.connections import s3
from fennel_core.connections.committed_records import committed_records, log_ends
from fennel_core.connections.kafka import client_config
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import PartitionIndex, TopicName

SOURCES = ("kafka", "parquet", "postgres")
KINDS = (*SOURCES, "http")
PEERS = ("ours", "spark", "spark_raw")
SMALL_ROWS = 2_000
LARGE_REQUEST = 50_000
SINGLE_REQUESTS = 2_000
CONNECTIONS = 16
PARTITIONS = 2
FILES = 4
CITIES = ("Amsterdam", "Berlin", "Paris", "Rome")
TABLE = """
    CREATE TABLE {} (id bigint PRIMARY KEY, "user" text NOT NULL, city text NOT NULL,
        amount double precision NOT NULL, at timestamptz NOT NULL)
"""
TARGET = 0.75


def orders(rows: int, first: int = 0) -> pl.DataFrame:
    """Return so many rows, of the last hours."""
    draw = np.random.default_rng(first + 5)
    begin_us = (time.time_ns() // 10**9 - 86_400) * 10**6
    numbers = np.arange(first, first + rows)
    return pl.DataFrame(
        {
            "id": numbers,
            "user": pl.Series(draw.integers(0, 10_000, rows)).cast(pl.String),
            "city": np.array(CITIES)[draw.integers(0, len(CITIES), rows)],
            "amount": draw.integers(0, 10_000, rows) / 100,
            "at": pl.Series(begin_us + numbers * 1000).cast(pl.Datetime("us", "UTC")),
        }
    ).with_columns(("user-" + pl.col("user")).alias("user"))


def texts_of(frame: pl.DataFrame) -> list[bytes]:
    """Return each row as JSON."""
    at = pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
    return frame.with_columns(at).write_ndjson().encode().splitlines()


# ── what is read ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Place:
    """Where the data is: names of the small and the large topic, folder and table."""

    small: str
    large: str
    bucket: str
    dsn: str


@contextmanager
def place(settings: Settings) -> Iterator[Place]:
    """Make a bucket and a database, and remove all that is in them afterwards."""
    run = f"b{uuid.uuid4().hex[:8]}"
    dsn = settings.postgres_dsn.get_secret_value()
    found = Place(f"small_{run}", f"large_{run}", f"bench-{run}", make_conninfo(dsn, dbname=run))
    client, name = s3.client(settings), sql.Identifier(run)
    s3.ensure_bucket(client, found.bucket)
    with psycopg.connect(dsn, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(name))
    try:
        yield found
    finally:
        with psycopg.connect(dsn, autocommit=True) as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=found.bucket):
            for each in page.get("Contents", []):
                client.delete_object(Bucket=found.bucket, Key=each["Key"])
        client.delete_bucket(Bucket=found.bucket)
        admin = AdminClient(client_config(settings))
        made = [name for name in admin.list_topics(timeout=10).topics if run in name]
        if made:
            for future in admin.delete_topics(made).values():
                future.result(60)


def put(settings: Settings, to: Place, kind: str, name: str, frame: pl.DataFrame) -> int:
    """Write rows where a source reads them; return their bytes there."""
    match kind:
        case "kafka":
            return put_messages(settings, name, texts_of(frame))
        case "parquet":
            return put_files(settings, to.bucket, name, frame)
        case _:
            return put_table(to.dsn, name, frame)


def put_messages(settings: Settings, topic: str, values: list[bytes]) -> int:
    create_topic(settings, topic, PARTITIONS)
    config = {"acks": "all", "linger.ms": 20, "queue.buffering.max.messages": 2_000_000}
    producer = Producer(client_config(settings) | config)
    share = -(-len(values) // PARTITIONS)
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number // share)
        producer.poll(0)
    assert producer.flush(300) == 0, "all messages are there"
    return sum(map(len, values))


def put_files(settings: Settings, bucket: str, folder: str, frame: pl.DataFrame) -> int:
    client, total = s3.client(settings), 0
    share = -(-len(frame) // FILES)
    for number, part in enumerate(frame.iter_slices(share)):
        sink = io.BytesIO()
        pq.write_table(part.to_arrow(), sink, row_group_size=50_000)
        total += len(sink.getvalue())
        client.put_object(Bucket=bucket, Key=f"{folder}/{number}.parquet", Body=sink.getvalue())
    return total


def put_table(dsn: str, name: str, frame: pl.DataFrame) -> int:
    table = sql.Identifier(name)
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute(sql.SQL(TABLE).format(table))
        copying = sql.SQL("COPY {} FROM STDIN").format(table)
        with database.cursor() as cursor, cursor.copy(copying) as copy:
            for row in frame.iter_rows():
                copy.write_row(row)
        database.execute(sql.SQL("VACUUM ANALYZE {}").format(table))
        row = database.execute("SELECT pg_table_size(%s::regclass)", (name,)).fetchone()
    assert row is not None, "a table has a size"
    return int(row[0])


def create_topic(settings: Settings, topic: str, partitions: int) -> None:
    admin = AdminClient(client_config(settings))
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)


@contextmanager
def workspace(settings: Settings, kinds: list[str], to: Place) -> Iterator[str]:
    """Yield the name of a workspace with the definitions; delete it afterwards."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    at = conninfo_to_dict(to.dsn)
    given = {
        "kinds": kinds,
        "small": to.small,
        "large": to.large,
        "bucket": to.bucket,
        "bootstrap": settings.kafka_bootstrap,
        "key": settings.s3_access_key,
        "secret": settings.s3_secret_key.get_secret_value(),
        "host": at["host"],
        "port": at["port"],
        "database": at["dbname"],
        "user": at["user"],
        "password": at.get("password", "none"),
    }
    words = [settings.query_url, f"dev-{name}"]
    program = [settings.executor_python, "-m", "benchmarks.ingest_definitions", *words]
    try:
        subprocess.run(program, input=json.dumps(given), text=True, check=True)  # noqa: S603  # a program of this benchmark, and no shell
        yield name
    finally:
        asyncio.run(_delete(settings, name))


async def _delete(settings: Settings, name: str) -> None:
    token = settings.admin_token.get_secret_value()
    connection = await Connection.open(Address.of(settings.query_url), token)
    status, answer = await connection.request("DELETE", f"/api/v1/workspaces/{name}")
    connection.close()
    if status != 200:
        print(f"workspace {name} was not deleted: {status} {answer.decode()}")


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


def rows_in(settings: Settings, topic: str) -> pl.DataFrame:
    """Return the rows of a topic of Arrow messages, by their id, without those of the platform."""
    name = TopicName(topic)
    known = AdminClient(client_config(settings)).list_topics(topic, timeout=10).topics[topic]
    ends = log_ends(settings, [(name, PartitionIndex(part)) for part in known.partitions])
    frames = [
        pl.read_ipc_stream(io.BytesIO(value))
        for _, message in committed_records(settings, ends)
        if (value := message.value()) is not None
    ]
    return pl.concat(frames).select("id", "user", "city", "amount", "at").sort("id")


def measure_source(
    settings: Settings, to: Place, kind: str, rows: int, rounds: int
) -> dict[str, float]:
    """Return the figures of a kind of source."""
    put(settings, to, kind, to.small, orders(SMALL_ROWS))
    frame = orders(rows)
    size = put(settings, to, kind, to.large, frame)
    found: dict[str, list[Spent]] = {peer: [] for peer in PEERS}
    for number in range(rounds):
        out = f"{to.large}-{kind}-{number}"
        with workspace(settings, [kind], to) as name:
            asyncio.run(pause(settings, name))
            for peer in PEERS:
                topic = f"{out}-{peer}"
                for suffix in ("", "-raw", "-small", "-small-raw"):
                    create_topic(settings, topic + suffix, 1)
                work = Work(
                    *(kind, to.small, to.large, SMALL_ROWS, rows, name, topic),
                    *(to.bucket, to.dsn),
                )
                found[peer].append(run(work, peer))
                if peer == "ours":
                    view = view_of(asyncio.run(views_of(settings, name)), kind, to.large)
                    [[binding, _]] = view.bindings.values()
                    topic = binding.topic
                assert rows_in(settings, topic).equals(frame), f"{kind}: {peer} has other rows"
                print(f"{kind}, {peer}: {found[peer][-1]}", flush=True)
    return figures_of(kind, rows, size, found)


def figures_of(kind: str, rows: int, size: int, found: dict[str, list[Spent]]) -> dict[str, float]:
    """Return the figures: ratios are of the runs of a round."""
    figures: dict[str, float] = {}
    for peer, runs in found.items():
        figures[f"{kind}_{peer}_rows_per_core_s"] = median(rows / each.cpu_s for each in runs)
        figures[f"{kind}_{peer}_bytes_per_core_s"] = median(size / each.cpu_s for each in runs)
        figures[f"{kind}_{peer}_rows_per_s"] = median(rows / each.run_s for each in runs)
    for peer in PEERS[1:]:
        pairs = list(zip(found["ours"], found[peer], strict=True))
        figures[f"{kind}_ratio_{peer}"] = median(b.cpu_s / a.cpu_s for a, b in pairs)
        figures[f"{kind}_clock_ratio_{peer}"] = median(b.run_s / a.run_s for a, b in pairs)
    return figures


# ── log ──────────────────────────────────────────────────────────────────────────────────────────

SERVICES = ("query", "ingest", "kafka", "engine driver", "engine JVM", "engine slots")


def services_cpu_s(settings: Settings) -> dict[str, float]:
    """Return the CPU time of this process (`client`) and of each service that a row passes."""
    found = {"client": time.process_time(), **dict.fromkeys(SERVICES, 0.0)}
    for name, family in parts(settings.data_dir / "pids").items():
        if name in SERVICES:
            for process in family:
                try:
                    found[name] += sum(process.cpu_times()[:2])
                except psutil.NoSuchProcess:
                    continue
    return found


async def log_all(settings: Settings, token: str, bodies: list[bytes]) -> None:
    """Send all requests, several at once, and wait until their rows are visible."""
    address, waiting = Address.of(settings.query_url), iter(bodies)

    async def send() -> None:
        connection = await Connection.open(address, token)
        for body in waiting:
            await connection.ask("POST", "/api/v1/log", body)
        connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(CONNECTIONS, len(bodies))):
            group.create_task(send())
    connection = await Connection.open(address, token)
    await connection.ask("POST", "/api/v1/barrier", b'{"timeout_s": 120}')
    connection.close()


def bodies_of(frame: pl.DataFrame, rows_each: int) -> list[bytes]:
    """Return the requests of `log` with so many rows each, as columns."""
    at = pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
    return [
        json.dumps(
            {"webhook": "bench", "endpoint": "orders", "data": part.to_dict(as_series=False)}
        ).encode()
        for part in frame.with_columns(at).iter_slices(rows_each)
    ]


async def orders_counted(settings: Settings, token: str) -> dict[str, int]:
    """Return the orders of each user that a lookup finds."""
    users = [f"user-{n}" for n in range(10_000)]
    connection = await Connection.open(Address.of(settings.query_url), token)
    body = json.dumps({"keys": [{"user": user} for user in users], "fields": ["orders"]}).encode()
    answer = json.loads(await connection.ask("POST", "/api/v1/dataset/Spent/lookup", body))
    connection.close()
    counted = zip(users, answer["data"]["orders"], strict=True)
    return {user: count for user, count in counted if count}


def measure_log(settings: Settings, to: Place, rows: int, rounds: int) -> dict[str, float]:
    """Return rows per CPU-second of requests of both sizes."""
    found: dict[str, list[float]] = {"http": [], "http_single": []}
    singles = min(SINGLE_REQUESTS, rows)
    with workspace(settings, ["http"], to) as name:
        token = f"dev-{name}"
        sent = [first := orders(SMALL_ROWS)]
        asyncio.run(log_all(settings, token, bodies_of(first, 100)))
        for number in range(rounds):
            for way, count, each in (
                ("http", rows, LARGE_REQUEST),
                ("http_single", singles, 1),
            ):
                sent.append(frame := orders(count, (2 * number + len(sent)) * rows))
                bodies = bodies_of(frame, each)
                before = services_cpu_s(settings)
                asyncio.run(log_all(settings, token, bodies))
                after = services_cpu_s(settings)
                spent = {name: after[name] - before[name] for name in after}
                found[way].append(count / sum(spent.values()))
                shares = ", ".join(f"{name} {cpu_s:.1f}" for name, cpu_s in spent.items())
                print(f"{way}: {found[way][-1]:,.0f} rows per CPU-second ({shares} s)", flush=True)
        expected = pl.concat(sent).group_by("user").len()
        counted = asyncio.run(orders_counted(settings, token))
        assert counted == dict(expected.iter_rows()), "every row is counted once"
    return {f"{way}_rows_per_cpu_s": median(rates) for way, rates in found.items()}


# ── all of it ────────────────────────────────────────────────────────────────────────────────────


def show(figures: dict[str, Any]) -> None:
    for kind in SOURCES:
        if f"{kind}_ratio_spark" not in figures:
            continue
        for peer in PEERS:
            rows, size = (figures[f"{kind}_{peer}_{what}_per_core_s"] for what in ("rows", "bytes"))
            line = f"{kind:<10}{peer:<10}{rows:>12,.0f} rows{size / 1e6:>8.1f} MB per core-s"
            if peer != "ours":
                cores, clock = (figures[f"{kind}_{what}ratio_{peer}"] for what in ("", "clock_"))
                line += f"   ours is {cores:.2f} of it (by the clock {clock:.2f})"
            print(line)
    for way in ("http", "http_single"):
        if f"{way}_rows_per_cpu_s" in figures:
            print(f"{way:<20}{figures[f'{way}_rows_per_cpu_s']:>12,.0f} rows per CPU-second")
    print(f"target of each ratio_spark: {TARGET}; load average {figures['load_average']:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="all by default")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    settings = Settings()
    if (settings.data_dir / "pids" / "sources").exists():
        parser.error("the platform's own sources run, and would read, too: see --help")
    figures: dict[str, Any] = {}
    for kind in asked.kinds or KINDS:
        with place(settings) as to:
            figures |= (
                measure_log(settings, to, asked.rows, asked.rounds)
                if kind == "http"
                else measure_source(settings, to, kind, asked.rows, asked.rounds)
            )
    figures["load_average"] = os.getloadavg()[0]
    show(figures)
    if asked.json is not None:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
