"""Measure queries of 50 looked-up features, over HTTP, against slots with RocksDB.

Three processes: a slot (the real Table step on RocksDB behind the real protocol), the query server
under uvicorn, and this process as the client on keep-alive connections. Five datasets of ten value
fields each, so that one request is five lookups in one frame. Nothing else of the platform runs.

`http` is measured by the client around the whole request, `server` inside the server around the
ASGI call. Throughput is requests per CPU-second of the query server, and of query server and slot
together, at saturation.

The peer is measured with the same client and requests: `benchmarks/feast_peer.py` describes how to
start Feast's server; pass its address with `--peer`.

    python -m benchmarks.query                         # one key, at 200 requests/s, then saturated
    python -m benchmarks.query --keys 100 --rate 40
    python -m benchmarks.query --mixed                 # more types in one dataset
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import polars as pl
import pyarrow as pa
import uvicorn
import uvloop
from rocksdict import Cache

from benchmarks.slot_and_server import running
from benchmarks.unused_parts import NothingErased, any_token, no_secret, nothing_hidden
from fennel_core.apps.query_worker import tune_interpreter
from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.connections.frames import serve as serve_frames
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.executors.client import Executors
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.operators.spec import TableSpec
from fennel_core.operators.table.step import TableStep
from fennel_core.query.large_reads import Reads
from fennel_core.query.lookups import Lookups
from fennel_core.query.owners import Owners, Ownership
from fennel_core.query.query_log import QueryLog
from fennel_core.query.server import QueryApplication
from fennel_core.query.service import QueryLimits, QueryService
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.query.view import BranchKey, ServingVersion, Views
from fennel_core.query.view_refresh import ViewRefresher
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab import dtypes, versions
from fennel_core.vocab.dtypes import Dtype, Field, optional
from fennel_core.vocab.ids import CommitId, DatasetName, FeaturesetName, JobId, Micros, WorkspaceId
from fennel_core.vocab.keys import key_bytes, partition_of
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.wire import entities as wire
from fennel_core.wire.pycode import PyCode

DATASETS, FIELDS, PARTITIONS, USERS = 5, 10, 4, 20_000
META = wire.Metadata("", "", (), deprecated=False, deleted=False)
CODE = PyCode("f", "", "", "", "", (), ())
WORKSPACE = WorkspaceId("bench")
WARM = 300
WARM_PEER = 20


# --- definitions ----------------------------------------------------------------------------------


def field_type(dataset: int, field: int, *, mixed: bool) -> Dtype:
    if mixed and dataset == 0:
        others = (
            dtypes.Timestamp(),
            dtypes.Decimal(2),
            dtypes.List(dtypes.Int()),
            dtypes.Date(),
            dtypes.Bool(),
        )
        return others[field % len(others)]
    return (dtypes.Int(), dtypes.Float(), dtypes.Str())[field % 3]


def schema(dataset: int, *, mixed: bool) -> Schema:
    values = tuple(Field(f"v{n}", field_type(dataset, n, mixed=mixed)) for n in range(FIELDS))
    return Schema((Field("uid", dtypes.Int()),), values, "ts")


def definitions(*, mixed: bool) -> ServingVersion:
    """One featureset: `F.uid` given, fifty features looked up by it."""
    featureset = FeaturesetName("F")
    uid = wire.FeatureRef(featureset, "uid")
    features = [wire.Feature(uid, dtypes.Int(), META)]
    extractors, datasets, views = [], [], []
    for number in range(DATASETS):
        name, shape = DatasetName(f"D{number}"), schema(number, mixed=mixed)
        datasets.append(
            wire.Dataset(
                name, 1, shape, (), 0, is_source=True, pycode=CODE, metadata=META, field_metadata=()
            )
        )
        views.append(
            DatasetView(
                name,
                1,
                shape,
                None,
                JobId(f"job{number}"),
                online=True,
                offline=True,
                erase_keys=(),
                is_source=True,
            )
        )
        for field in shape.values:
            ref = wire.FeatureRef(featureset, f"{name}_{field.name}")
            features.append(wire.Feature(ref, optional(field.dtype), META))
            kind = wire.Lookup(name, field, None)
            extractors.append(
                wire.Extractor(
                    f"_{ref.name}", featureset, 1, (uid,), (ref.name,), (name,), kind, META
                )
            )
    request = wire.SyncRequest(
        tuple(datasets),
        (),
        (),
        (wire.Featureset(featureset, CODE, META),),
        tuple(features),
        tuple(extractors),
        (),
        (),
        (),
        (),
        (),
        "",
    )
    catalog = Catalog(
        WORKSPACE, tuple(views), (), tuple(JobId(f"job{n}") for n in range(DATASETS)), PARTITIONS
    )
    return ServingVersion(CommitId("c1"), request, catalog)


# --- the slot -------------------------------------------------------------------------------------


def slot_process(folder: str, mixed: bool) -> None:
    uvloop.run(_slot(Path(folder), mixed=mixed))


async def _slot(folder: Path, *, mixed: bool) -> None:
    cache = Cache(256 * 1024 * 1024)
    parts: dict[tuple[str, int], tuple[TableStep, RocksHangar]] = {}
    for number in range(DATASETS):
        fill(folder, cache, number, parts, mixed=mixed)

    async def handle(op: str, argument: Any) -> object:
        assert op == "lookup"
        return {"rows": [_answer(parts, *item) for item in argument["items"]], "stale": False}

    server = await serve_frames(str(folder / "slot.sock"), handle)
    (folder / "slot.ready").touch()
    await server.serve_forever()


def _answer(
    parts: Any, job: str, part: int, keys: Sequence[bytes], as_of: int | Sequence[int]
) -> list[bytes | None]:
    step, hangar = parts[job, part]
    times = [Micros(as_of)] * len(keys) if isinstance(as_of, int) else [Micros(t) for t in as_of]
    found: list[bytes | None] = step.lookup(hangar, keys, times)
    return found


def fill(
    folder: Path,
    cache: Cache,
    number: int,
    parts: dict[tuple[str, int], tuple[TableStep, RocksHangar]],
    *,
    mixed: bool,
) -> None:
    """Two versions of every user's row, spread over the partitions by key."""
    shape = schema(number, mixed=mixed)
    now_us = time.time_ns() // 1000
    for age, hlc in ((7200, 1), (3600, 2)):
        users = list(range(USERS))
        columns = (
            {"uid": users}
            | {f.name: sample(f.dtype) for f in shape.values}
            | {"ts": [now_us - age * 10**6] * USERS}
        )
        table = pa.table(
            {f.name: pa.array(columns[f.name], dtypes.arrow_type(f.dtype)) for f in shape.fields}
        )
        batch = versions.with_meta(table, stamp(Hlc(hlc << 16), 0, USERS))
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        owners = [partition_of(key, PARTITIONS) for key in key_bytes(frame, ["uid"])]
        for part in range(PARTITIONS):
            job = f"job{number}"
            if (job, part) not in parts:
                parts[job, part] = (
                    TableStep(TableSpec(shape)),
                    RocksHangar(folder / f"{job}.{part}", cache),
                )
            step, hangar = parts[job, part]
            outcome = step.apply(hangar, 0, frame.filter(pl.Series(owners) == part))
            hangar.write(WriteBatch(outcome.puts, outcome.deletes))


