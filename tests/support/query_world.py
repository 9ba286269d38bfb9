"""A whole query server over fakes: real HTTP and frames; branches and topic ends in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import polars as pl
import uvicorn
from aiohttp import web

from fennel_core.apps.http_protection import ProtectedApplication, Protection
from fennel_core.blueprints.spec import Catalog, DatasetView, Job
from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.erasures import ErasableKeys
from fennel_core.connections.roles import Access, Role
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.executors.client import Executors
from fennel_core.query.barrier import Barrier, Ends
from fennel_core.query.errors import ErasuresUnknown, UnknownBranch
from fennel_core.query.forward import Forwarder, Upstream
from fennel_core.query.inspect import Inspector
from fennel_core.query.large_reads import DividedReads
from fennel_core.query.log_blocks import LoggedQuery, blocks_of_queries
from fennel_core.query.lookups import Lookups
from fennel_core.query.owners import Owners
from fennel_core.query.server import QueryApplication
from fennel_core.query.service import QueryLimits, QueryService
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.query.view import BranchKey, ServingVersion, Views
from fennel_core.query.view_refresh import ViewRefresher
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import (
    BranchName,
    CommitId,
    JobId,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.query_log_blocks import rows_of
from fennel_core.wire.entities import Dataset, SyncRequest
from tests.support.fake_slots import FakeRegistry, FakeSlot
from tests.support.polling import eventually

WORKSPACE = WorkspaceId("w")
PARTITIONS = 4
BODY_LIMIT = 64 * 1024
ROWS_LIMIT = 1000


def table_view(
    dataset: Dataset,
    *,
    online: bool = True,
    offline: bool = True,
    topic: str | None = None,
    served: bool = True,
    erase_keys: tuple[str, ...] = (),
) -> DatasetView:
    return DatasetView(
        name=dataset.name,
        version=1,
        schema=dataset.schema,
        topic=None if topic is None else TopicName(topic),
        served_by=JobId(f"job-{dataset.name}") if served else None,
        online=online,
        offline=offline,
        erase_keys=erase_keys,
        is_source=True,
    )


@dataclass
class FakePlatform:
    """The contents of Postgres and Kafka, set by the test."""

    branches: dict[str, ServingVersion | None] = field(default_factory=dict)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    topic_ends: dict[TopicPartition, int] = field(default_factory=dict)
    tails: dict[str, pl.DataFrame] = field(default_factory=dict)
    serving_reads: int = 0
    unreachable: bool = False
    end_reads: list[Sequence[TopicPartition]] = field(default_factory=list)
    job_reads: list[list[JobId]] = field(default_factory=list)

    def serve(
        self,
        request: SyncRequest,
        views: Sequence[DatasetView],
        branch: str = "main",
        commit: str = "c1",
    ) -> None:
        catalog = Catalog(WORKSPACE, tuple(views), (), (), PARTITIONS)
        self.branches[branch] = ServingVersion(CommitId(commit), request, catalog)

    async def read_serving(
        self, key: BranchKey, known: CommitId | None
    ) -> ServingVersion | CommitId | None:
        self.serving_reads += 1
        if self.unreachable:
            raise DatabaseUnavailable("the platform's database cannot be reached; try again")
        if key[1] not in self.branches:
            raise UnknownBranch(key[1])
        serving = self.branches[key[1]]
        return serving.commit if serving is not None and serving.commit == known else serving

    async def read_jobs(self, jobs: Sequence[JobId]) -> Mapping[JobId, Job]:
        self.job_reads.append(list(jobs))
        return {job: self.jobs[job] for job in jobs if job in self.jobs}

    async def ends(self, partitions: Sequence[TopicPartition]) -> Ends:
        self.end_reads.append(partitions)
        return {place: self.topic_ends.get(place, 0) for place in partitions}

    async def tail(self, topic: TopicName, partitions: int, rows: int) -> pl.DataFrame | None:
        return self.tails.get(topic)


@dataclass
class FakeErasures:
    """The erased keys, set by the test. `unknown`: the list could not be read."""

    keys: set[bytes] = field(default_factory=set)
    unknown: bool = False
    behind: list[WorkspaceId] = field(default_factory=list)
    announced: list[WorkspaceId] = field(default_factory=list)

    def hidden(self, of: ErasableKeys, keys: Sequence[bytes]) -> Sequence[int]:
        if self.unknown:
            raise ErasuresUnknown()
        return [place for place, key in enumerate(keys) if key in self.keys]

    async def announce(self, workspace: WorkspaceId) -> None:
        self.announced.append(workspace)

    def is_behind(self, workspace: WorkspaceId) -> bool:
        return workspace in self.behind

    async def catch_up(self, workspace: WorkspaceId) -> None:
        self.behind.remove(workspace)
        self.unknown = False


@dataclass
class Upstreams:
    """The servers behind the front door: record requests and send the response set by the test."""

    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    status: int = 200
    body: bytes = b'{"ok": true}'
    headers: dict[str, str] = field(
        default_factory=lambda: {"X-Fennel-Special": "Yes", "Content-Type": "application/json"}
    )
    hook: Any = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self.hook is not None:
            self.hook()
        self.seen.append((request.method, request.raw_path, dict(request.headers), body))
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@dataclass
class RecordedLog:
    """The queries that were logged. `full`: it takes no more."""

    queries: list[LoggedQuery] = field(default_factory=list)
    full: bool = False

    def put(self, query: LoggedQuery) -> bool:
        if not self.full:
            self.queries.append(query)
        return not self.full

    def rows(self, *erased: bytes) -> pl.DataFrame:
        """Return the rows of the only block that the queries become."""
        [(block, _)] = blocks_of_queries(self.queries)
        return rows_of(block, set(erased))


@dataclass
class World:
    url: str
    client: aiohttp.ClientSession
    platform: FakePlatform
    registry: FakeRegistry
    slot: FakeSlot
    upstreams: Upstreams
    views: Views
    erased: FakeErasures
    service: QueryService
    clock: list[int]
    query_log: RecordedLog
    divided: DividedReads

    async def post(
        self, path: str, body: Any = None, *, branch: str | None = None, data: bytes | None = None
    ) -> tuple[int, Any]:
        headers = {"Authorization": "Bearer t"} | (
            {} if branch is None else {"X-FENNEL-BRANCH": branch}
        )
        arguments: dict[str, Any] = {"data": data} if data is not None else {"json": body}
        async with self.client.post(
            f"{self.url}/api/v1/{path}", headers=headers, **arguments
        ) as answer:
            return answer.status, await _content(answer)

    async def get(self, path: str, *, branch: str | None = None) -> tuple[int, Any]:
        headers = {"Authorization": "Bearer t"} | (
            {} if branch is None else {"X-FENNEL-BRANCH": branch}
        )
        async with self.client.get(f"{self.url}/{path}", headers=headers) as answer:
            return answer.status, await _content(answer)


async def _content(answer: aiohttp.ClientResponse) -> Any:
    return await answer.json() if answer.content_type == "application/json" else await answer.text()


async def access_of(authorization: str | None) -> Access:
    if authorization != "Bearer t":
        raise ApiError(
            401, "unauthenticated", "no token: send the header `Authorization: Bearer <token>`"
        )
    return Access(WORKSPACE, Role.ADMIN, "token t")


def helper_socket(folder: Path) -> Path:
    """Return where the world's server looks for a helper; a test may serve large reads there."""
    return folder / "helper.sock"


