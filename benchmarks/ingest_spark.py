"""One run of `ingest.py` in a process of its own: ours, or plain Spark; prints its figures.

Ours starts the feed of a source as the process of the sources does (`host.start_feed`), or reads
a table as a run of the schedule does (`table_job`). Plain Spark reads the same with the same
connector, the same Spark settings and as many cores, and a Python worker writes the rows as the
same messages: Arrow of as many rows, compressed, with positions, and acks of all replicas, but
without transactions, lateness and a position to continue at. With `raw`, it also writes the rows
as JSON, as a recomputation needs them.

Both read a small stream first: Python workers, producers and the JVM's code are there when the
clock starts. CPU time is that of this process with all its children: driver, JVM, Python workers.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psutil
import pyarrow as pa
from confluent_kafka import Producer
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fennel_core.connections import postgres, secrets
from fennel_core.connections.kafka import producer_config
from fennel_core.connections.spark import session_builder
from fennel_core.ingest.postgres import PostgresDirectory
from fennel_core.settings.model import Settings
from fennel_core.sources import spark as sources_spark
from fennel_core.sources import table_job
from fennel_core.sources.host import start_feed
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.overview import SourceView, source_views
from fennel_core.sources.postgres import PostgresSourceControls
from fennel_core.sources.table_runs import MemoryTableRuns
from fennel_core.vocab.dtypes import Field, Float, Int, Str
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import FORMAT_HEADER, encode, with_meta
from fennel_core.wire.connectors import SealedSecret

SCHEMA = Schema(
    (),
    (Field("id", Int()), Field("user", Str()), Field("city", Str()), Field("amount", Float())),
    "at",
)
DDL = "id bigint, user string, city string, amount double, at timestamp"
RAW = "raw"
WITHIN_S = 900.0
FETCHED_ROWS = 10_000
"""Rows of a table that plain Spark receives at once."""
POLL_S = 0.02
FIGURES = "FIGURES "


@dataclass(frozen=True, slots=True)
class Work:
    """What to read, and where plain Spark writes; the addresses are those of `Settings`."""

    kind: str
    small: str
    """Names a topic, a folder of `bucket` or a table; `large` is the measured one."""
    large: str
    small_rows: int
    rows: int
    workspace: str
    """Of ours: it has a source of each."""
    out: str
    """Topic of plain Spark."""
    bucket: str
    dsn: str
    peer: str = "ours"
    """`ours`, `spark` or `spark_raw`."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds, of the clock and of the cores."""

    run_s: float
    cpu_s: float


def spent(work: Callable[[], None]) -> Spent:
    """Return what `work` takes in this process and its children."""
    cpu, clock = _cpu_s(), time.perf_counter()
    work()
    return Spent(time.perf_counter() - clock, _cpu_s() - cpu)


def _cpu_s() -> float:
    total = 0.0
    for each in [own := psutil.Process(), *own.children(recursive=True)]:
        try:
            # With those that have ended, which their parent has waited for.
            total += sum(each.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


# ── ours ─────────────────────────────────────────────────────────────────────────────────────────


async def views_of(settings: Settings, workspace: str) -> dict[str, SourceView]:
    """Return the sources of a workspace by the name of their stream."""
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name="bench", size=1) as pool:
        branches = await PostgresDirectory(pool).read(WorkspaceId(workspace), {})
    return {view.name.partition("/")[2]: view for view in source_views(branches)}


def view_of(views: dict[str, SourceView], kind: str, name: str) -> SourceView:
    """Return the source that reads `name`: streams of files have a path as theirs."""
    [found] = [
        view
        for stream, view in views.items()
        if name in stream and view.feed is not None and view.feed.table.db.name == kind
    ]
    return found


async def pause(settings: Settings, workspace: str) -> None:
    """Pause all sources of a workspace: the platform reads tables by itself."""
    views = await views_of(settings, workspace)
    topics = [view.feed.raw_topic for view in views.values() if view.feed is not None]
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="bench", size=1
    ) as pool:
        await PostgresSourceControls(pool).pause(topics, "bench")