def sample(dtype: Dtype) -> list[object]:
    draw = random.Random(1)  # noqa: S311  # repeatable, and no secret
    match dtype:
        case dtypes.Int():
            return [draw.randrange(10**6) for _ in range(USERS)]
        case dtypes.Float():
            return [draw.random() for _ in range(USERS)]
        case dtypes.Str():
            return [f"value-{draw.randrange(10**6)}" for _ in range(USERS)]
        case dtypes.Timestamp():
            return [
                datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=draw.randrange(10**6))
                for _ in range(USERS)
            ]
        case dtypes.Date():
            return [date(2026, 1, 1) + timedelta(days=draw.randrange(100)) for _ in range(USERS)]
        case dtypes.Decimal():
            return [Decimal(draw.randrange(10**6)) / 100 for _ in range(USERS)]
        case dtypes.List():
            return [[draw.randrange(100) for _ in range(5)] for _ in range(USERS)]
        case _:
            return [draw.random() < 0.5 for _ in range(USERS)]


# --- the query server -----------------------------------------------------------------------------


class Static:
    """One branch version and one slot, without Postgres."""

    def __init__(self, serving: ServingVersion, address: str) -> None:
        self._serving = serving
        self._owners = {
            (JobId(f"job{n}"), p): address for n in range(DATASETS) for p in range(PARTITIONS)
        }

    async def read_serving(
        self,
        key: BranchKey,  # noqa: ARG002  # one branch
        known: CommitId | None,  # noqa: ARG002  # one version
    ) -> ServingVersion | CommitId | None:
        return self._serving

    async def read_owners(self, _jobs: Collection[JobId] | None = None) -> Ownership:
        return Ownership(self._owners, {}, {job for job, _ in self._owners})


class Timed:
    """The application with a record of how long each request took; `/times` gives it and forgets
    it.
    """

    def __init__(self, app: QueryApplication) -> None:
        self._app = app
        self._times: list[float] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/times":
            body = json.dumps(self._times).encode()
            self._times.clear()
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-length", str(len(body)).encode())],
                }
            )
            await send({"type": "http.response.body", "body": body})
            return
        began = time.perf_counter()
        await self._app(scope, receive, send)
        self._times.append(time.perf_counter() - began)