def query_service(
    folder: Path,
    platform: FakePlatform,
    registry: FakeRegistry,
    views: Views,
    erased: FakeErasures,
    clock: list[int],
    query_log: RecordedLog,
) -> QueryService:
    """Return what serves reads from the world's slot."""
    slots, owners = SlotConnections(), Owners(registry)
    return QueryService(
        views=views,
        lookups=Lookups(slots, owners, 1.0, erased.hidden),
        executors=Executors(folder / "executors.sock", time_limit_ms=10_000),
        inspector=Inspector(platform, slots, owners, 1.0, erased.hidden),  # type: ignore[arg-type]  # has the one method
        barrier=Barrier(platform, platform, owners, slots),
        secret=_no_secret,
        now_us=lambda: clock[0],
        bounds=QueryLimits(ROWS_LIMIT, 10.0, 5.0),
        query_log=query_log,
    )


@asynccontextmanager
async def running_world(folder: Path, helper_silence_s: float = 10.0) -> AsyncIterator[World]:
    platform, registry, upstreams, clock = FakePlatform(), FakeRegistry(), Upstreams(), [10**15]
    views, erased = Views(platform), FakeErasures()
    refresher = ViewRefresher(views)
    limits, query_log = WorkspaceLimits(1000, 0.0), RecordedLog()
    upstream = web.AppRunner(_upstream_app(upstreams))
    await upstream.setup()
    site = web.TCPSite(upstream, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{upstream.addresses[0][1]}"
    forwarder = Forwarder(BODY_LIMIT)
    service = query_service(folder, platform, registry, views, erased, clock, query_log)
    divided = DividedReads(
        service, views, [str(helper_socket(folder))], ROWS_LIMIT, 10.0, helper_silence_s
    )
    app = QueryApplication(
        service=divided,
        views=views,
        status=None,  # type: ignore[arg-type]  # needs Postgres
        health=HealthEndpoint("query", {}),
        forwarder=forwarder,
        upstreams={
            "log": Upstream("ingest", f"{address}/ingest"),
            "erase": Upstream("ingest", f"{address}/ingest"),
            "": Upstream("definition", f"{address}/definition"),
        },
        access_of=access_of,
        body_limit_bytes=BODY_LIMIT,
        refresher=refresher,
        erasures=erased,
        limits=limits,
    )
    refreshing = asyncio.create_task(refresher.run())
    config = uvicorn.Config(
        ProtectedApplication(app, Protection(body_limit_bytes=BODY_LIMIT)),
        port=0,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with aiohttp.ClientSession() as client, FakeSlot(folder / "slot.sock") as slot:
        yield World(
            *(url, client, platform, registry, slot, upstreams, views, erased, service, clock),
            query_log,
            divided,
        )
        refreshing.cancel()
        server.should_exit = True
        await serving
        await forwarder.close()
        await divided.close()
        await upstream.cleanup()


def _upstream_app(upstreams: Upstreams) -> web.Application:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", upstreams.handle)
    return app


async def _no_secret(workspace: WorkspaceId, version: str, name: str) -> str | None:
    return None


def branch(name: str) -> BranchKey:
    return WORKSPACE, BranchName(name)
