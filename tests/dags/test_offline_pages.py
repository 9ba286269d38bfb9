"""The pages of offline queries show the state of every request, and user text as text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from starlette.testclient import TestClient

from fennel_core.connections import workspaces
from fennel_core.connections.postgres import pool
from fennel_core.offline import request_row
from fennel_core.offline.request_postgres import PostgresRequests
from fennel_core.offline.request_row import (
    FailedRow,
    NewRequest,
    ReadEstimate,
    RequestDefinition,
    RequestFailure,
    RequestResult,
    RunProgress,
    StoredFile,
)
from fennel_core.vocab.ids import MAIN_BRANCH, WorkspaceId
from tests.dags.conftest import Login, assert_only

EVIL = "<script>alert('x')</script>"
SHOP, BANK = WorkspaceId("shop"), WorkspaceId("bank")
READ = ReadEstimate(5, 1500, 7)
WANTED = RequestDefinition(("F.k",), (EVIL,), "at", EVIL, 2000, "in", 0, 0, ("no history",), READ)
RESULT = RequestResult("r", (StoredFile("a", "b", 2000, 3),), (FailedRow(7, EVIL),), None)


async def fill(database: str) -> None:
    """Store one request of each state, and more than a page of others before them."""
    async with pool(database, name="test", size=2) as connections:
        store = PostgresRequests(connections)
        for name in (SHOP, BANK):
            await workspaces.create(connections, name)

        async def add(id_: str, workspace: WorkspaceId = SHOP, run: str | None = None) -> None:
            new = NewRequest(id_, workspace, MAIN_BRANCH, "ann", WANTED, run)
            await store.add(new, 100)

        for number in range(50):
            await add(f"old{number:02}")
        await add("secret", BANK)
        await add("waiting")
        await add("formed", run="manual__2026-01-01T00:00:00+00:00")
        for id_ in ("working", "failed", "done"):
            await add(id_)
            await store.change(id_, request_row.started)
            await store.change(id_, request_row.claimed)
        progress, broken = RunProgress(0.25, 20), RequestFailure("offline-job-failed", EVIL)
        await store.change("working", lambda r, now: request_row.reported(r, 1, progress, now))
        await store.change("failed", lambda r, now: request_row.failed(r, 1, broken, now))
        await store.change("done", lambda r, now: request_row.finished(r, 1, RESULT, now))


@pytest.fixture
def client(login: Login, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    from fennel_airflow.page import application

    monkeypatch.setenv("FENNEL_POSTGRES_DSN", database)
    asyncio.run(fill(database))
    with TestClient(application()) as opened:
        yield opened


def row_of(page: str, id_: str) -> str:
    """Return the row of the table that names a request."""
    [row] = [each for each in page.split("<tr>") if f"offline_queries/{id_}" in each]
    return row


def test_the_list_shows_the_state_the_rates_and_the_run_of_each_request(
    client: TestClient, login: Login
) -> None:
    page = client.get("/offline_queries", headers=login("viewer")).text
    assert page.index("offline_queries/done") < page.index("offline_queries/waiting")
    expected = {
        "waiting": ("queued", "0 %", "2,000"),
        "working": ("running", "25 %", "20 (1.0 %)", "/dags/offline_query/runs/offline-working-1"),
        "formed": ("queued", "/dags/offline_query/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00"),
        "failed": ("failed", "100 %", "[offline-job-failed]"),
        "done": ("done", "100 %", "3 (0.1 %)"),
    }
    for id_, texts in expected.items():
        row = row_of(page, id_)
        assert [text for text in texts if text not in row] == [], id_
    assert "DAG run" not in row_of(page, "waiting")


def test_older_requests_are_behind_a_link_and_a_workspace_can_be_chosen(
    client: TestClient, login: Login
) -> None:
    headers = login("viewer")
    first = client.get("/offline_queries", headers=headers).text
    assert "old00" not in first
    link = first.split('<a href="?before=')[1].split('"')[0]
    older = client.get(f"/offline_queries?before={link}", headers=headers).text
    assert "old00" in older
    assert "working" not in older
    only = client.get("/offline_queries?workspace=bank", headers=headers).text
    assert "secret" in only
    assert "working" not in only


def test_one_request_shows_what_it_asked_for_and_the_rows_that_failed(
    client: TestClient, login: Login
) -> None:
    headers = login("viewer")
    done = client.get("/offline_queries/done", headers=headers).text
    for text in ("F.k", "no history", "<td>7</td>", "1 of 3", "offline download done FOLDER"):
        assert text in done, text
    assert "5 versions in 1.5 kB of history and 7 records" in done
    working = client.get("/offline_queries/working", headers=headers).text
    assert "so far" in working
    assert "fennel-core offline cancel working" in working
    unknown = client.get("/offline_queries/%3Cscript%3E", headers=headers)
    assert (unknown.status_code, "<script>" in unknown.text) == (404, False)
    assert 'href="../offline_queries"' in unknown.text


@pytest.mark.parametrize("path", ["/offline_queries", "/offline_queries/done"])
def test_the_pages_require_a_role_and_show_what_users_wrote_as_text(
    client: TestClient, login: Login, path: str
) -> None:
    assert client.get(path).status_code == 401
    assert client.get(path, headers=login(None)).status_code == 403
    response = client.get(path, headers=login("viewer"))
    assert "&lt;script&gt;" in response.text
    assert "<script>" not in response.text
    assert "default-src 'none'" in response.headers["content-security-policy"]


@pytest.mark.usefixtures("only_bank")
def test_requests_of_other_workspaces_are_not_shown(request: pytest.FixtureRequest) -> None:
    client = request.getfixturevalue("client")
    headers = request.getfixturevalue("login")("viewer")
    assert_only(client, headers, "/offline_queries", "secret", "working")


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(seconds=-1), "0 s"),
        (timedelta(seconds=119), "119 s"),
        (timedelta(minutes=119), "119 min"),
        (timedelta(hours=47), "47 h"),
        (timedelta(days=9), "9 d"),
    ],
)
def test_an_age_has_one_unit(age: timedelta, text: str) -> None:
    from fennel_airflow.offline_pages import age_text

    assert age_text(age) == text