def query_process(folder: str, port: int, mixed: bool) -> None:
    uvloop.run(serve_queries(Path(folder), port, mixed=mixed))


def query_application(
    folder: Path, *, mixed: bool, query_log: QueryLog | None = None
) -> QueryApplication:
    """Return the query server's application over the slot in `folder`."""
    service, views = query_service(folder, mixed=mixed, query_log=query_log)
    return application(service, views)


def query_service(
    folder: Path, *, mixed: bool, query_log: QueryLog | None = None
) -> tuple[QueryService, Views]:
    """Return what serves reads over the slot in `folder`."""
    static = Static(definitions(mixed=mixed), str(folder / "slot.sock"))
    slots, owners, views = SlotConnections(), Owners(static), Views(static)
    service = QueryService(
        views=views,
        lookups=Lookups(slots, owners, 2.0, nothing_hidden),
        executors=Executors(folder / "no-executors.sock", time_limit_ms=10_000),
        inspector=None,  # type: ignore[arg-type]  # not asked here
        barrier=None,  # type: ignore[arg-type]  # not asked here
        secret=no_secret,
        now_us=lambda: time.time_ns() // 1000,
        bounds=QueryLimits(10_000, 30.0, 30.0),
        query_log=query_log,
    )
    return service, views


def application(service: Reads, views: Views) -> QueryApplication:
    """Return the query server's application, without what the benchmarks do not ask for."""
    return QueryApplication(
        service=service,
        views=views,
        status=None,  # type: ignore[arg-type]  # not asked here
        health=HealthEndpoint("bench", {}),
        forwarder=None,  # type: ignore[arg-type]  # nothing is passed on here
        upstreams={},
        access_of=any_token,
        body_limit_bytes=1 << 24,
        refresher=ViewRefresher(views),
        erasures=NothingErased(),
        limits=WorkspaceLimits(1000, 0.0),
    )


async def serve_queries(
    folder: Path, port: int, *, mixed: bool, query_log: QueryLog | None = None
) -> None:
    """Serve the slot in `folder` until the process is killed."""
    await serve_application(query_application(folder, mixed=mixed, query_log=query_log), port)


async def serve_application(app: QueryApplication, port: int) -> None:
    """Serve until the process is killed."""
    gc.collect()
    gc.freeze()
    tune_interpreter()
    how: dict[str, Any] = {"loop": "none", "http": "httptools", "ws": "none", "lifespan": "off"}
    config = uvicorn.Config(Timed(app), port=port, access_log=False, log_config=None, **how)
    await uvicorn.Server(config).serve()


# --- the client -----------------------------------------------------------------------------------


class Connection:
    """One keep-alive HTTP/1.1 connection, as thin as it can be: the client must not be what is
    measured.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: SplitResult
    ) -> None:
        self._reader, self._writer, self._url = reader, writer, url

    @classmethod
    async def open(cls, url: SplitResult) -> Connection:
        return cls(*await asyncio.open_connection(url.hostname, url.port), url)

    async def post(self, body: bytes) -> bytes:
        head = (
            f"POST {self._url.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
            f"application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer.split(b"\r\n", 1)[0], answer
        length = next(
            int(line.split(b":")[1])
            for line in answer.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        return await self._reader.readexactly(length)


def bodies(keys: int) -> list[bytes]:
    draw = random.Random(2)  # noqa: S311  # repeatable, and no secret
    names = [f"F.D{d}_v{f}" for d in range(DATASETS) for f in range(FIELDS)]
    data = [[draw.randrange(USERS) for _ in range(keys)] for _ in range(500)]
    return [
        json.dumps(
            {"inputs": ["F.uid"], "outputs": names, "data": {"F.uid": uids}, "log": False}
        ).encode()
        for uids in data
    ]


def feast_bodies(keys: int) -> list[bytes]:
    """The same questions as Feast's server takes them."""
    draw = random.Random(2)  # noqa: S311  # repeatable, and no secret
    names = [f"D{d}:v{f}" for d in range(DATASETS) for f in range(FIELDS)]
    data = [[draw.randrange(USERS) for _ in range(keys)] for _ in range(500)]
    return [
        json.dumps(
            {"features": names, "entities": {"uid": uids}, "full_feature_names": True}
        ).encode()
        for uids in data
    ]


async def paced(
    url: SplitResult, requests: list[bytes], rate: float, seconds: float
) -> list[float]:
    """Latencies (s) of one connection at a steady rate."""
    connection = await Connection.open(url)
    took: list[float] = []
    start = time.perf_counter()
    number = 0
    while (due := start + number / rate) < start + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        began = time.perf_counter()
        await connection.post(requests[number % len(requests)])
        took.append(time.perf_counter() - began)
        number += 1
    return took


