"""Measure what the protection of servers costs a query, over HTTP (decision 0061).

    .venv/bin/python -m benchmarks.protection [--requests 20000]

Two query servers share a slot (`benchmarks/query.py`): one under plain uvicorn, one served as the
platform serves it, with the checks of `Host`, `Origin` and tokens of development, the bounds on
requests and bodies, and the protocol that closes slow clients. They get the same requests in turn,
so that the load of the machine falls on both. A request looks up fifty features of one key.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from benchmarks.query import (
    WARM,
    Connection,
    bodies,
    cpu_s,
    query_application,
    query_process,
    show,
    slot_process,
)
from fennel_core.apps.http_protection import Protection
from fennel_core.apps.query_worker import tune_interpreter
from fennel_core.apps.serve import serve_http

PORTS = {"plain": 17_410, "protected": 17_411}
READY_WITHIN_S = 120.0


def protected_process(folder: str, port: int) -> None:
    uvloop.run(_protected(Path(folder), port))


async def _protected(folder: Path, port: int) -> None:
    app = query_application(folder, mixed=False)
    gc.collect()
    gc.freeze()
    tune_interpreter()
    await serve_http(app, "127.0.0.1", port, protection=Protection(), grace_s=1, keep_alive_s=75)


async def connected(port: int) -> Connection:
    """Return a connection to a server as soon as it listens."""
    url = urlsplit(f"http://127.0.0.1:{port}/api/v1/query")
    end = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            return await Connection.open(url)
        except OSError:
            assert time.monotonic() < end, f"nothing listens on {port}"
            await asyncio.sleep(0.1)


async def measure(requests: int, pids: dict[str, int]) -> None:
    connections = {name: await connected(port) for name, port in PORTS.items()}
    questions = bodies(1)
    took: dict[str, list[float]] = {name: [] for name in PORTS}
    used: dict[str, float] = {}
    for number in range(requests + WARM):
        if number == WARM:
            took = {name: [] for name in PORTS}
            used = {name: cpu_s(pid) for name, pid in pids.items()}
        pair = list(connections.items())
        for name, connection in pair if number % 2 else reversed(pair):
            began = time.perf_counter()
            await connection.post(questions[number % len(questions)])
            took[name].append(time.perf_counter() - began)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    for name, times in took.items():
        show(name, times)
        cpu = (cpu_s(pids[name]) - used[name]) / len(times)
        print(f"           {cpu * 1e6:.0f} µs of processor per request")
    cuts = {name: statistics.quantiles(times, n=1000) for name, times in took.items()}
    print(
        f"p50 {1e6 * (cuts['protected'][499] - cuts['plain'][499]):+.0f} µs, "
        f"p99 ratio {cuts['protected'][989] / cuts['plain'][989]:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    given = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="fennel-protection-") as name:
        slot = spawn.Process(target=slot_process, args=(name, False))
        slot.start()
        while not (Path(name) / "slot.ready").exists():
            time.sleep(0.1)  # the slot fills its state
        plain = spawn.Process(target=query_process, args=(name, PORTS["plain"], False))
        protected = spawn.Process(target=protected_process, args=(name, PORTS["protected"]))
        started = {"plain": plain, "protected": protected}
        for each in started.values():
            each.start()
        try:
            pids = {key: each.pid or 0 for key, each in started.items()}
            uvloop.run(measure(given.requests, pids))
        finally:
            for each in (plain, protected, slot):
                each.terminate()
                each.join()


if __name__ == "__main__":
    main()
