"""The page of expectations shows the shares, and text of users as text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from starlette.testclient import TestClient

from tests.dags.conftest import Login

EVIL = "<script>alert('x')</script>"


@pytest.fixture
def client(login: Login, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    from fennel_airflow.page import application

    monkeypatch.setenv("FENNEL_POSTGRES_DSN", database)
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO workspace (name) VALUES ('shop'), ('bank')")
        for number, (workspace, kind, evaluated, failed) in enumerate(
            [
                ("shop", "expect_met", 1000, 100),
                ("shop", "expect_unmet", 1000, 101),
                ("bank", "expect_unseen", 0, 0),
            ]
        ):
            given = {"column": EVIL, "min_value": 0, "max_value": None, "strict_min": False}
            arguments = json.dumps(given | {"mostly": 0.9, "include_config": True})
            connection.execute(
                "INSERT INTO expectation_count VALUES (%s, 'd', %s, 'Orders', %s, %s, 0.9, %s, %s, "
                "now())",
                (f"t{number}", workspace, kind, arguments, evaluated, failed),
            )
    with TestClient(application()) as opened:
        yield opened


def test_shares_are_shown_and_what_is_not_met_comes_first(client: TestClient, login: Login) -> None:
    page = client.get("/expectations", headers=login("viewer")).text
    assert page.index("expect_unmet") < page.index("expect_met")
    unmet, met = (
        next(row for row in page.split("<tr>") if name in row)
        for name in ("expect_unmet", "expect_met")
    )
    assert [
        text for text in ("89.90 %", "90.00 %", ">no<", "1,000", "101") if text not in unmet
    ] == []
    assert ">yes<" in met
    assert EVIL not in page
    assert "&lt;script&gt;" in page
    assert "min_value=0" in page
    assert [hidden for hidden in ("include_config", "max_value", "strict") if hidden in page] == []


def test_what_is_not_met_is_within_the_limit(
    client: TestClient, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennel_airflow.expectation_pages.ROWS", 1)
    page = client.get("/expectations", headers=login("viewer")).text
    assert "expect_unmet" in page
    assert "expect_unseen" not in page


def test_a_workspace_can_be_chosen_and_a_login_is_required(
    client: TestClient, login: Login
) -> None:
    only = client.get("/expectations?workspace=bank", headers=login("viewer")).text
    assert "expect_unseen" in only
    assert "expect_met" not in only
    assert client.get("/expectations").status_code == 401


def test_users_see_only_the_workspaces_that_they_may_read(
    client: TestClient, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fennel_airflow.page import application

    monkeypatch.setenv("FENNEL_AIRFLOW_WORKSPACES", "ann:bank=query")
    with TestClient(application()) as opened:
        page = opened.get("/expectations", headers=login("viewer")).text
    assert "expect_unseen" in page
    assert "expect_met" not in page
