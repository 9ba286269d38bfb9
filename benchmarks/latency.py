"""Measure the time from `POST /log` to the first query response that contains the row.

A probe logs one row and at the same time starts to query it every 2 ms, both through the front door
on keep-alive connections; the time ends with the first response that has the row. Probes come at
random times (fixed seed) and of two kinds: one job (a keyed dataset with an index) and a chain of
three (map, join, aggregate). Other rows are logged to other datasets at the same time, so that all
jobs have work. Then, without logging: the barrier, and the cost of every process. Then, for
comparison, the same kind of work as micro-batches of Structured Streaming, Kafka to Kafka.

The real client commits the definitions into a workspace of its own, which is deleted afterwards.

    # five minutes, 30 jobs, on the platform of `fennel-core up`
    python -m benchmarks.latency
    python -m benchmarks.latency --seconds 60 --no-micro-batches --json figures.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from benchmarks.http1 import Address, Connection, Connections
from benchmarks.processes import Cost, measure, preferred
from fennel_core.settings.model import Settings

POLL_S = 0.002
WARM_UP_S = 10.0
"""Rows of the first seconds are not counted: producers, caches and plans are made at first use."""
LOST_S = 10.0
"""A row that is not seen within this is counted as lost, and the benchmark fails."""
ACCOUNTS = 2_000
ROWS_PER_PROBE_KIND_PER_S = 4.0
BARRIERS = 200
SETTLE_S = 90.0
"""History has rolled up what was logged by then: three rounds."""
UNAVAILABLE = 503
IDLE_PARTS = ("engine driver", "engine JVM", "engine slots", "kafka")
TARGETS = {
    "one_job_p50_ms": 20.0,
    "one_job_p99_ms": 100.0,
    "three_jobs_p50_ms": 45.0,
    "three_jobs_p99_ms": 200.0,
    "idle_cores": 0.07,
}


@dataclass(slots=True)
class Seen:
    """Milliseconds from sending: until the acknowledgement, and until the first answer that has the
    row.
    """

    acknowledged: list[float] = field(default_factory=list)
    visible: list[float] = field(default_factory=list)
    lost: int = 0
    counted_from: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """Logs row number n, and says what to ask and whether an answer has it."""

    endpoint: str
    row: Callable[[int], dict[str, object]]
    question: Callable[[int], bytes]
    has: Callable[[int, bytes], bool]


def one_job() -> Probe:
    """Each row changes an account's balance to a number of its own."""

    def has(n: int, answer: bytes) -> bool:
        return bool(json.loads(answer)["Accounts.balance"][0] == float(n))

    def row(n: int) -> dict[str, object]:
        return {"account_id": n % ACCOUNTS, "balance": float(n), "name": f"name {n}", "at": _now()}

    return Probe("accounts", row, lambda n: _question("Accounts", "balance", n % ACCOUNTS), has)


