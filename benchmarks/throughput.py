"""Measure rows per CPU-second of the engine, for one job partition, exactly once.

The production runner runs the production steps on RocksDB over a backlog of 10,000-row messages:
read, decode, step, encode, one transaction (outputs and marker), state hash, one write batch. Once
over the in-memory log, where only our own work counts, and once over Kafka, where the client
library's threads count too; the broker's CPU does not. A CPU-second is one of this process.

    stateless   filter, then assign: rows in, rows out
    keyed       count and sum for ever, per key, at 1,000 and at 1,000,000 keys: rows in; the
                output is the state that lookups read

The peer (`--peer`: Quix Streams, installed into a temporary environment) does the same on the same
broker, exactly once, on JSON rows, one message each, which is its format. To show the share of the
format in the ratio, ours also runs with messages of one row.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rocksdict import Cache

from fennel_core.blueprints.spec import Job, Output
from fennel_core.engine.broker import Broker, OutgoingRecord
from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.kafka.broker import KafkaBroker
from fennel_core.engine.memory_broker import MemoryBroker, MemoryLog
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.engine.runner_factory import SingleThreadPool
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.operators import spec
from fennel_core.operators.build import build
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Field, Float, Int
from fennel_core.vocab.ids import Epoch, JobId, TopicName, WorkspaceId
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import encode, with_meta
from fennel_core.wire import expr
from fennel_core.wire import operators as wire

INPUT = Schema((), (Field("key", Int()), Field("amount", Float())), "at")
CENTS = Schema((), (Field("key", Int()), Field("amount", Float()), Field("cents", Float())), "at")
TOTALS = Schema((Field("key", Int()),), (Field("rows", Int()), Field("total", Float())), "at")
CACHE_BYTES = 64 * 1024 * 1024
TARGETS = {"stateless": 500_000, "keyed_1k": 400_000, "keyed_1m": 75_000}
KEYS = {"stateless": 1_000, "keyed_1k": 1_000, "keyed_1m": 1_000_000}
PEER = "quixstreams"
PEER_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """A backlog: `rows` of random keys in messages of `per_message` rows."""

    name: str
    rows: int
    per_message: int

    def messages(self) -> list[bytes]:
        draw = np.random.default_rng(5)
        start_us = time.time_ns() // 1000
        out = []
        for first in range(0, self.rows, self.per_message):
            count = min(self.per_message, self.rows - first)
            at = pa.array(start_us + first + np.arange(count)).cast(pa.timestamp("us", "UTC"))
            keys, amounts = draw.integers(0, KEYS[self.name], count), draw.random(count) * 100 - 1
            table = pa.table({"key": keys, "amount": amounts, "at": at}).cast(INPUT.arrow())
            out.append(
                encode(with_meta(table, stamp(Hlc((start_us // 1000 + first) << 16), 0, count)))
            )
        return out


def step_of(name: str) -> spec.StepSpec:
    if name == "stateless":
        positive = expr.Binary(expr.BinaryOp.GT, expr.Ref("amount"), expr.Literal("0.0", Float()))
        cents = expr.Binary(expr.BinaryOp.MUL, expr.Ref("amount"), expr.Literal("100.0", Float()))
        stages = (
            spec.MapStage(wire.FilterExpr("", positive), INPUT),
            spec.MapStage(wire.AssignExpr("", (("cents", cents, Float()),)), CENTS),
        )
        return spec.MapSpec((INPUT,), (stages,), CENTS)
    aggregations = (
        wire.Count("rows", wire.Forever(), None, unique=False, approx=False, dropnull=False),
        wire.Sum("total", wire.Forever(), "amount"),
    )
    return spec.AggregateSpec(INPUT, ("key",), aggregations, None, terminal=True, output=TOTALS)


def job_of(name: str, prefix: str) -> Job:
    topic = {part: TopicName(f"{prefix}-{part}") for part in ("in", "out", "replaylog", "dead")}
    outputs = (Output(topic["out"], ()),) if name == "stateless" else ()
    return Job(
        JobId(prefix),
        WorkspaceId("bench"),
        (topic["in"],),
        outputs,
        step_of(name),
        topic["replaylog"],
        topic["dead"],
        1,
        f"bench: {name}",
    )


async def run(
    job: Job, broker: Broker, folder: Path, target: int, limits: RunnerLimits
) -> tuple[float, float]:
    """CPU-seconds and seconds to apply the input up to offset `target`."""
    step = build(job.step)
    hangar = RocksHangar(folder / "state", Cache(CACHE_BYTES))
    runner = Runner(
        job, 0, Epoch(1), JobLogic(step, None, 1, None), hangar, broker, SingleThreadPool(), limits
    )
    task = asyncio.create_task(runner.run())
    while runner.status != "running":
        await asyncio.sleep(0.001)
        assert not task.done(), task.exception()
    cpu, wall = time.process_time(), time.perf_counter()
    while runner.behind({job.inputs[0]: target}):  # type: ignore[dict-item]  # an offset
        await asyncio.wait(
            [task, asyncio.create_task(runner.changed())], return_when=asyncio.FIRST_COMPLETED
        )
        assert not task.done(), task.exception()
    spent = time.process_time() - cpu, time.perf_counter() - wall
    task.cancel()
    await asyncio.wait([task])
    hangar.close()
    return spent


async def in_memory(load: Load, limits: RunnerLimits) -> tuple[float, float]:
    job = job_of(load.name, "bench")
    log = MemoryLog()
    log.open("feed")
    for value in load.messages():
        log.append("feed", 1, [OutgoingRecord(job.inputs[0], 0, value)])
    with tempfile.TemporaryDirectory(prefix="fennel-bench-") as folder:
        return await run(
            job, MemoryBroker(log), Path(folder), log.log((job.inputs[0], 0)).end, limits
        )


async def over_kafka(load: Load, limits: RunnerLimits, settings: Settings) -> tuple[float, float]:
    job = job_of(load.name, f"bench-throughput-{time.time_ns() // 1_000_000}")
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
    topics = [
        *job.inputs,
        *(output.topic for output in job.outputs),
        job.replaylog,
        job.dead_letters,
    ]
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result()
    try:
        end = fill(settings.kafka_bootstrap, job.inputs[0], load.messages())
        broker = KafkaBroker(settings)
        try:
            with tempfile.TemporaryDirectory(prefix="fennel-bench-") as folder:
                return await run(job, broker, Path(folder), end, limits)
        finally:
            await broker.close()
    finally:
        admin.delete_topics(topics)


def fill(
    kafka: str, topic: str, values: Sequence[bytes], keys: Sequence[bytes] | None = None
) -> int:
    """The end of `topic` after all values have been written to its only partition."""
    producer = Producer(
        {"bootstrap.servers": kafka, "acks": "all", "queue.buffering.max.messages": 1_000_000}
    )
    ends = [0]

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        ends[0] = max(ends[0], message.offset() + 1)

    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=None if keys is None else keys[number],
            partition=0,
            on_delivery=delivered,
        )
        producer.poll(0)
    producer.flush(120)
    return ends[0]


# --- the peer -------------------------------------------------------------------------------------


def peer_environment(folder: Path) -> Path:
    """The Python of a fresh environment that has the peer."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", PEER], check=True)  # noqa: S603  # a program of this benchmark, and no shell
    return folder / "bin" / "python"


