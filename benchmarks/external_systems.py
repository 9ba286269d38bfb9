"""Measure readers and senders of systems that are not ours, each beside a plain loop.

    kinesis  records of a stream that moto serves over HTTP become raw rows, typed rows and
             positions in a log in memory; the plain loop asks for them with boto3 and parses them
    http     changes are posted to a receiver, 100 in a request, four requests at once; the plain
             loop posts the same bodies with httpx
    postgres changes of a table of Postgres become the same as records of Kinesis do; the plain loop
             takes them from a task of the same engine (Debezium), and parses them
    mariadb  the same of MariaDB, which `make connectors` needs, too

Servers are processes of their own and are not counted; the JVM of the engine is. Both sides make
the same requests with the same pauses; ours also types rows, judges lateness and computes
idempotency keys. Each has run once before the clock starts, runs alternate, and each figure is the
median of the rounds: rows per CPU-second, and per second.

    python -m benchmarks.external_systems
    python -m benchmarks.external_systems kinesis --rows 5000 --rounds 1    # a smoke run
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import psycopg
from moto.server import ThreadedMotoServer

from fennel_core.connections.change_engine import BINLOG_JARS, ChangeEngine
from fennel_core.connections.external_http import IDEMPOTENCY_KEY, ExternalHttp, HttpEndpoint
from fennel_core.connections.external_kinesis import opened
from fennel_core.connections.external_mysql import ExternalMySQL
from fennel_core.connections.external_postgres import ExternalPostgres
from fennel_core.connections.http_addresses import AllowedHosts
from fennel_core.settings.model import Settings
from fennel_core.sinks.debezium import SinkRecord
from fennel_core.sinks.deliveries import MemoryDeliveryLog
from fennel_core.sinks.http import IN_FLIGHT, ROWS, HttpSinkLog, requests_of
from fennel_core.sinks.positions import SinkPosition
from fennel_core.sources.kinesis import stream_start
from fennel_core.sources.shard_reader import PAUSE_S, RECORDS, StreamReader, StreamReads
from fennel_core.wire.connectors import (
    Cdc,
    FromTrimHorizon,
    Kinesis,
    Login,
    Postgres,
    PostgresChanges,
)
from tests.support.binlog_world import FLAGS as BINLOG_FLAGS
from tests.support.binlog_world import BinlogWorld
from tests.support.change_log import FLAGS as POSTGRES_FLAGS
from tests.support.change_log import PostgresWorld
from tests.support.ingest_world import WORKSPACE, catalog
from tests.support.kinesis_server import ROLE, KinesisServer
from tests.support.mariadb import OWNER, WORDS, connected, running_mariadb
from tests.support.postgres import make_cluster, running
from tests.support.source_world import ORIGIN, SourceWorld, message, stream_source

PUT = 500
"""Records of a request that puts them: Kinesis' own limit."""
LONG_S = 1e9
NO_LOGIN = Login(None, None)
Side = Callable[[], int]
"""Does its work once, and returns the number of rows."""
Clock = Callable[[], float]
"""Returns CPU-seconds that were spent so far."""


@dataclass(frozen=True, slots=True)
class Spent:
    rows: int
    cpu_s: float
    wall_s: float


def spent(side: Side, clock: Clock) -> Spent:
    cpu_s, wall_s = clock(), time.perf_counter()
    rows = side()
    return Spent(rows, clock() - cpu_s, time.perf_counter() - wall_s)


def compared(
    name: str, ours: Side, plain: Side, rounds: int, clock: Clock = time.process_time
) -> None:
    """Run both in turns, and print medians and their ratio."""
    _, *found = [(spent(ours, clock), spent(plain, clock)) for _ in range(rounds + 1)]
    for one, other in found:
        assert one.rows == other.rows, "both had the same rows"
    measures: dict[str, Callable[[Spent], float]] = {
        "CPU-second": lambda each: each.rows / each.cpu_s,
        "second": lambda each: each.rows / each.wall_s,
    }
    for what, of in measures.items():
        mine, theirs = (median(of(pair[side]) for pair in found) for side in (0, 1))
        ratio = median(of(one) / of(other) for one, other in found)
        print(
            f"{name}: {mine:,.0f} rows per {what}, a plain loop {theirs:,.0f}; ratio {ratio:.2f}",
            flush=True,
        )


