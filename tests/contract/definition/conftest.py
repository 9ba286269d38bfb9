"""The definition server over a real Postgres, with topics in memory."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from fennel_core.connections import secrets
from fennel_core.connections.erasures import Erased
from fennel_core.connections.postgres import pool
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.connectors.postgres import PostgresConnectorStore
from fennel_core.dead_letters.postgres import PostgresDeadLetterCounts
from fennel_core.definition.commit_changes import NotifiedChanges
from fennel_core.definition.commit_service import CommitService
from fennel_core.definition.commit_steps import CommitSteps
from fennel_core.definition.connector_orders import ConnectorOrders
from fennel_core.definition.orchestrator import InlineOrchestrator
from fennel_core.definition.server import application
from fennel_core.definition.server_state import ServerState
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.postgres import PostgresDirectory, PostgresIngestClock
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.postgres import PostgresLedger
from fennel_core.ledger.store import NO_GRACE
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.redrive.routes import router as redrive_router
from fennel_core.redrive.service import Redrive
from fennel_core.redrive.store import MemoryLetterLog
from fennel_core.settings.model import Settings
from fennel_core.sinks.orders import SinkOrders
from fennel_core.sinks.postgres import PostgresSinkControls, PostgresSinkReplays
from fennel_core.sinks.rewinds import SinkRewinds
from fennel_core.sinks.routes import router as sinks_router
from fennel_core.sources.postgres import PostgresSourceControls
from fennel_core.sources.rewind import SourceRewinds
from fennel_core.sources.routes import router as sources_router
from fennel_core.sources.service import SourceService
from fennel_core.sources.store import MemorySourceLog
from fennel_core.sources.trial import SourceTrials
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.ids import CommitId, Millis, WorkspaceId
from tests.support.executors import run_client_program
from tests.support.ingest_world import NoExecutors

ADMIN = "admin-token"


def no_secret(*_: object) -> Any:
    raise AssertionError("no secret was expected to be read")


async def nothing_erased(_: WorkspaceId) -> Erased:
    return {}


@pytest.fixture
def topics() -> MemoryTopicAdmin:
    return MemoryTopicAdmin()


@pytest.fixture
def grace_ms() -> Millis:
    """Return the grace period of released assets; a test module may override it."""
    return NO_GRACE


@pytest.fixture
def limits() -> WorkspaceLimits:
    """Return the limits of each workspace; a test may override it."""
    return WorkspaceLimits(1000, 0.0)


def served(state: ServerState) -> FastAPI:
    """Return the application with the services of its routes."""
    app = application(
        state, HealthEndpoint("test", {}), (sources_router, sinks_router, redrive_router)
    )
    connectors = PostgresConnectorStore(state.pool)
    app.state.source_service = SourceService(
        PostgresDirectory(state.pool), PostgresSourceControls(state.pool), lambda _: {}, connectors
    )
    app.state.connector_orders = ConnectorOrders(
        connectors, state.ledger_context.ledger, state.sealer, state.settings
    )
    app.state.sink_orders = SinkOrders(
        app.state.source_service.branches,
        PostgresSourceControls(state.pool),
        PostgresSinkControls(state.pool),
        PostgresSinkReplays(state.pool),
    )
    app.state.sink_rewinds = SinkRewinds(
        app.state.sink_orders, PostgresSinkControls(state.pool), no_secret, no_secret
    )
    app.state.source_trials = SourceTrials(
        app.state.source_service, NoExecutors(), *[no_secret] * 5
    )
    app.state.source_rewinds = SourceRewinds(
        app.state.source_service,
        PostgresSourceControls(state.pool),
        MemorySourceLog(),
        no_secret,
        no_secret,
        no_secret,
        60.0,
    )
    app.state.redrive = Redrive(
        PostgresDeadLetterCounts(state.pool).topics,
        MemoryLetterLog({}),
        Catalogs(PostgresDirectory(state.pool)),
        PostgresIngestClock(state.pool),
        NoExecutors(),
        no_secret,
        nothing_erased,
        PostgresSinkReplays(state.pool),
        60.0,
    )
    return app


@pytest.fixture
async def client(
    database: str,
    topics: MemoryTopicAdmin,
    tmp_path: Path,
    grace_ms: Millis,
    limits: WorkspaceLimits,
) -> AsyncIterator[httpx.AsyncClient]:  # the fixture
    """Return a client of the workspace `shop`, on branch `main` by default."""
    key = tmp_path / "key"
    secrets.make_key_file(key)
    settings = Settings(dev_tokens=True, admin_token=SecretStr(ADMIN), body_limit_bytes=200_000)
    async with pool(database, name="test", size=6) as connections:
        context = LedgerContext(
            PostgresLedger(connections, grace_ms),
            topics,
            asyncio.sleep,
            LedgerTimings(first_warm_seconds=0.0),
        )
        steps = CommitSteps(
            context,
            run_client_program,
            new_workspace_partitions=2,
            warm_seconds=0.0,
            sealer=secrets.Sealer.from_file(key),
            connectors=PostgresConnectorStore(connections),
        )
        orchestrator = InlineOrchestrator(steps.run)
        changes = NotifiedChanges(database)
        listening = asyncio.create_task(changes.run())
        flow = CommitService(
            steps,
            orchestrator,
            lambda: CommitId(uuid.uuid4().hex),
            time.monotonic,
            timeout_seconds=10,
            changes=changes,
        )
        state = ServerState(
            settings,
            connections,
            flow,
            flow,
            secrets.Sealer.from_file(key),
            wake_reconcile=lambda: None,
            limits=limits,
        )
        app = served(state)
        transport = httpx.ASGITransport(app)
        headers = {"Authorization": "Bearer dev-shop"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", headers=headers
        ) as caller:
            yield caller
        listening.cancel()
        await asyncio.wait([listening])
        await orchestrator.close()