async def saturated(
    url: SplitResult, requests: list[bytes], seconds: float, connections: int
) -> int:
    """Requests answered with `connections` busy all the time."""
    stop = time.perf_counter() + seconds

    async def one(offset: int) -> int:
        connection = await Connection.open(url)
        done = 0
        while time.perf_counter() < stop:
            try:
                await connection.post(requests[(offset + done) % len(requests)])
            except (
                ConnectionError,
                asyncio.IncompleteReadError,
            ):  # some servers end a connection after so many requests
                connection = await Connection.open(url)
                continue
            done += 1
        return done

    return sum(await asyncio.gather(*(one(n * 31) for n in range(connections))))


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children so far, those that have ended included."""
    used = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if stat.parent.name == str(pid):
            used += sum(map(int, fields[11:15]))
        elif fields[1] == str(pid):
            used += sum(map(int, fields[11:13]))
    return used / os.sysconf("SC_CLK_TCK")


def show(name: str, took: list[float]) -> None:
    cuts = statistics.quantiles(took, n=1000)
    print(
        f"  {name:8} p50 {cuts[499] * 1e3:6.3f}  p90 {cuts[899] * 1e3:6.3f}  p99 "
        f"{cuts[989] * 1e3:6.3f} ms  ({len(took)} requests)"
    )


async def measure_peer(arguments: argparse.Namespace) -> None:
    url, requests = urlsplit(arguments.peer), feast_bodies(arguments.keys)
    connection = await Connection.open(url)
    for body in requests[:WARM_PEER]:
        answer = await connection.post(body)
    print(
        f"peer: {DATASETS * FIELDS} features, {arguments.keys} key(s), {len(answer)} "
        "bytes of answer"
    )
    show("http", await paced(url, requests, arguments.rate, arguments.seconds))
    before = cpu_s(arguments.peer_pid) if arguments.peer_pid else 0.0
    done = await saturated(url, requests, arguments.seconds, arguments.connections)
    used = (
        f"; per CPU-second: {done / (cpu_s(arguments.peer_pid) - before):,.0f}"
        if arguments.peer_pid
        else ""
    )
    print(f"  saturated: {done / arguments.seconds:,.0f} requests/s{used}")


async def measure(arguments: argparse.Namespace, slot: Any, server: Any, url: SplitResult) -> None:
    requests = bodies(arguments.keys)
    connection = await first_connection(url)
    for body in requests[:WARM]:
        await connection.post(body)
    times = urlsplit(f"http://{url.netloc}/times")
    await (await Connection.open(times)).post(b"")
    print(
        f"{DATASETS * FIELDS} features, {arguments.keys} key(s), "
        f"{len(await connection.post(requests[0]))} bytes of answer"
    )
    took = await paced(url, requests, arguments.rate, arguments.seconds)
    show("http", took)
    show("server", json.loads(await (await Connection.open(times)).post(b"")))
    before = cpu_s(server.pid), cpu_s(slot.pid)
    done = await saturated(url, requests, arguments.seconds, arguments.connections)
    used = cpu_s(server.pid) - before[0], cpu_s(slot.pid) - before[1]
    print(
        f"  saturated: {done / arguments.seconds:,.0f} requests/s; per CPU-second: "
        f"{done / used[0]:,.0f} query server alone, "
        f"{done / sum(used):,.0f} with the slot"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1, help="rows per request")
    parser.add_argument(
        "--rate", type=float, default=200.0, help="requests per second of the paced run"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each run")
    parser.add_argument(
        "--connections", type=int, default=16, help="connections of the saturated run"
    )
    parser.add_argument("--port", type=int, default=17400)
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="one dataset also has datetime, decimal, list, date and bool fields",
    )
    parser.add_argument(
        "--peer-pid",
        type=int,
        help="its process: say what a request costs it in CPU, children included",
    )
    parser.add_argument(
        "--peer",
        help="URL of Feast's `get-online-features`: measure that instead, with the same client",
    )
    arguments = parser.parse_args()
    if arguments.peer:
        uvloop.run(measure_peer(arguments))
        return
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        slot = spawn.Process(target=slot_process, args=(folder, arguments.mixed))
        server = spawn.Process(target=query_process, args=(folder, arguments.port, arguments.mixed))
        with running(slot, server, Path(folder)):
            url = urlsplit(f"http://127.0.0.1:{arguments.port}/api/v1/query")
            uvloop.run(measure(arguments, slot, server, url))


async def first_connection(url: SplitResult) -> Connection:
    """Return a connection as soon as the server listens."""
    while True:
        try:
            return await Connection.open(url)
        except OSError:
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    main()