class Ours:
    """Reads with the code of the platform."""

    def __init__(self, settings: Settings, work: Work) -> None:
        self._settings, self._work = settings, work
        self._stops: list[Callable[[], None]] = []
        self._views = asyncio.run(views_of(settings, work.workspace))
        key_file = settings.secrets_key_file
        assert key_file is not None, "connectors have passwords: FENNEL_SECRETS_KEY_FILE"
        self._sealer = secrets.Sealer.from_file(key_file)
        made = table_job if work.kind == "postgres" else sources_spark
        self._spark: SparkSession = made.session(settings)

    def read(self, name: str, rows: int) -> None:
        """Read all rows of a stream into its dataset."""
        view = view_of(self._views, self._work.kind, name)
        if self._work.kind == "postgres":
            # The Spark session of this process is that of the run.
            runs = MemoryTableRuns(datetime.now(UTC), ())
            job = table_job.TableJob(self._settings, view, runs, "bench")
            job._read()
            done = job._progress.rows_read
            assert done == rows, f"{done} of {rows} rows: the platform has read the others"
            return
        counted, done = [0], threading.Event()

        def count(counts: pa.Table) -> None:
            counted[0] += sum(counts.column("accepted").to_pylist())
            assert not any(counts.column("dead").to_pylist()), "a row does not fit"
            if counted[0] >= rows:
                done.set()

        assert view.feed is not None, "a stream has a feed"
        running = start_feed(StartedBy(self._spark, self._settings, view.feed, self._open, count))
        ends = time.monotonic() + WITHIN_S
        while not done.wait(POLL_S):
            assert running.failure() is None, running.failure()
            assert time.monotonic() < ends, f"{counted[0]} of {rows} rows in {WITHIN_S:.0f} s"
        self._stops.append(running.stop)

    def settle(self) -> None:
        """End what goes on reading."""
        while self._stops:
            self._stops.pop()()

    def _open(self, workspace: WorkspaceId, secret: SealedSecret) -> str:
        return secrets.opened_credential(self._sealer, workspace, secret.token)

    def close(self) -> None:
        self._spark.stop()


# ── plain Spark ──────────────────────────────────────────────────────────────────────────────────


