"""Measure point-in-time features on Spark, beside plain Spark and DuckDB.

Workloads:
- `asof`: N rows × 50 features of five keyed datasets.
- `windows`: N rows × a count and a sum over 1 h, 1 d and 30 d of as many events.

Ours and the peers read the same Parquet files, in processes of their own one after the other, and
write Parquet; the values are compared row by row. The files of versions are in the format of
history, on the local disk: S3 and Kafka would cost each candidate the same. Times: `start_s` until
there is a Spark session, `run_s` from the first read to the last file, both from a cold start.

Peers:
- plain Spark, of `asof`: per dataset, the union of rows and versions, `last` (ignoring nulls) of a
  struct over a window by key and time. It reads the columns only, so it applies no retractions.
- DuckDB: one ASOF join per dataset; for `windows`, cumulative sums and an ASOF join at each end of
  a window. With `--duckdb PYTHON`, an interpreter that has it:

    python3.11 -m venv /tmp/duckdb && /tmp/duckdb/bin/pip install duckdb==1.4.2
    .venv/bin/python -m benchmarks.offline --duckdb /tmp/duckdb/bin/python --json figures.json

`--rows` and `--versions` scale it; memory is the largest sum of PSS of all processes, `cpu_s` the
time that they used of the cores, with the start. With `--alone` only ours runs, and no values are
compared, for sizes that the peers take too long for; `--json` adds to the figures of a file:

    .venv/bin/python -m benchmarks.offline --workload asof --rows 10000000 --alone
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from fennel_core.blueprints.spec import DatasetView
from fennel_core.executors.calls import ExtractCall
from fennel_core.history import parquet
from fennel_core.history.parquet import TimeLimit
from fennel_core.offline.batch_work import StepTools
from fennel_core.offline.code_lookups import CallLookups
from fennel_core.offline.lookup_groups import Erasures
from fennel_core.offline.planned_query import OfflineQuery, PlannedQuery
from fennel_core.offline.results import ResultPlace, WriteWork, result_runs, write_result
from fennel_core.offline.rows import AT, ROW
from fennel_core.offline.scratch import ScratchStore, open_spill
from fennel_core.offline.spark import SparkRun, session
from fennel_core.operators.spec import AggregateSpec, StepSpec, TableSpec
from fennel_core.plans.absent_keys import NULL, AbsentValue
from fennel_core.plans.plan_nodes import FieldRead, Level, LookupNode, QueryPlan, TypedFeature
from fennel_core.query.program import ServedDataset
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Dtype, Field, Float, Int, Optional, Str
from fennel_core.vocab.ids import DatasetName, FeaturesetName, JobId, Micros, WorkspaceId
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN
from fennel_core.wire import operators as wire
from fennel_core.wire.entities import FeatureRef

DATASETS, FIELDS = 5, 10
SPAN_US = 90 * 86_400 * 1_000_000
BEGIN_US = 1_767_225_600_000_000
FILE_ROWS = 500_000
TYPES: tuple[Dtype, ...] = (Int(), Float(), Str())
SCHEMA = Schema(
    (Field("uid", Int()),),
    tuple(Field(f"v{n}", TYPES[n % 3]) for n in range(FIELDS)),
    "ts",
)
VERSIONS_PER_KEY, EVENTS_PER_KEY = 10, 100
"""On average."""
WINDOWS_S = {"hour": 3_600, "day": 86_400, "month": 30 * 86_400}
EVENTS = Schema((), (Field("uid", Int()), Field("v", Int())), "ts")
AGGREGATED = Schema(
    (Field("uid", Int()),),
    tuple(Field(f"{kind}_{name}", Int()) for name in WINDOWS_S for kind in ("count", "sum")),
    "ts",
)
PEERS = {"asof": ("ours", "spark", "duckdb"), "windows": ("ours", "duckdb")}
MEMORY = "2g"
"""The heap of Spark, for ours and the peer: what an offline query has by default."""
FIGURES = "FIGURES "
DUCKDB = """
import sys, time, json, duckdb
folder, out, threads = sys.argv[1:4]
begun = time.perf_counter()
base = duckdb.connect()
base.execute(f"SET threads = {threads}")
base.execute("SET TimeZone = 'UTC'")
started = time.perf_counter()
base.execute(sys.argv[4].format(folder=folder, out=out))
done = time.perf_counter()
print("FIGURES " + json.dumps({"start_s": started - begun, "run_s": done - started}))
"""


def duckdb_sql(workload: str) -> str:
    """Return the statement of DuckDB, with places for `folder` and `out`."""
    columns, joins, given = ["q.__row_number"], [], ""
    if workload == "asof":
        for d in range(DATASETS):
            source = f"read_parquet('{{folder}}/d{d}/*.parquet')"
            joins.append(f"ASOF LEFT JOIN {source} t{d} ON q.uid = t{d}.uid AND q.__at >= t{d}.ts")
            columns += [f't{d}.v{n} AS "F.d{d}v{n}"' for n in range(FIELDS)]
    else:
        given = """WITH e AS (SELECT uid, ts, count(*) OVER w AS count, sum(v) OVER w AS sum
            FROM read_parquet('{folder}/d0/*.parquet')
            WINDOW w AS (PARTITION BY uid ORDER BY ts ROWS UNBOUNDED PRECEDING)) """
        joins.append("ASOF LEFT JOIN e upto ON q.uid = upto.uid AND q.__at >= upto.ts")
        for name, seconds in WINDOWS_S.items():
            left = f"q.__at - INTERVAL {seconds + 1} SECONDS"
            joins.append(f"ASOF LEFT JOIN e {name} ON q.uid = {name}.uid AND {left} >= {name}.ts")
            columns += [
                f"(coalesce(upto.{kind}, 0) - coalesce({name}.{kind}, 0))::BIGINT "
                f'AS "F.d0{kind}_{name}"'
                for kind in ("count", "sum")
            ]
    return (
        f"COPY ({given}SELECT {', '.join(columns)} "  # noqa: S608  # names of this module only
        f"FROM read_parquet('{{folder}}/rows/*.parquet') q {' '.join(joins)} "
        "ORDER BY q.__row_number) TO '{out}' (FORMAT parquet)"
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run took, from a cold start."""

    start_s: float
    run_s: float
    cpu_s: float
    peak_bytes: int


