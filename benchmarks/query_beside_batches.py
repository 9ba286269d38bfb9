"""Measure the latency of one-row queries beside requests of 10,000 rows, over HTTP.

Phases without and with a connection that sends large requests back to back alternate in one run,
so that both see the same load of the machine; the ratio of their 99th percentiles is what counts.
One query server, with the definitions of `benchmarks.query` (50 looked-up features), and a slot
that holds its rows in memory, so that the query server is what is measured.

    python -m benchmarks.query_beside_batches
    python -m benchmarks.query_beside_batches --rounds 10 --rate 200
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec
import uvloop

from benchmarks.query import (
    DATASETS,
    FIELDS,
    WARM,
    Connection,
    bodies,
    field_type,
    query_process,
    sample,
)
from fennel_core.connections.frames import serve as serve_frames

BATCH_ROWS = 10_000
encode = msgspec.msgpack.encode


def slot_process(folder: str) -> None:
    uvloop.run(_slot(Path(folder)))


async def _slot(folder: Path) -> None:
    now_us = time.time_ns() // 1000
    rows: dict[str, dict[bytes, bytes]] = {}
    for number in range(DATASETS):
        columns = [sample(field_type(number, n, mixed=False)) for n in range(FIELDS)]
        rows[f"job{number}"] = {
            encode([user]): encode([now_us, *values])
            for user, values in enumerate(zip(*columns, strict=True))
        }

    async def handle(op: str, argument: Any) -> object:
        assert op == "lookup", op
        found = []
        for job, _, keys, _ in argument["items"]:
            found.append(list(map(rows[job].get, keys)))
            await asyncio.sleep(0)  # as an engine's slot gives way between slices
        return {"rows": found, "stale": False}

    server = await serve_frames(str(folder / "slot.sock"), handle)
    (folder / "slot.ready").touch()
    await server.serve_forever()


async def paced(
    connection: Connection, requests: list[bytes], rate: float, s: float
) -> list[float]:
    """Latencies (s) of requests at a steady rate; a late one delays those after it."""
    took: list[float] = []
    start = time.perf_counter()
    while (due := start + len(took) / rate) < start + s:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        began = time.perf_counter()
        await connection.post(requests[len(took) % len(requests)])
        took.append(time.perf_counter() - began)
    return took


async def batches(url: SplitResult, body: bytes, connections: int, took: list[float]) -> None:
    async def one() -> None:
        connection = await Connection.open(url)
        while True:
            began = time.perf_counter()
            await connection.post(body)
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(one() for _ in range(connections)))


def show(name: str, took: Sequence[float]) -> float:
    cuts = statistics.quantiles(took, n=100)
    print(
        f"  {name:16} p50 {cuts[49] * 1e3:7.3f}  p90 {cuts[89] * 1e3:7.3f}  p99 "
        f"{cuts[98] * 1e3:7.3f} ms  ({len(took)} requests)"
    )
    return cuts[98]


async def measure(arguments: argparse.Namespace, url: SplitResult) -> None:
    single, [large, *_] = bodies(1), bodies(BATCH_ROWS)
    connection = await _connected(url)
    for body in single[:WARM]:
        await connection.post(body)
    await (await Connection.open(url)).post(large)
    alone: list[float] = []
    beside: list[float] = []
    large_took: list[float] = []
    for _ in range(arguments.rounds):
        alone += await paced(connection, single, arguments.rate, arguments.seconds)
        load = asyncio.create_task(batches(url, large, arguments.connections, large_took))
        beside += await paced(connection, single, arguments.rate, arguments.seconds)
        load.cancel()
        await asyncio.wait([load])
        # The last large request is cancelled when its connection closes.
        await asyncio.sleep(1)
    print(f"one row, {DATASETS * FIELDS} features, {arguments.rate:g} requests/s")
    without, with_ = show("alone", alone), show("beside batches", beside)
    print(
        f"  {len(large_took)} requests of {BATCH_ROWS} rows, median "
        f"{statistics.median(large_took) * 1e3:.0f} ms"
    )
    print(f"  ratio of the 99th percentiles: {with_ / without:.2f}")


async def _connected(url: SplitResult) -> Connection:
    while True:
        try:
            return await Connection.open(url)
        except OSError:
            await asyncio.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=100.0, help="one-row requests per second")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each phase")
    parser.add_argument("--rounds", type=int, default=4, help="pairs of phases")
    parser.add_argument(
        "--connections", type=int, default=1, help="connections that send large requests"
    )
    parser.add_argument("--port", type=int, default=17410)
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        slot = spawn.Process(target=slot_process, args=(folder,))
        server = spawn.Process(target=query_process, args=(folder, arguments.port, False))
        try:
            slot.start()
            while not (Path(folder) / "slot.ready").exists():
                time.sleep(0.1)
            server.start()
            uvloop.run(
                measure(arguments, urlsplit(f"http://127.0.0.1:{arguments.port}/api/v1/query"))
            )
        finally:
            slot.kill()
            if server.pid is not None:
                server.kill()


if __name__ == "__main__":
    main()