def peer(python: Path, name: str, rows: int, settings: Settings) -> tuple[float, float]:
    """CPU-seconds and seconds of the peer for `rows` JSON rows."""
    topic = f"bench-peer-{time.time_ns() // 1_000_000}"
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
    for made in admin.create_topics(
        [NewTopic(topic, 1, 1), NewTopic(f"{topic}-out", 1, 1)]
    ).values():
        made.result()
    draw = np.random.default_rng(5)
    keys, amounts = draw.integers(0, KEYS[name], rows), draw.random(rows) * 100 - 1
    values = [json.dumps({"amount": amount}).encode() for amount in amounts.tolist()]
    fill(settings.kafka_bootstrap, topic, values, [str(key).encode() for key in keys.tolist()])
    with tempfile.TemporaryDirectory(prefix="fennel-bench-") as folder:
        command = [
            python,
            Path(__file__).with_name("quix_peer.py"),
            settings.kafka_bootstrap,
            topic,
            name,
            str(rows),
            folder,
        ]
        made = subprocess.run(  # noqa: S603  # a program of this benchmark, and no shell
            command,
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PEER_TIMEOUT_S,
        )
    found = admin.list_topics(timeout=10).topics
    admin.delete_topics([topic_name for topic_name in found if topic in topic_name])
    figures = json.loads(made.stdout.decode().splitlines()[-1])
    return float(figures["cpu_s"]), float(figures["wall_s"])


