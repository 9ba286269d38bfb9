"""Measure what confining user code costs.

    .venv/bin/python -m benchmarks.sandbox [--calls 20000] [--workspaces 50] [--rounds 20]

Two hosts, one of them without the sandbox, get the same calls in turn, so that the load of the
machine falls on both. Prints p50 and p99 of each and the ratio; the time of the first call of new
workspaces; the memory of idle workspaces (PSS of all processes of the executors); and the latency
of a workspace beside a hostile one and alone, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyarrow as pa
import uvloop

from fennel_core.executors.calls import ExtractCall
from fennel_core.executors.client import Callbacks, Executors
from fennel_core.executors.errors import CallFailed
from fennel_core.executors.protocol import TS
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.wire.pycode import PyCode
from tests.support.executors import HostStart, running_host

ROOT = Path(__file__).parents[1]
IMPORTS = "import os, threading, time\nimport numpy as np\nimport pandas as pd\n"
WARM_UP = 200
HOSTILE = (
    "while True: pass",
    "while True: os.fork()",
    "x = []\n    while True: x.append(np.ones(10_000_000))",
    "while True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "os._exit(1)",
)


def call(body: str = "pass") -> ExtractCall:
    text = f"def run(ts, a):\n    {body}\n    return pd.Series(a + 1, name='F.out')\n"
    code = PyCode("run", "", "", text, IMPORTS, (), ())
    return ExtractCall(code, "F", "one", (Field("F.a", Int()),), (Field("F.out", Int()),), ())


def rows(count: int) -> pa.Table:
    stamps = pa.array([1_700_000_000_000_000] * count, pa.timestamp("us", "UTC"))
    return pa.table({TS: stamps, "F.a": pa.array(range(count), pa.int64())})


def quantile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3


async def timed(executors: Executors, one: ExtractCall, table: pa.Table, name: str) -> float:
    start = time.perf_counter()
    await executors.run(one, table, callbacks=Callbacks(workspace=name))
    return time.perf_counter() - start


async def compare(confined: Executors, bare: Executors, calls: int) -> None:
    one, table = call(), rows(1)
    took: dict[str, list[float]] = {"confined": [], "bare": []}
    for number in range(calls + WARM_UP):
        pair = (("confined", confined), ("bare", bare))
        for name, executors in pair if number % 2 else reversed(pair):
            took[name].append(await timed(executors, one, table, "w"))
    for name, times in took.items():
        kept = times[WARM_UP:]
        print(f"{name:9} p50 {quantile(kept, 0.5):6.3f} ms  p99 {quantile(kept, 0.99):7.3f} ms")
    confined_p50, bare_p50 = (quantile(took[n][WARM_UP:], 0.5) for n in took)
    confined_p99, bare_p99 = (quantile(took[n][WARM_UP:], 0.99) for n in took)
    print(f"p50 {confined_p50 - bare_p50:+.3f} ms, p99 ratio {confined_p99 / bare_p99:.2f}")


async def new_workspaces(executors: Executors, count: int) -> None:
    one, table = call(), rows(1)
    took = []
    for number in range(count):
        took.append(await timed(executors, one, table, f"new-{number}"))
        await asyncio.sleep(0.05)  # a new workspace is not the next call of a loop
    print(
        f"first call of {count} new workspaces: p50 {quantile(took, 0.5):.1f} ms, "
        f"p95 {quantile(took, 0.95):.1f} ms, longest {quantile(took, 1):.1f} ms"
    )


def memory_of(socket: Path) -> None:
    """Print the PSS of the processes that have the socket's path in their environment."""
    total, processes = 0, 0
    for each in psutil.process_iter():
        try:
            environment = Path(f"/proc/{each.pid}/environ").read_bytes()
            if str(socket).encode() in environment and each.pid != os.getpid():
                total += each.memory_full_info().pss
                processes += 1
        except (OSError, psutil.Error):
            continue
    print(f"PSS of {processes} processes: {total / (1 << 20):.0f} MiB")


async def beside_hostile(executors: Executors, rounds: int) -> None:
    """Measure in turns, alone and beside a workspace that keeps its share of calls hostile."""
    quiet: list[float] = []
    beside: list[float] = []
    table = rows(1)

    async def attack(body: str) -> None:
        while True:
            try:
                await executors.run(
                    call(body), table, callbacks=Callbacks(workspace="hostile"), timeout_ms=500
                )
            except CallFailed:
                continue

    for number in range(rounds):
        attackers = [
            asyncio.create_task(attack(HOSTILE[(number + n) % len(HOSTILE)]))
            for n in range(4 * (number % 2))
        ]
        times = beside if attackers else quiet
        end = time.monotonic() + 2
        while time.monotonic() < end:
            times.append(await timed(executors, call(), table, "neighbour"))
            await asyncio.sleep(0.002)
        for attacker in attackers:
            attacker.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)
    for name, times in (("alone", quiet), ("beside a hostile workspace", beside)):
        print(
            f"{name}: {len(times)} calls, p50 {quantile(times, 0.5):.2f} ms, "
            f"p99 {quantile(times, 0.99):.2f} ms"
        )
    print(f"p99 ratio {quantile(beside, 0.99) / quantile(quiet, 0.99):.2f}")


async def measure(confined: Path, bare: Path, calls: int, workspaces: int, rounds: int) -> None:
    async with (
        Executors(confined, time_limit_ms=10_000) as first,
        Executors(bare, time_limit_ms=10_000) as second,
    ):
        if calls:
            await compare(first, second, calls)
            await new_workspaces(first, workspaces)
            memory_of(confined)
        await beside_hostile(first, rounds)
        report = await first.report()
        print(f"{report.workers} processes; ended: {dict(report.ended)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000, help="0: only beside hostile code")
    parser.add_argument("--workspaces", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    bare = HostStart(module="benchmarks.unconfined_host", variables={"PYTHONPATH": str(ROOT)})
    with (
        tempfile.TemporaryDirectory(prefix="fennel-ex-") as one,
        tempfile.TemporaryDirectory(prefix="fennel-ex-") as two,
        running_host(Path(one), executor_processes=2) as confined,
        running_host(Path(two), bare, executor_processes=2) as unconfined,
    ):
        uvloop.run(measure(confined, unconfined, given.calls, given.workspaces, given.rounds))


if __name__ == "__main__":
    main()