# ── the data ─────────────────────────────────────────────────────────────────────────────────────


def make_data(folder: Path, rows: int, versions: int, workload: str) -> None:
    """Write the rows of the query and the versions of the datasets."""
    draw = np.random.default_rng(7)
    datasets, per_key = (
        (1, EVENTS_PER_KEY) if workload == "windows" else (DATASETS, VERSIONS_PER_KEY)
    )
    each = versions // datasets
    keys = max(1, each // per_key)
    (folder / "rows").mkdir(parents=True)
    asked = pl.DataFrame(
        {
            ROW: np.arange(rows),
            AT: BEGIN_US + draw.integers(0, SPAN_US, rows),
            "uid": draw.integers(0, keys, rows),
        }
    ).with_columns(pl.col(AT).cast(pl.Datetime("us", "UTC")))
    for number, part in enumerate(asked.iter_slices(FILE_ROWS)):
        part.write_parquet(folder / "rows" / f"{number:05}.parquet")
    for dataset in range(datasets):
        (folder / f"d{dataset}").mkdir()
        for number, first in enumerate(range(0, each, FILE_ROWS)):
            count = min(FILE_ROWS, each - first)
            values = _amounts if workload == "windows" else _fields
            columns = {"uid": draw.integers(0, keys, count), **values(draw, count)}
            frame = _versions(draw, first, columns)
            path = folder / f"d{dataset}" / f"{number:05}.parquet"
            path.write_bytes(parquet.encode_file(frame))


def _amounts(draw: np.random.Generator, count: int) -> dict[str, object]:
    return {"v": draw.integers(0, 1_000, count)}


def _fields(draw: np.random.Generator, count: int) -> dict[str, object]:
    columns: dict[str, object] = {}
    for number in range(FIELDS):
        match number % 3:
            case 0:
                columns[f"v{number}"] = draw.integers(0, 1_000_000, count)
            case 1:
                columns[f"v{number}"] = draw.random(count)
            case _:
                columns[f"v{number}"] = [f"value-{n}" for n in draw.integers(0, 1000, count)]
    return columns


def _versions(draw: np.random.Generator, first: int, values: dict[str, object]) -> pl.DataFrame:
    columns = pl.DataFrame(values)
    count = columns.height
    # Distinct times, so that every peer has one latest version.
    slots = draw.integers(0, SPAN_US // 10**7, count) * 10**7
    times = BEGIN_US + slots + np.arange(first, first + count)
    positions = [number.to_bytes(14, "big") for number in range(first, first + count)]
    return columns.with_columns(
        pl.Series("ts", times).cast(pl.Datetime("us", "UTC")),
        pl.Series(POS, positions),
        pl.lit(1, dtype=pl.Int8).alias(SIGN),
        pl.lit(value=False).alias(IS_TOMBSTONE),
        pl.lit(first, dtype=pl.Int64).alias(parquet.OFFSET),
        pl.lit(0, dtype=pl.Int32).alias(parquet.GROUP),
    )


# ── ours ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LocalFile:
    """A file of history on the local disk."""

    path: str

    def batches(self, columns: Sequence[str], limit: TimeLimit) -> Iterator[pl.DataFrame]:
        with Path(self.path).open("rb") as source:
            yield from parquet.file_batches(source, columns, limit)


@dataclass(frozen=True)
class LocalRows:
    """The rows of the query, in files on the local disk."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pl.read_parquet(self.paths[number]).rename({"uid": "F.uid"})


class LocalPlace(ResultPlace):
    """A folder of results on the local disk, beside what the peers write."""

    def put(self, key: str, path: Path) -> None:
        target = Path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


class NoCode:
    """User code of a query that has none."""

    def run(self, call: ExtractCall, rows: pa.Table, lookups: CallLookups | None) -> pl.DataFrame:
        del lookups
        raise AssertionError(f"{call.extractor} is called with {len(rows)} rows")


@dataclass(frozen=True)
class LocalTools:
    """No user code; state spills to a folder."""

    folder: str

    @contextmanager
    def open(self, erasures: Erasures) -> Iterator[StepTools]:
        scratch = Path(self.folder)
        yield StepTools(erasures, NoCode(), lambda: ScratchStore(lambda: open_spill(scratch)))


def query(workload: str) -> OfflineQuery:
    """Return the plan of one lookup per dataset."""
    if workload == "windows":
        specs: list[wire.Spec] = []
        for name, seconds in WINDOWS_S.items():
            window = wire.Sliding(seconds * 1_000_000)
            specs.append(wire.Count(f"count_{name}", window, None, False, False, False))
            specs.append(wire.Sum(f"sum_{name}", window, "v"))
        aggregate = AggregateSpec(EVENTS, ("uid",), tuple(specs), None, True, AGGREGATED)
        return _planned([aggregate], AGGREGATED, AbsentValue(0, declared=False))
    return _planned([TableSpec(SCHEMA)] * DATASETS, SCHEMA, NULL)


def _planned(steps: Sequence[StepSpec], schema: Schema, absent: AbsentValue) -> OfflineQuery:
    uid = FeatureRef(FeaturesetName("F"), "uid")
    nodes, outputs, tables, specs = [], [], {}, {}
    for dataset, step in enumerate(steps):
        name, job = DatasetName(f"D{dataset}"), JobId(f"job-{dataset}")
        reads = tuple(
            FieldRead(
                field.name,
                TypedFeature(
                    FeatureRef(FeaturesetName("F"), f"d{dataset}{field.name}"),
                    Optional(field.dtype) if absent == NULL else field.dtype,
                ),
                None,
            )
            for field in schema.values
        )
        nodes.append(LookupNode(name, (uid,), reads))
        outputs += [read.output for read in reads]
        view = DatasetView(name, 1, schema, None, job, True, True, (), is_source=True)
        tables[name] = ServedDataset(WorkspaceId("bench"), view, 1, (absent,) * len(schema.values))
        specs[job] = step
    plan = QueryPlan((TypedFeature(uid, Int()),), (Level((), tuple(nodes)),), tuple(outputs))
    return OfflineQuery(PlannedQuery(plan, tables), specs, {})


def run_ours(
    spark: SparkSession, folder: Path, out: str, partitions: int, workload: str = "asof"
) -> None:
    asked = query(workload)
    pieces = {
        job: [LocalFile(str(path)) for path in sorted((folder / f"d{number}").glob("*.parquet"))]
        for number, job in enumerate(asked.specs)
    }
    given = LocalRows(tuple(str(path) for path in sorted((folder / "rows").glob("*.parquet"))))
    latest = Micros(BEGIN_US + SPAN_US)
    run = SparkRun(spark, asked, pieces, LocalTools(str(folder)), latest, partitions)
    runs = result_runs(sum(pq.read_metadata(path).num_rows for path in given.paths))
    place = LocalPlace(Settings(), out, "at")
    write_result(run.run(given, runs), WriteWork(place, run.result, runs))


def run_spark(spark: SparkSession, folder: Path, out: str, partitions: int) -> None:
    """Union and window per dataset: what one writes without a feature store."""
    frame = spark.read.parquet(str(folder / "rows")).select(ROW, f.col(AT).alias("ts"), "uid")
    names = [field.name for field in SCHEMA.values]
    for dataset in range(DATASETS):
        versions = spark.read.parquet(str(folder / f"d{dataset}"))
        found = f.struct(*names).alias("found")
        frame = (
            _latest(frame, versions.select("uid", "ts", found), partitions)
            .select("*", *(f.col(f"found.{name}").alias(f"d{dataset}{name}") for name in names))
            .drop("found")
        )
    outputs = [f"d{dataset}{name}" for dataset in range(DATASETS) for name in names]
    named = [f.col(name).alias(f"F.{name}") for name in outputs]
    rows = spark.read.parquet(str(folder / "rows")).count()
    place = f.expr(f"CAST({ROW} * {partitions} DIV {rows} AS INT)").alias("place")
    ordered = frame.select(ROW, *named, place).repartitionById(partitions, "place")
    ordered.drop("place").sortWithinPartitions(ROW).write.parquet(out)


def _latest(frame: DataFrame, versions: DataFrame, partitions: int) -> DataFrame:
    travelling = [name for name in frame.columns if name not in {"uid", "ts"}]
    rows = frame.select("uid", "ts", f.struct(*travelling).alias("row"))
    both = rows.unionByName(versions, allowMissingColumns=True)
    order = Window.partitionBy("uid").orderBy("ts", f.col("row").isNotNull())
    latest = f.last("found", ignorenulls=True).over(order).alias("found")
    spread = both.repartition(partitions, "uid")
    return (
        spread.select("uid", "ts", "row", latest)
        .where("row IS NOT NULL")
        .select("uid", "ts", "row.*", "found")
    )


# ── the runs ─────────────────────────────────────────────────────────────────────────────────────


def run_one(peer: str, folder: Path, out: str, partitions: int, workload: str) -> None:
    """Run ours or the Spark peer in this process and print the figures."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {MEMORY} pyspark-shell"
    begun = time.perf_counter()
    spark = session(Settings(data_dir=folder / "spark"), f"bench-offline-{peer}")
    spark.range(1).count()
    started = time.perf_counter()
    if peer == "ours":
        run_ours(spark, folder, out, partitions, workload)
    else:
        run_spark(spark, folder, out, partitions)
    done = time.perf_counter()
    print(FIGURES + json.dumps({"start_s": started - begun, "run_s": done - started}))
    spark.stop()


def measured(command: Sequence[str]) -> Measured:
    """Run a command and return its figures, with the time that its processes used of the cores, and
    the largest sum of their PSS.
    """
    peak, ended = 0, threading.Event()
    cpu: dict[int, float] = {}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603  # commands of this module, and no shell

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.5):
            peak = max(peak, _pss(process.pid, cpu))

    watcher = threading.Thread(target=watch)
    watcher.start()
    text, _ = process.communicate()
    ended.set()
    watcher.join()
    assert process.returncode == 0, f"{command[:4]} failed"
    [line] = [line for line in text.splitlines() if line.startswith(FIGURES)]
    figures = json.loads(line.removeprefix(FIGURES))
    return Measured(figures["start_s"], figures["run_s"], sum(cpu.values()), peak)


def _pss(pid: int, cpu: dict[int, float]) -> int:
    """Return the sum of PSS of a process and its descendants, and note their times in `cpu`."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for each in family:
        try:
            total += each.memory_full_info().pss
            times = each.cpu_times()
            cpu[each.pid] = times.user + times.system
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has ended
    return total


def compare(outs: dict[str, str]) -> None:
    """Assert that every peer has the values of ours."""
    frames = {
        peer: pl.read_parquet(f"{out}/*.parquet" if Path(out).is_dir() else out)
        for peer, out in outs.items()
    }
    # The files of ours are in the order of the rows by name, and have no numbers.
    frames = {peer: frame if peer == "ours" else frame.sort(ROW) for peer, frame in frames.items()}
    names = [name for name in frames["ours"].columns if name.startswith("F.")]
    for peer, frame in frames.items():
        assert frame.select(names).equals(frames["ours"].select(names)), f"{peer} differs"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--versions", type=int, default=10_000_000)
    parser.add_argument("--partitions", type=int, default=16, help="of each shuffle")
    parser.add_argument("--duckdb", help="an interpreter with duckdb")
    parser.add_argument("--json", type=Path, help="add the figures to those of a file")
    parser.add_argument("--workload", choices=PEERS, help="only this one")
    parser.add_argument("--alone", action="store_true", help="run no peers, and compare no values")
    parser.add_argument(
        "--data", type=Path, help="keep the input of one workload in a folder, or use what it has"
    )
    parser.add_argument("--peer", choices=("ours", "spark"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peer:
        run_one(asked.peer, asked.folder, asked.out, asked.partitions, asked.workload)
        return
    if asked.data and not asked.workload:
        parser.error("--data has the input of one workload; name it with --workload")
    figures: dict[str, float] = {}
    for workload in [asked.workload] if asked.workload else PEERS:
        with tempfile.TemporaryDirectory(prefix="bench-offline-") as name:
            figures |= run_all(Path(name), workload, asked)
    print(json.dumps(figures, indent=2))
    if asked.json:
        earlier = json.loads(asked.json.read_text()) if asked.json.exists() else {}
        asked.json.write_text(json.dumps(earlier | figures, indent=2))


def run_all(folder: Path, workload: str, asked: argparse.Namespace) -> dict[str, float]:
    """Make the data, run ours and the peers, compare their values, and return the figures.

    Results are written to `folder`, and so is the data if it is not kept.
    """
    data = asked.data or folder
    given_rows = sum(pq.read_metadata(path).num_rows for path in data.glob("rows/*.parquet"))
    if not given_rows:
        make_data(data, asked.rows, asked.versions, workload)
    elif given_rows != asked.rows:
        raise SystemExit(f"{data} has {given_rows} rows, not {asked.rows}; give another folder")
    found: dict[str, Measured] = {}
    peers = [peer for peer in PEERS[workload] if peer != "duckdb" or asked.duckdb]
    if asked.alone:
        peers = ["ours"]
    outs = {peer: str(folder / f"out-{peer}") for peer in peers}
    for peer, out in outs.items():
        if peer == "duckdb":
            given = [str(data), out, str(os.cpu_count()), duckdb_sql(workload)]
            command = [asked.duckdb, "-c", DUCKDB, *given]
        else:
            given = ["--peer", peer, "--folder", str(data), "--out", out, "--workload", workload]
            scale = ["--partitions", str(asked.partitions)]
            command = [sys.executable, "-m", "benchmarks.offline", *given, *scale]
        found[peer] = measured(command)
        print(f"{workload}, {peer}: {found[peer]}", flush=True)
    if asked.alone:
        print(f"{workload}: ours alone, so NO VALUES WERE COMPARED")
    else:
        compare(outs)
    scale_name = {10**6: "1m", 10**7: "10m"}.get(asked.rows, str(asked.rows))
    ours, prefix = found["ours"], "" if workload == "asof" else f"{workload}_"
    figures = {
        f"{prefix}rows_per_s_{scale_name}": asked.rows / ours.run_s,
        f"{prefix}cold_total_s_{scale_name}": ours.start_s + ours.run_s,
        f"{prefix}peak_bytes_{scale_name}": ours.peak_bytes,
    }
    for peer in peers[1:]:
        figures[f"{workload}_{scale_name}_ratio_{peer}"] = ours.run_s / found[peer].run_s
    return figures


if __name__ == "__main__":
    main()