@contextmanager
def serving(server: Callable[[Connection], None]) -> Iterator[int]:
    """Run a server in a process of its own; yield its port."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=server, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def kinesis_server(to: Connection) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    to.send(server.get_host_and_port()[1])
    to.recv()  # until the process is killed


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def http_server(to: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    to.send(server.server_address[1])
    server.serve_forever()


def kinesis(rows: int, rounds: int) -> None:
    with serving(kinesis_server) as port:
        server = KinesisServer(f"http://127.0.0.1:{port}")
        arn, client = server.create("orders"), server.client()
        for first in range(0, rows, PUT):
            numbers = range(first, min(rows, first + PUT))
            records = [
                {"Data": message(user=f"u{n}", age=n, at=1_700_000_000 + n), "PartitionKey": str(n)}
                for n in numbers
            ]
            client.put_records(StreamName="orders", Records=records)
        stream = opened(Kinesis("shop", ROLE), arn, server.settings(), WORKSPACE).open()

        async def read() -> int:
            sources = SourceWorld()
            sources.world.commit(main=catalog(stream_source()))
            start = stream_start({}, FromTrimHorizon(), stream.describe())
            reads = StreamReads("stream", ORIGIN, start, sources.writer, lambda _: ORIGIN)
            (end,) = await StreamReader(stream, reads, {}).round(LONG_S)
            await sources.world.close()
            return end.place.next

        def plain() -> int:
            found: list[Any] = []
            iterator: str | None = client.get_shard_iterator(
                StreamARN=arn, ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while iterator is not None:
                got = client.get_records(StreamARN=arn, ShardIterator=iterator, Limit=RECORDS)
                found += [json.loads(each["Data"]) for each in got["Records"]]
                iterator = got["NextShardIterator"] if got["MillisBehindLatest"] else None
                time.sleep(PAUSE_S if iterator else 0.0)
            return len(found)

        compared("kinesis", lambda: asyncio.run(read()), plain, rounds)


def http(rows: int, rounds: int) -> None:
    of = {"op": "c", "after": {"user": "ann", "age": 30, "town": "Zürich"}, "ts_ms": 1}
    records = [
        SinkRecord(b"k", json.dumps(of | {"n": n}).encode(), n % IN_FLIGHT, n // 1000)
        for n in range(rows)
    ]
    records.sort(key=lambda each: (each.part, each.offset))
    with serving(http_server) as port:
        url = f"http://127.0.0.1:{port}/rows"
        allowed = AllowedHosts((), (f"127.0.0.1:{port}",))
        external = ExternalHttp("hooks/rows", url, url, (), "")

        def ours() -> int:
            session = HttpSinkLog(
                "hooks/rows",
                "rows",
                url,
                lambda: HttpEndpoint(external, allowed, connections=IN_FLIGHT),
                MemoryDeliveryLog(),
            ).open()
            session.commit(records, SinkPosition(url, events=rows))
            session.close()
            return rows

        def plain() -> int:
            with httpx.Client() as client, ThreadPoolExecutor(IN_FLIGHT) as threads:

                def post(part: int) -> int:
                    sent = 0
                    for each in lanes[part]:
                        key = {
                            "Content-Type": "application/json",
                            IDEMPOTENCY_KEY: f"{part}-{sent}",
                        }
                        client.post(url, content=each.body, headers=key).raise_for_status()
                        sent += len(each.events)
                    return sent

                lanes = requests_of(records, ROWS, {})
                return sum(threads.map(post, lanes))

        compared("http", ours, plain, rounds)


async def passed_first_read(reader: Any) -> None:
    """Let the changes of an empty table be what comes next."""
    while reader.end.at.is_first:
        await reader.round(1.0, LONG_S)


async def read_changes(world: PostgresWorld | BinlogWorld, rows: int) -> int:
    reader, found = await world.reader(), 0
    while found < rows:
        await reader.round(LONG_S, rows - found)
        found += reader.end.rows
    world.engine.stop(reader.task)
    await world.sources.world.close()
    return found


async def parse_changes(world: PostgresWorld | BinlogWorld, rows: int) -> int:
    reader, found = await world.reader(), 0
    while found < rows:
        changes = [json.loads(line.rpartition("\t")[2]) for line in reader.task.take()]
        found += sum(each.get("op") == "c" for each in changes)
    world.engine.stop(reader.task)
    return found


def engine_clock(engine: ChangeEngine) -> Clock:
    """Return the clock of this process and of the engine's JVM."""
    jvm = psutil.Process(engine._process.pid)

    def cpu_s() -> float:
        times = jvm.cpu_times()
        return time.process_time() + times.user + times.system

    return cpu_s