def write_batches(
    settings: Settings, out: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write each batch as a message, in a Python worker; yield how many rows it has."""
    config = producer_config(settings, "")
    del config["transactional.id"], config["transaction.timeout.ms"]
    producer = Producer(config)
    names = [*(field.name for field in SCHEMA.values), SCHEMA.timestamp]
    hlc = Hlc((time.time_ns() // 1_000_000) << 16)
    for batch in batches:
        table = pa.Table.from_batches([batch])
        rows = table.select(names).cast(SCHEMA.arrow())
        versions = with_meta(rows, stamp(hlc, 0, len(rows)))
        producer.produce(out, encode(versions), headers=[FORMAT_HEADER])
        if RAW in table.column_names:
            texts = ",".join(table.column(RAW).to_pylist())
            producer.produce(f"{out}-raw", f'{{"data":[{texts}]}}'.encode())
        producer.flush()
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})


class PlainSpark:
    """Reads with Spark's own connectors. Each call writes to the topics of `work`."""

    def __init__(self, settings: Settings, work: Work) -> None:
        self._settings, self._work = settings, work
        self._stops: list[Callable[[], None]] = []
        jars = sorted(str(path) for path in (settings.jars_dir / "spark").glob("*.jar"))
        self._spark = (
            session_builder(
                settings,
                app_name="bench-ingest",
                local_master=f"local[{1 if work.kind == 'postgres' else settings.source_workers}]",
            )
            .config("spark.jars", ",".join(jars))
            .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.hadoop.fs.s3a.endpoint", settings.s3_endpoint)
            .config("spark.hadoop.fs.s3a.endpoint.region", settings.s3_region)
            .config("spark.hadoop.fs.s3a.access.key", settings.s3_access_key)
            .config("spark.hadoop.fs.s3a.secret.key", settings.s3_secret_key.get_secret_value())
            .config("spark.hadoop.fs.s3a.path.style.access", True)
            .getOrCreate()
        )

    def read(self, name: str, rows: int) -> None:
        """Read all rows of a stream and write them."""
        out = self._work.out if name == self._work.large else f"{self._work.out}-small"
        done = (
            self._topic(name, out, rows) if self._work.kind == "kafka" else self._table(name, out)
        )
        assert done == rows, f"{done} of {rows} rows"

    def _table(self, name: str, out: str) -> int:
        if self._work.kind == "parquet":
            frame = self._spark.read.parquet(f"s3a://{self._work.bucket}/{name}/*.parquet")
        else:
            at = conninfo_to_dict(self._work.dsn)
            frame = (
                self._spark.read.format("jdbc")
                .option("url", f"jdbc:postgresql://{at['host']}:{at['port']}/{at['dbname']}")
                .option("user", at["user"])
                .option("password", at.get("password", ""))
                .option("driver", "org.postgresql.Driver")
                .option("dbtable", name)
                .option("fetchsize", FETCHED_ROWS)
                .load()
            )
        return self._write(frame, f.to_json(f.struct("*")), out)

    def _topic(self, name: str, out: str, rows: int) -> int:
        written, done = [0], threading.Event()

        def write(frame: DataFrame, _: int) -> None:
            text = f.col("value").cast("string")
            parsed = frame.select(text.alias(RAW), f.from_json(text, DDL).alias("row"))
            written[0] += self._write(parsed.select("row.*", RAW), f.col(RAW), out)
            if written[0] >= rows:
                done.set()

        query = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._settings.kafka_bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", name)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self._settings.source_batch_messages)
            .load()
            .writeStream.foreachBatch(write)
            .trigger(processingTime=f"{self._settings.source_trigger_ms} milliseconds")
            .start()
        )
        ends = time.monotonic() + WITHIN_S
        while not done.wait(POLL_S):
            assert query.isActive, query.exception()
            assert time.monotonic() < ends, f"{written[0]} of {rows} rows in {WITHIN_S:.0f} s"
        self._stops.append(query.stop)
        return written[0]

    def settle(self) -> None:
        """See `Ours.settle`."""
        while self._stops:
            self._stops.pop()()

    def _write(self, frame: DataFrame, raw: Any, out: str) -> int:
        rows = frame.select("id", "user", "city", "amount", "at")
        if self._work.peer == "spark_raw":
            rows = frame.select("id", "user", "city", "amount", "at", raw.alias(RAW))
        # Pickled by its name: a class of the client library cannot be pickled.
        task = partial(write_batches, self._settings, out)
        counts = rows.mapInArrow(task, "rows bigint").toArrow()
        return int(sum(counts.column("rows").to_pylist()))

    def close(self) -> None:
        self._spark.stop()


def main() -> None:
    work = Work(**json.loads(sys.stdin.read()))
    settings = Settings()
    reader = Ours(settings, work) if work.peer == "ours" else PlainSpark(settings, work)
    reader.read(work.small, work.small_rows)
    reader.settle()
    figures = spent(lambda: reader.read(work.large, work.rows))
    print(FIGURES + json.dumps(asdict(figures)), flush=True)
    reader.settle()
    reader.close()


def run(work: Work, peer: str) -> Spent:
    """Return what a run in a process of its own took."""
    program = [sys.executable, "-c", "from benchmarks.ingest_spark import main; main()"]
    given = json.dumps(asdict(replace(work, peer=peer)))
    done = subprocess.run(program, input=given, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603  # a program of this benchmark, and no shell
    [line] = [line for line in done.stdout.splitlines() if line.startswith(FIGURES)]
    return Spent(**json.loads(line.removeprefix(FIGURES)))
