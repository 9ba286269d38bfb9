"""Measure the latency of one-row queries beside requests of 10,000 rows, over HTTP.

Phases without and with a connection that sends large requests back to back alternate in one run,
so that both see the same load of the machine; the ratio of their 99th percentiles is what counts.
One query server and its helper for large requests, with the definitions of `benchmarks.query` (50
looked-up features), and a slot that holds its rows in memory, so that the query server is what is
measured. The large requests are sent by a process of their own. With `--helpers 0` the query server
serves them itself, by a thread.

    python -m benchmarks.query_beside_batches
    python -m benchmarks.query_beside_batches --rounds 10 --rate 200
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
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
    application,
    bodies,
    field_type,
    query_service,
    sample,
    serve_application,
)
from benchmarks.unused_parts import NothingErased
from fennel_core.apps.query_worker import tune_interpreter
from fennel_core.connections.frames import serve as serve_frames
from fennel_core.query.large_reads import HELPER_NICENESS, DividedReads, LargeReadServer

BATCH_ROWS = 10_000
TIMEOUT_S = 30.0
CLIENT_NICENESS = 10
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


def server_process(folder: str, port: int, helpers: int) -> None:
    uvloop.run(_server(Path(folder), port, helpers))


async def _server(folder: Path, port: int, helpers: int) -> None:
    service, views = query_service(folder, mixed=False)
    addresses = [str(folder / f"helper{number}.sock") for number in range(helpers)]
    divided = DividedReads(service, views, addresses, BATCH_ROWS, TIMEOUT_S)
    await serve_application(application(divided, views), port)


def helper_process(folder: str, number: int) -> None:
    os.nice(HELPER_NICENESS)
    uvloop.run(_helper(Path(folder), number))


async def _helper(folder: Path, number: int) -> None:
    large = LargeReadServer(*query_service(folder, mixed=False), NothingErased())
    tune_interpreter()
    server = await serve_frames(str(folder / f"helper{number}.sock"), large.handle)
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


def batches_process(url: SplitResult, sending: Any, took: Any, connections: int) -> None:
    """Send large requests back to back while the event `sending` is set; put latencies (s)."""
    os.nice(CLIENT_NICENESS)  # In production it is another machine.
    uvloop.run(_batches(url, sending, took, connections))


async def _batches(url: SplitResult, sending: Any, took: Any, connections: int) -> None:
    [body, *_] = bodies(BATCH_ROWS)

    async def one() -> None:
        connection = await _connected(url)
        while True:
            if not sending.is_set():
                await asyncio.sleep(0.01)
                continue
            began = time.perf_counter()
            await connection.post(body)
            took.put(time.perf_counter() - began)

    await asyncio.gather(*(one() for _ in range(connections)))


def show(name: str, took: Sequence[float]) -> float:
    cuts = statistics.quantiles(took, n=100)
    print(
        f"  {name:16} p50 {cuts[49] * 1e3:7.3f}  p90 {cuts[89] * 1e3:7.3f}  p99 "
        f"{cuts[98] * 1e3:7.3f} ms  ({len(took)} requests)"
    )
    return cuts[98]


async def measure(arguments: argparse.Namespace, url: SplitResult, sending: Any, took: Any) -> None:
    single = bodies(1)
    connection = await _connected(url)
    for body in single[:WARM]:
        await connection.post(body)
    await _large_requests(sending, arguments.seconds)
    while not took.empty():
        took.get()
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(arguments.rounds):
        alone += await paced(connection, single, arguments.rate, arguments.seconds)
        load = asyncio.create_task(_large_requests(sending, arguments.seconds))
        beside += await paced(connection, single, arguments.rate, arguments.seconds)
        await load
        # The last large request ends.
        await asyncio.sleep(1)
    large_took = [took.get() for _ in range(took.qsize())]
    print(f"one row, {DATASETS * FIELDS} features, {arguments.rate:g} requests/s")
    without, with_ = show("alone", alone), show("beside batches", beside)
    print(
        f"  {len(large_took)} requests of {BATCH_ROWS} rows, median "
        f"{statistics.median(large_took) * 1e3:.0f} ms"
    )
    print(f"  ratio of the 99th percentiles: {with_ / without:.2f}")


async def _large_requests(sending: Any, seconds: float) -> None:
    sending.set()
    await asyncio.sleep(seconds)
    sending.clear()


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
    parser.add_argument(
        "--helpers", type=int, default=1, help="processes that serve the large requests"
    )
    parser.add_argument("--port", type=int, default=17410)
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    url = urlsplit(f"http://127.0.0.1:{arguments.port}/api/v1/query")
    sending, took = spawn.Event(), spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        slot = spawn.Process(target=slot_process, args=(folder,))
        server = spawn.Process(
            target=server_process, args=(folder, arguments.port, arguments.helpers)
        )
        helpers = [
            spawn.Process(target=helper_process, args=(folder, number))
            for number in range(arguments.helpers)
        ]
        client = spawn.Process(
            target=batches_process, args=(url, sending, took, arguments.connections)
        )
        try:
            slot.start()
            while not (Path(folder) / "slot.ready").exists():
                time.sleep(0.1)
            for process in (*helpers, server, client):
                process.start()
            uvloop.run(measure(arguments, url, sending, took))
        finally:
            for process in (client, server, *helpers, slot):
                if process.pid is not None:
                    process.kill()


if __name__ == "__main__":
    main()