def three_jobs() -> Probe:
    """Each row is the account's next payment."""

    def has(n: int, answer: bytes) -> bool:
        return bool(json.loads(answer)["Payments.payments"][0] > n // ACCOUNTS)

    def row(n: int) -> dict[str, object]:
        return {"payment_id": n, "account_id": n % ACCOUNTS, "amount": 1.5, "at": _now()}

    return Probe("payments", row, lambda n: _question("Payments", "payments", n % ACCOUNTS), has)


def _question(featureset: str, feature: str, account: int) -> bytes:
    given = f"{featureset}.account_id"
    return json.dumps(
        {
            "inputs": [given],
            "outputs": [f"{featureset}.{feature}"],
            "data": {given: [account]},
            "log": False,
        }
    ).encode()


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _body(endpoint: str, rows: Sequence[dict[str, object]]) -> bytes:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return json.dumps({"webhook": "bench", "endpoint": endpoint, "data": columns}).encode()


async def probe_once(connections: Connections, probe: Probe, n: int, seen: Seen) -> None:
    """Log row `n` and poll until an answer has it."""
    logging, asking = await connections.take(), await connections.take()
    body, question = _body(probe.endpoint, [probe.row(n)]), probe.question(n)
    sent = time.perf_counter()

    async def log() -> None:
        await logging.ask("POST", "/api/v1/log", body)
        if sent >= seen.counted_from:
            seen.acknowledged.append((time.perf_counter() - sent) * 1000)

    logged = asyncio.create_task(log())
    poll = sent
    while True:
        answer = await asking.ask("POST", "/api/v1/query", question)
        now = time.perf_counter()
        if probe.has(n, answer):
            if sent >= seen.counted_from:
                seen.visible.append((now - sent) * 1000)
            break
        if now - sent > LOST_S:
            seen.lost += 1
            break
        poll = max(poll + POLL_S, now)
        await asyncio.sleep(poll - now)
    await logged
    connections.give_back(logging)
    connections.give_back(asking)


async def at_random(
    rate: float, until: float, draw: random.Random, start: Callable[[], Awaitable[None]]
) -> None:
    """Start something at random moments, `rate` a second on average, without waiting for it; return
    when all have ended.
    """
    async with asyncio.TaskGroup() as group:
        moment = time.monotonic()
        while (moment := moment + draw.expovariate(rate)) < until:
            await asyncio.sleep(max(0.0, moment - time.monotonic()))
            group.create_task(_awaited(start()))


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def under_load(
    address: Address, token: str, jobs: int, seconds: float, others_per_s: float
) -> dict[str, Seen]:
    """Probes of both kinds for so long, while other rows are logged to the other datasets."""
    connections = Connections(address, token)
    draw = random.Random(7)  # noqa: S311  # repeatable, and no secret
    more = [f"more{n}" for n in range(jobs - 5)]
    counted_from = time.perf_counter() + WARM_UP_S
    found = {name: Seen(counted_from=counted_from) for name in ("one_job", "three_jobs")}
    numbers = count()

    async def other() -> None:
        connection = await connections.take()
        row = {
            "account_id": draw.randrange(ACCOUNTS),
            "balance": draw.random(),
            "name": "other",
            "at": _now(),
        }
        await connection.ask("POST", "/api/v1/log", _body(draw.choice(more), [row]))
        connections.give_back(connection)

    def starter(probe: Probe, seen: Seen) -> Callable[[], Awaitable[None]]:
        own = count() if probe.endpoint == "payments" else numbers
        return lambda: probe_once(connections, probe, next(own), seen)

    until = time.monotonic() + WARM_UP_S + seconds
    async with asyncio.TaskGroup() as group:
        for name, probe in (("one_job", one_job()), ("three_jobs", three_jobs())):
            group.create_task(
                at_random(
                    ROWS_PER_PROBE_KIND_PER_S,
                    until,
                    random.Random(name),  # noqa: S311  # repeatable, and no secret
                    starter(probe, found[name]),
                )
            )
        if more and others_per_s > 0:
            group.create_task(at_random(others_per_s, until, draw, other))
    connections.close()
    return found


async def prepare(address: Address, token: str) -> None:
    """Every account has a holder, and both question kinds have been asked once."""
    connection = await Connection.open(address, token)
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    holders: list[dict[str, object]] = [
        {"account_id": n, "country": "NL", "since": since} for n in range(ACCOUNTS)
    ]
    for path, body in (
        ("/api/v1/log", _body("holders", holders)),
        ("/api/v1/barrier", b'{"timeout_s": 60}'),
    ):
        while (await connection.request("POST", path, body))[0] == UNAVAILABLE:
            await asyncio.sleep(
                1.0
                # a busy broker may need seconds for hundreds of new topics; logging holders twice
                # does
                # no harm
            )
    for probe in (one_job(), three_jobs()):
        await connection.ask("POST", "/api/v1/query", probe.question(0))
    connection.close()


async def barriers(address: Address, token: str) -> list[float]:
    """Milliseconds of barriers while nothing is logged."""
    connection = await Connection.open(address, token)
    took = []
    for _ in range(BARRIERS):
        started = time.perf_counter()
        await connection.ask("POST", "/api/v1/barrier", b'{"timeout_s": 30}')
        took.append((time.perf_counter() - started) * 1000)
    connection.close()
    return took


async def job_partitions(address: Address, token: str) -> int:
    """How many job partitions run on this installation, as far as `token` may see."""
    connection = await Connection.open(address, token)
    status: Any = json.loads(await connection.ask("GET", "/status"))
    connection.close()
    return sum(partition["status"] == "running" for partition in status["job_partitions"])


@contextmanager
def workspace(url: str, settings: Settings, jobs: int) -> Iterator[str]:
    """The token of a workspace with the definitions committed; deleted at the end where the
    administrator's token is known.
    """
    name = f"bench-{os.getpid()}"
    token = f"dev-{name}"
    try:
        subprocess.run(  # noqa: S603  # a program of this benchmark, and no shell
            [
                settings.executor_python,
                "-m",
                "benchmarks.latency_definitions",
                url,
                token,
                str(jobs),
            ],
            check=True,
        )
        yield token
    finally:
        admin = settings.admin_token.get_secret_value()
        if admin:
            asyncio.run(_delete(Address.of(url), admin, name))


async def _delete(address: Address, admin: str, name: str) -> None:
    connection = await Connection.open(address, admin)
    status, answer = await connection.request("DELETE", f"/api/v1/workspaces/{name}")
    if status != 200:
        print(f"workspace {name} was not deleted: {status} {answer.decode()}", file=sys.stderr)
    connection.close()


def micro_batches(settings: Settings, seconds: float) -> dict[str, float]:
    """The comparison runs in a process of its own: Spark is not to share this one's interpreter."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.micro_batches",
        "--seconds",
        str(seconds),
        "--kafka",
        settings.kafka_bootstrap,
    ]
    command += ["--jars", str(settings.jars_dir / "spark")]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603  # a program of this benchmark, and no shell
    figures: dict[str, float] = json.loads(made.stdout.decode().splitlines()[-1])
    return figures


def quantiles(name: str, values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"{name}_p{q}_ms": round(ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 2)
        for q in (50, 90, 99)
    }


def show(figures: dict[str, Any], costs: dict[str, Cost]) -> None:
    """The table beside the targets."""
    print(f"\n{'':<28}{'p50':>9}{'p90':>9}{'p99':>9}   target p50 / p99, ms")
    rows = (
        ("one job", "one_job"),
        ("  of it, until acknowledged", "one_job_acknowledged"),
        ("three jobs in a chain", "three_jobs"),
        ("  of it, until acknowledged", "three_jobs_acknowledged"),
        ("barrier, nothing logged", "barrier"),
        ("Spark micro-batches", "micro_batch"),
    )
    for title, name in rows:
        if f"{name}_p50_ms" in figures:
            cells = "".join(f"{figures[f'{name}_p{q}_ms']:>9.1f}" for q in (50, 90, 99))
            wanted = [TARGETS.get(f"{name}_p{q}_ms") for q in (50, 99)]
            targets = " / ".join(f"{w:.0f}" for w in wanted if w is not None)
            print(f"{title:<28}{cells}   {targets if wanted[0] is not None else ''}")
    print(
        f"\nidle, {figures['job_partitions']} job partitions    % of a core   MiB (PSS)   processes"
    )
    for part, cost in sorted(costs.items(), key=lambda item: -item[1].cores):
        print(f"{part:<28}{cost.cores * 100:>11.1f}{cost.memory_mib:>12.0f}{cost.processes:>12}")
    print(
        f"{'engine + broker':<28}{figures['idle_cores'] * 100:>11.1f}   target "
        f"{TARGETS['idle_cores'] * 100:.0f}"
    )
    print(
        f"\nload average while measuring {figures['load_average']:.1f} on "
        f"{os.cpu_count()} cores; {figures['rows']} rows probed"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="front door; by default the platform of this checkout")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument(
        "--others", type=float, default=12.0, help="rows a second to the other datasets"
    )
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--micro-batches", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--micro-batch-seconds", type=float, default=60)
    parser.add_argument(
        "--preferred",
        action="store_true",
        help="give the platform real-time priority on a shared machine",
    )
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    settings = Settings(_env_file=Settings().data_dir / "env")  # type: ignore[call-arg]  # pydantic-settings takes it at run time
    url = chosen.url or settings.query_url
    pids = settings.data_dir / "pids"
    first = preferred(pids) if chosen.preferred else nullcontext()
    figures: dict[str, Any] = {}
    with first:
        seen, costs = platform_figures(figures, url, settings, chosen)
        if chosen.micro_batches:
            figures |= micro_batches(settings, chosen.micro_batch_seconds)
    show(figures, costs)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    lost = sum(one.lost for one in seen.values())
    if lost:
        sys.exit(f"{lost} rows were not seen within {LOST_S} s")


def platform_figures(
    figures: dict[str, Any], url: str, settings: Settings, chosen: argparse.Namespace
) -> tuple[dict[str, Seen], dict[str, Cost]]:
    """Measure the platform; fills in `figures`."""
    address, pids = Address.of(url), settings.data_dir / "pids"
    with workspace(url, settings, chosen.jobs) as token:
        asyncio.run(prepare(address, token))
        seen = asyncio.run(under_load(address, token, chosen.jobs, chosen.seconds, chosen.others))
        load = psutil.getloadavg()[1]
        waited = asyncio.run(barriers(address, token))
        time.sleep(SETTLE_S)
        costs = measure(pids, chosen.idle_seconds)
        running = asyncio.run(
            job_partitions(address, settings.admin_token.get_secret_value() or token)
        )
    for name, one in seen.items():
        figures |= quantiles(name, one.visible) | quantiles(
            f"{name}_acknowledged", one.acknowledged
        )
    figures |= quantiles("barrier", waited)
    figures["idle_cores"] = round(sum(costs[part].cores for part in IDLE_PARTS if part in costs), 4)
    figures["job_partitions"] = running
    figures["load_average"] = load
    figures["rows"] = sum(len(one.visible) for one in seen.values())
    figures["mean_ms"] = {
        name: round(statistics.fmean(one.visible), 2) for name, one in seen.items()
    }
    figures["processes"] = {
        part: {"cores": round(c.cores, 4), "mib": round(c.memory_mib)} for part, c in costs.items()
    }
    return seen, costs


if __name__ == "__main__":
    main()
