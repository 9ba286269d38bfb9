"""The page of commits is visible to readers of the DAG's runs, and shows user text as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from markupsafe import escape
from pydantic import ValidationError
from starlette.testclient import TestClient

from fennel_core.blueprints.logical import AssetKind
from fennel_core.blueprints.plan_entries import (
    Notice,
    PlanAction,
    PlanEntry,
    PlanRecord,
    RowAmount,
    encode_record,
)
from fennel_core.blueprints.spec import Catalog
from fennel_core.blueprints.stored_names import dumps
from fennel_core.connections.airflow_users import AirflowUsers
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import AssetId, TopicName, WorkspaceId
from fennel_core.wire.connectors import Login as Credentials
from fennel_core.wire.connectors import Postgres, PostgresTable
from tests.dags.conftest import Login, assert_only
from tests.support.ingest_world import binding, source
from tests.support.sink_bindings import bound, hooks
from tests.support.source_world import stream_source

RAW, TABLE = TopicName("shop.raw.x.1"), TopicName("shop.raw.z.1")
SENT, SINK = TopicName("shop.raw.y.1"), TopicName("shop.sink.x.1")
EVIL = "<script>alert('x')</script>"
PLAN = PlanRecord(
    (
        PlanEntry(
            PlanAction.CREATE,
            AssetKind.TOPIC,
            AssetId("shop.topic.x.1"),
            EVIL,
            "Orders",
            "dataset Orders is new",
            rows_to_recompute=RowAmount(7),
        ),
    ),
    (Notice("history", "Orders", "history is longer"),),
)


def catalog_of_shop() -> Catalog:
    """Return a catalog with a stream, a table, a webhook, and two sinks."""
    table = PostgresTable(
        Postgres("db", "db.example", 5432, "shop", None, Credentials(None, None)), "people", None
    )
    return Catalog(
        WorkspaceId("shop"),
        (),
        (
            replace(stream_source("Orders"), raw_topic=RAW),
            replace(
                binding(dataset="People", of=source("People", table=table)),
                webhook="db",
                endpoint="people",
                raw_topic=TABLE,
                positions=TopicName("shop.positions.z.1"),
            ),
            replace(binding(dataset="Clicks"), raw_topic=SENT),
        ),
        (),
        4,
        sinks=(bound(SINK, hooks("/rows")), bound(TopicName("shop.sink.gone.1"), hooks("/gone"))),
    )


def insert_sources(connection: psycopg.Connection) -> None:
    """Insert what the catalog has, as of commit c59, and dead letters: a stream that is parked, a
    table that is read, and a sink that is paused.
    """
    connection.execute(
        "UPDATE commit SET catalog = %s WHERE id = 'c59'", (dumps(catalog_of_shop()),)
    )
    for topic in (RAW, TABLE, SENT, SINK, "shop.dead.x.1"):
        _, kind, identity, _ = topic.split(".")
        connection.execute(
            "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title, "
            "blueprint) VALUES (%s, 'shop', %s, %s, 1, 'live', '', '')",
            (topic, kind, identity),
        )
        connection.execute(
            "INSERT INTO asset_ref (workspace, branch, commit_id, asset_id) VALUES ('shop', "
            "'main', 'c59', %s)",
            (topic,),
        )
    connection.execute(
        "INSERT INTO source_status (raw_topic, failures, behind, reason, reported_at, fresh_at, "
        "row_count) VALUES (%s, 3, NULL, %s, now(), NULL, 1234), "
        "(%s, 0, NULL, NULL, now(), now() - interval '70 s', 567), "
        "(%s, 0, 89, NULL, now(), NULL, 4321)",
        (RAW, EVIL, TABLE, SINK),
    )
    connection.execute(
        "INSERT INTO sink_pause (workspace, sink, paused_by) VALUES ('shop', 'hooks/rows', %s)",
        (EVIL,),
    )
    connection.execute(
        "INSERT INTO source_clock (workspace, identity, last_rows_at) "
        "VALUES ('shop', 'clicks', now() - interval '3 min')"
    )
    connection.execute(
        "INSERT INTO dead_letter_count (topic, writer, subject, kind, row_count, newest_at, "
        "newest_reason, replayed_rows) VALUES ('shop.dead.x.1', 'ingest', 'Orders', "
        "'not-admitted', 7123, now(), %s, 4)",
        (EVIL,),
    )


@pytest.fixture
def client(login: Login, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    from fennel_airflow.page import application

    monkeypatch.setenv("FENNEL_POSTGRES_DSN", database)
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO workspace (name) VALUES ('shop'), ('bank')")
        for number in range(60):
            connection.execute(
                "INSERT INTO commit"
                " (id, workspace, branch, state, digest, request, options, error, "
                "error_code, problems, attempt, created_at, plan)"
                " VALUES (%s, %s, 'main', 'rejected', '', '', %s, %s, "
                "'join-key-type', '[{\"code\": \"cdc-keys\"}]', 2, %s, %s)",
                (
                    f"c{number:02d}",
                    "bank" if number == 3 else "shop",
                    '{"incremental": false, "allow_data_loss": true}',
                    EVIL,
                    datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number),
                    encode_record(PLAN).decode(),
                ),
            )
        connection.execute(
            "INSERT INTO branch (workspace, name, target, serving) VALUES ('shop', "
            "'main', 'c59', 'c58')"
        )
        connection.execute(
            "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, "
            "title, blueprint)"
            " VALUES ('shop.job.x.1', 'shop', 'job', 'x', 1, 'live', 'Orders by user', '')"
        )
        connection.execute(
            "INSERT INTO ledger_entry (ledger, workspace, commit_id, asset_id, "
            "state, attempts, error)"
            " VALUES ('creation', 'shop', 'c59', 'shop.job.x.1', 'failed', 3, %s)",
            (EVIL,),
        )
        connection.execute(
            "INSERT INTO asset_ref (workspace, branch, commit_id, asset_id) VALUES ('shop', "
            "'main', 'c59', 'shop.job.x.1')"
        )
        connection.execute(
            "INSERT INTO job (id, workspace, spec) VALUES ('shop.job.x.1', 'shop', '')"
        )
        connection.execute(
            "INSERT INTO job_partition (job_id, part, status, error) VALUES "
            "('shop.job.x.1', 0, 'parked', 'ValueError: no')"
        )
        insert_sources(connection)
    with TestClient(application()) as opened:
        yield opened


@pytest.mark.parametrize(
    ("setting", "user", "visible"),
    [
        ("", "bob", None),
        ("bob:*", "bob", None),
        ("alice:*,bob:shop+market", "bob", ["shop", "market"]),
        ("alice:*,bob:shop", "carol", []),
        ("bob:shop=log+market=query+bank=admin", "bob", ["market", "bank"]),
        ("bob:*=log", "bob", []),
    ],
)
def test_a_user_sees_the_workspaces_that_are_listed(
    setting: str, user: str, visible: list[str] | None
) -> None:
    users = AirflowUsers.parse(Settings(airflow_workspaces=setting).airflow_workspaces)
    assert users.readable(user) == visible


@pytest.mark.parametrize(
    "setting",
    ["bob", "bob:", "bob:shop,", "bob:Shop", ":shop", "bob:*+shop", "bob:shop=", "bob:*=operator"],
)
def test_a_malformed_list_of_workspaces_is_refused(setting: str) -> None:
    with pytest.raises(ValidationError):
        Settings(airflow_workspaces=setting)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("bob:*=query,ann:shop,bob:shop=admin", "user `bob` is listed twice"),
        ("bob:shop=query+market+shop=admin", "workspace `shop` of user `bob` is listed twice"),
        ("ann:shop,bob:shop+shop", "workspace `shop` of user `bob` is listed twice"),
    ],
)
def test_a_user_or_workspace_that_is_listed_twice_is_refused_by_name(
    setting: str, named: str
) -> None:
    with pytest.raises(ValidationError, match=named):
        Settings(airflow_workspaces=setting)


@pytest.mark.usefixtures("only_bank")
def test_commits_of_other_workspaces_are_not_shown(request: pytest.FixtureRequest) -> None:
    client = request.getfixturevalue("client")
    headers = request.getfixturevalue("login")("viewer")
    assert_only(client, headers, "/commits", "c03", "c59")
    assert client.get("/commits?workspace=shop", headers=headers).text.count("c5") == 0


@pytest.mark.parametrize("path", ["/commits", "/commits/c59", "/commits/none"])
def test_the_page_requires_a_login(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Authorization": "Bearer made-up"}).status_code == 403
    assert client.get(path, cookies={"_token": "made-up"}).status_code == 403


@pytest.mark.parametrize(("role", "status"), [("viewer", 200), ("admin", 200), (None, 403)])
def test_airflow_authorizes_the_page(
    client: TestClient, login: Login, role: str | None, status: int
) -> None:
    assert client.get("/commits", headers=login(role)).status_code == status


def test_the_newest_commits_come_first_with_links_and_older_ones_behind_a_link(
    client: TestClient, login: Login
) -> None:
    first = client.get("/commits", headers=login("viewer")).text
    assert first.index("c59") < first.index("c58") < first.index("c10")
    assert "c09" not in first
    assert 'href="/dags/commit/runs/commit-c59-2"' in first
    assert "bank" not in first
    link = first.split('<a href="?before=')[1].split('"')[0]
    older = client.get(f"/commits?before={link}", headers=login("viewer")).text
    assert "c09" in older
    assert "c10" not in older
    only = client.get("/commits?workspace=bank", headers=login("viewer")).text
    assert "c03" in only
    assert "c04" not in only


def test_one_commit_shows_its_plan_its_ledgers_and_its_parked_jobs(
    client: TestClient, login: Login
) -> None:
    page = client.get("/commits/c59", headers=login("viewer")).text
    for expected in (
        "assets: 1 created, 0 kept",
        "dataset Orders is new",
        "those of at most 7 messages",
        "history is longer",
        "Orders by user",
        "shop.job.x.1",
        "failed",
        "ValueError: no",
        "jobs write this version",
        "[join-key-type]",
        "cdc-keys",
        "<th>Attempts</th><td>2</td>",
        "<td>incremental: no, allow data loss: yes</td>",
        "<td>7123</td><td>7119</td>",
    ):
        assert expected in page, expected


def test_one_commit_shows_its_sources_and_sinks_with_rows_lag_and_error(
    client: TestClient, login: Login
) -> None:
    page = client.get("/commits/c59", headers=login("viewer")).text
    cells = [
        re.sub(r"<[^>]*>", "", row.replace("</td><td", "|<"))
        for row in page.splitlines()
        if row.startswith("<tr><td>")
    ]
    evil = str(escape(EVIL))
    [stream] = [row for row in cells if row.startswith("kafka/orders|")]
    assert stream.startswith("kafka/orders|kafka|Orders|parked|1234|?|3|")
    assert stream.endswith(evil)
    [table] = [row for row in cells if row.startswith("db/people|")]
    assert "|postgres|People|running|567|read to its end 0:01:1" in table
    [sent] = [row for row in cells if row.startswith("hook/e|")]
    assert "|webhook|Clicks|sent|counted by metrics; the last was accepted 0:03:0" in sent
    [sink] = [row for row in cells if row.startswith("hooks/")]
    assert f"hooks/rows|http|Users|paused by {evil}|4321|?|0|" in sink
    empty = client.get("/commits/c58", headers=login("viewer")).text
    assert "This version has no source." in empty
    assert "This version has no sink." in empty


@pytest.mark.parametrize("name", ["none", "%3Cscript%3E"])
def test_an_unknown_commit_is_a_page_that_says_so(
    client: TestClient, login: Login, name: str
) -> None:
    response = client.get(f"/commits/{name}", headers=login("viewer"))
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "Unknown commit" in response.text
    assert 'href="../commits"' in response.text
    assert "<script>" not in response.text


@pytest.mark.parametrize(
    "path",
    [
        "/commits/%00",
        "/commits?workspace=%00",
        "/offline_queries/a%00",
        "/offline_queries?workspace=%00",
    ],
)
def test_a_character_that_postgres_refuses_is_not_found(
    client: TestClient, login: Login, path: str
) -> None:
    assert client.get(path, headers=login("viewer")).status_code == 404


@pytest.mark.parametrize("path", ["/commits", "/commits/c59", "/commits?workspace=%3Cscript%3E"])
def test_what_users_wrote_is_text_and_the_page_runs_no_scripts(
    client: TestClient, login: Login, path: str
) -> None:
    response = client.get(path, headers=login("viewer"))
    assert "<script>" not in response.text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