# --- all of it ------------------------------------------------------------------------------------


def rates(rows: int, repeats: int, once: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """Medians of rows per CPU-second and rows per second."""
    spent = [once() for _ in range(repeats)]
    return median(rows / cpu for cpu, _ in spent), median(rows / wall for _, wall in spent)


def measured(
    names: Sequence[str], chosen: argparse.Namespace, settings: Settings, python: Path | None
) -> dict[str, dict[str, float]]:
    limits = RunnerLimits(settings.iteration_bytes, "bench", settings.iteration_rows)
    figures: dict[str, dict[str, float]] = {}
    for name in names:
        found: dict[str, float] = {}
        load, single = (
            Load(name, chosen.rows, chosen.per_message),
            Load(name, min(chosen.rows, chosen.single_rows), 1),
        )
        runs: dict[str, tuple[int, Callable[[], tuple[float, float]]]] = {
            "memory": (load.rows, lambda load=load: asyncio.run(in_memory(load, limits))),  # type: ignore[misc]  # bound now
            "kafka": (load.rows, lambda load=load: asyncio.run(over_kafka(load, limits, settings))),  # type: ignore[misc]  # as above
            "kafka_rows": (
                single.rows,
                lambda load=single: asyncio.run(over_kafka(load, limits, settings)),
            ),  # type: ignore[misc]  # as above
        }
        if python is not None:
            runs["peer"] = (
                chosen.peer_rows,
                lambda name=name: peer(python, name, chosen.peer_rows, settings),
            )  # type: ignore[misc]  # as above
        for way, (rows, once) in runs.items():
            if way in chosen.ways:
                found[way], found[f"{way}_wall"] = rates(rows, chosen.repeats, once)
                print(
                    f"{name:<12}{way:<12}{found[way]:>12,.0f} "
                    f"rows/CPU-s{found[f'{way}_wall']:>12,.0f} rows/s",
                    flush=True,
                )
        if "peer" in found and "kafka" in found:
            found["ratio"] = found["kafka"] / found["peer"]
            found["ratio_same_format"] = (
                found["kafka_rows"] / found["peer"] if "kafka_rows" in found else 0.0
            )
        figures[name] = found
    return figures


def show(figures: dict[str, dict[str, float]]) -> None:
    print(
        f"\n{'rows per CPU-second':<22}{'in memory':>12}{'Kafka':>12}{'1-row msgs':>12}"
        f"{PEER:>14}{'ratio':>8}{'target':>12}"
    )
    for name, found in figures.items():
        cells = "".join(
            f"{found.get(way, 0):>{width},.0f}"
            for way, width in (("memory", 12), ("kafka", 12), ("kafka_rows", 12), ("peer", 14))
        )
        print(f"{name:<22}{cells}{found.get('ratio', 0):>8.1f}{TARGETS[name]:>12,}")
    print(f"load average {psutil.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", choices=[*KEYS, []], help="which workloads; all by default"
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--per-message", type=int, default=10_000)
    parser.add_argument(
        "--single-rows", type=int, default=50_000, help="rows of the run with messages of one row"
    )
    parser.add_argument("--peer-rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=["memory", "kafka", "kafka_rows", "peer"])
    parser.add_argument(
        "--peer",
        action="store_true",
        help=f"install {PEER} into a throwaway environment and run it",
    )
    parser.add_argument(
        "--peer-python", type=Path, help=f"Python of an environment that has {PEER} already"
    )
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    settings = Settings(_env_file=Settings().data_dir / "env")  # type: ignore[call-arg]  # pydantic-settings takes it at run time
    with tempfile.TemporaryDirectory(prefix="fennel-bench-") as folder:
        python = chosen.peer_python or (peer_environment(Path(folder)) if chosen.peer else None)
        figures = measured(chosen.names or list(KEYS), chosen, settings, python)
    show(figures)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