def changes_compared(
    name: str,
    world: Callable[[SourceWorld], PostgresWorld | BinlogWorld],
    insert: Callable[[], object],
    rows: int,
    rounds: int,
) -> None:
    """Begin to read an empty table for each run, insert the rows, and compare."""
    with asyncio.Runner() as runner:
        worlds = list[PostgresWorld | BinlogWorld]()
        for _ in range(2 * (rounds + 1)):
            sources = SourceWorld()
            table = PostgresChanges(Postgres("shop", "db", 1, "shop", None, NO_LOGIN), "users")
            of = stream_source(cdc=Cdc.DEBEZIUM, table=table)
            sources.world.commit(main=catalog(of))
            worlds.append(world(sources))
            reader = runner.run(worlds[-1].reader())
            runner.run(passed_first_read(reader))
            reader.engine.stop(reader.task)
        clock = engine_clock(worlds[0].engine)
        insert()
        compared(
            name,
            lambda: runner.run(read_changes(worlds.pop(), rows)),
            lambda: runner.run(parse_changes(worlds.pop(), rows)),
            rounds,
            clock,
        )


def postgres(rows: int, rounds: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="fennel-pg-"))
    try:
        make_cluster(folder / "data")
        with running(folder / "data", more=POSTGRES_FLAGS) as dsn, psycopg.connect(dsn) as owner:
            owner.autocommit = True
            owner.execute('CREATE TABLE users ("user" text PRIMARY KEY, age int, at timestamptz)')
            owner.execute("CREATE PUBLICATION fennel_users FOR TABLE users")
            info, engine = owner.info, ChangeEngine(Settings())
            shop = ExternalPostgres("shop", info.host, info.port, info.dbname, info.user, "", {})
            insert = "INSERT INTO users SELECT 'u' || n, n, now() FROM generate_series(1, %s) n"
            changes_compared(
                "postgres",
                lambda sources: PostgresWorld(shop, engine, "users", sources),
                lambda: owner.execute(insert, [rows]),
                rows,
                rounds,
            )
            engine.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def mariadb(rows: int, rounds: int) -> None:
    with running_mariadb(*BINLOG_FLAGS) as port, connected(port) as owner:
        cursor = owner.cursor()
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("USE shop")
        cursor.execute(
            "CREATE TABLE shop.users (user varchar(20) PRIMARY KEY, age int, at timestamp(6) "
            "DEFAULT current_timestamp(6))"
        )
        shop = ExternalMySQL("shop", "127.0.0.1", port, "shop", OWNER, WORDS)
        insert = f"INSERT INTO shop.users SELECT concat('u', seq), seq, now(6) FROM seq_1_to_{rows}"  # noqa: S608  # a number
        engine = ChangeEngine(Settings(), BINLOG_JARS)
        changes_compared(
            "mariadb",
            lambda sources: BinlogWorld(shop, engine, "users", sources),
            lambda: cursor.execute(insert),
            rows,
            rounds,
        )
        engine.close()


PARTS = {"kinesis": kinesis, "http": http, "postgres": postgres, "mariadb": mariadb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="some, or all")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for name, part in PARTS.items():
        if not arguments.parts or name in arguments.parts:
            part(arguments.rows, arguments.rounds)


if __name__ == "__main__":
    main()
