"""Guarantees of the running platform: commits, barriers, refusals, isolation and secrets."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition

from fennel_core.connections.kafka import consumer_config
from fennel_core.settings.model import Settings
from tests.support.installation import own_state
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform")]
NOW = "2026-01-01T00:00:00"


SECRETIVE = "tests.e2e.platform.secretive"


async def test_a_commit_through_airflow_serves_what_is_logged(
    make: Callable[[], Awaitable[Api]],
) -> None:
    api = await make()
    await api.commit(SECRETIVE)
    assert (await api.log(name=["Ada"], age=[36], at=[NOW]))[0] == 200
    await api.good("POST", "/barrier", {"timeout_s": 30})
    assert (await api.person("Ada"))["data"]["age"] == [36]


async def test_workspaces_do_not_see_each_other(make: Callable[[], Awaitable[Api]]) -> None:
    one, other = await make(), await make()
    for api, age in ((one, 1), (other, 2)):
        await api.commit(SECRETIVE, **INLINE)
        assert (await api.log(name=["Ada"], age=[age], at=[NOW]))[0] == 200
        await api.good("POST", "/barrier", {"timeout_s": 30})
    assert (await one.person("Ada"))["data"]["age"] == [1]
    assert (await other.person("Ada"))["data"]["age"] == [2]


def topics_of(workspace: str, settings: Settings) -> list[str]:
    consumer = Consumer(consumer_config(settings))
    try:
        return [
            name
            for name in consumer.list_topics(timeout=10).topics
            if name.startswith(f"{workspace}.")
        ]
    finally:
        consumer.close()


async def test_a_deleted_workspace_leaves_nothing(
    make: Callable[[], Awaitable[Api]], settings: Settings
) -> None:
    api = await make()
    await api.commit(SECRETIVE, **INLINE)
    assert topics_of(api.workspace, settings)
    admin, api.token = settings.admin_token.get_secret_value(), None
    await api.good("DELETE", f"/workspaces/{api.workspace}", Authorization=f"Bearer {admin}")

    def left() -> list[str]:
        folders = [path.name for path in own_state(settings).iterdir()]
        return topics_of(api.workspace, settings) + [
            name for name in folders if name.startswith(f"{api.workspace}.")
        ]

    await eventually(lambda: not left(), within_s=60, interval_s=0.5, what=left)
    with psycopg.connect(settings.postgres_dsn.get_secret_value()) as connection:
        jobs = connection.execute(
            "SELECT count(*) FROM job WHERE workspace = %s", (api.workspace,)
        ).fetchone()
    assert jobs == (0,)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "text"),
    [
        ("POST", "/commit", b"\xff\xff not a protobuf", {}, 400, "SyncRequest"),
        (
            "POST",
            "/query",
            {"inputs": [], "outputs": ["A.b"], "data": {}},
            {"X-FENNEL-BRANCH": "nowhere"},
            500,
            "branch `nowhere` does not exist",
        ),
        (
            "POST",
            "/log",
            {"webhook": "no", "endpoint": "such", "data": {"a": [1]}},
            {},
            404,
            "Webhook endpoint no_such not found",
        ),
        ("POST", "/log", b"{", {}, 400, "JSON"),
        (
            "POST",
            "/log",
            {
                "webhook": "door",
                "endpoint": "people",
                "data": {"name": ["x"], "age": ["old"], "at": [NOW]},
            },
            {},
            500,
            "age",
        ),
        ("GET", "/nothing/here", None, {}, 404, ""),
    ],
    ids=[
        "malformed protobuf",
        "unknown branch",
        "unknown endpoint",
        "malformed JSON",
        "wrong type",
        "unknown path",
    ],
)
async def test_bad_input_is_refused_with_a_reason_and_nothing_is_done(
    make: Callable[[], Awaitable[Api]],
    method: str,
    path: str,
    body: Any,
    headers: dict[str, str],
    status: int,
    text: str,
) -> None:
    api = await make()
    await api.commit(SECRETIVE, **INLINE)
    found, response = await api.call(method, path, body, **headers)
    assert (found, text in response) == (status, True), f"{found} {response}"
    await api.good("POST", "/barrier", {"timeout_s": 30})
    assert await api.good("GET", "/dataset/Person/inspect?n=10") in (
        [],
        {"name": [], "age": [], "at": []},
    )


@pytest.mark.parametrize(
    ("token", "refusal"), [(None, 401), ("wrong", 401), ("dev-", 400), ("dev-UPPER CASE", 400)]
)
async def test_a_request_without_a_valid_token_is_refused(
    make: Callable[[], Awaitable[Api]], token: str | None, refusal: int
) -> None:
    api = await make()
    api.token = token
    for method, path in (
        ("GET", "/branch/list"),
        ("POST", "/query"),
        ("POST", "/log"),
        ("POST", "/commit"),
        ("POST", "/barrier"),
    ):
        status, response = await api.call(method, path, b"{}")
        assert status == refusal, f"{method} {path}: {status} {response}"


async def test_a_body_of_100_mib_is_refused_without_harm(
    make: Callable[[], Awaitable[Api]],
) -> None:
    api = await make()
    try:
        status, response = await api.call("POST", "/log", b"x" * (100 * 1024 * 1024))
        assert status == 413, response
    except aiohttp.ClientConnectionError:
        pass  # the server closed the connection before the whole body was sent: a refusal too
    assert (await api.good("GET", "/branch/list"))["branches"] == [{"name": "main"}]


@pytest.fixture
def paused_engine(settings: Settings) -> Iterator[None]:
    """Freeze the engine's slots, and resume them afterwards."""
    found = subprocess.run(
        ["pgrep", "-f", "pyspark.daemon"],  # noqa: S607  # found on the PATH, as by its users
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    ours = [
        int(pid)
        for pid in found
        if Path(f"/proc/{pid}/environ").read_text(errors="replace").find(str(settings.data_dir))
        >= 0
    ]
    assert ours, "the engine runs its slots as Spark's Python workers"
    for pid in ours:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in ours:
        os.kill(pid, signal.SIGCONT)


async def test_a_barrier_over_a_frozen_engine_names_what_lags(
    make: Callable[[], Awaitable[Api]], settings: Settings, request: pytest.FixtureRequest
) -> None:
    api = await make()
    await api.commit(SECRETIVE, **INLINE)
    await api.good("POST", "/barrier", {"timeout_s": 30})
    request.getfixturevalue("paused_engine")
    assert (await api.log(name=["Ada"], age=[1], at=[NOW]))[0] == 200
    started = time.monotonic()
    status, response = await api.call("POST", "/barrier", {"timeout_s": 2})
    assert status == 504, response
    assert time.monotonic() - started < 6
    assert f"{api.workspace}.job." in response, "the lagging job is named"
    assert "[" in response or "partition" in response, "and its partition"


async def test_a_secret_is_usable_and_never_stored_or_logged_in_clear(
    make: Callable[[], Awaitable[Api]], settings: Settings
) -> None:
    api = await make()
    value = f"hush-{uuid.uuid4().hex}"
    await api.good("POST", "/secret/vault", {"value": value})
    await api.commit(SECRETIVE)
    body = {
        "inputs": ["Sealed.name"],
        "outputs": ["Sealed.length"],
        "data": {"Sealed.name": ["x"]},
        "log": False,
    }
    assert (await api.good("POST", "/query", body)) == {"Sealed.length": [len(value)]}
    assert await api.good("GET", "/secret/vault") == {"value": value}
    assert logs_with(value, settings) == []
    assert rows_with(value, settings) == []
    assert topics_with(value, api.workspace, settings) == []


def logs_with(value: str, settings: Settings) -> list[str]:
    folders = [settings.logs_dir, settings.data_dir / "airflow"]
    found = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        ["grep", "-rlaF", value, *(str(f) for f in folders if f.exists())],  # noqa: S607  # found on the PATH, as by its users
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.split()


def rows_with(value: str, settings: Settings) -> list[str]:
    """Tables of the platform's and Airflow's databases that hold the text anywhere."""
    dsn = settings.postgres_dsn.get_secret_value()
    with psycopg.connect(dsn) as connection:
        names = [
            r[0]
            for r in connection.execute("SELECT datname FROM pg_database WHERE NOT datistemplate")
        ]
    found = []
    for name in names:
        with psycopg.connect(dsn, dbname=name) as connection:
            tables = connection.execute(
                "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables "
                "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
            ).fetchall()
            for (table,) in tables:
                query = f"SELECT 1 FROM {table} t WHERE t::text LIKE %s LIMIT 1"  # noqa: S608  # the text is a constant of this test
                if connection.execute(query, (f"%{value}%",)).fetchone():  # type: ignore[arg-type]  # names come quoted from the server
                    found.append(f"{name}.{table}")
    return found


def topics_with(value: str, workspace: str, settings: Settings) -> list[str]:
    consumer = Consumer(consumer_config(settings, fetch_wait_ms=10))
    found = []
    try:
        for name in topics_of(workspace, settings):
            parts = consumer.list_topics(name, timeout=10).topics[name].partitions
            for part in parts:
                consumer.assign([TopicPartition(name, part, 0)])
                _, end = consumer.get_watermark_offsets(TopicPartition(name, part), 10)
                while end and (message := consumer.poll(5)) is not None and message.error() is None:
                    if value.encode() in (message.value() or b""):
                        found.append(name)
    finally:
        consumer.close()
    return found
