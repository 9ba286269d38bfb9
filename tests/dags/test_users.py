"""Who may start runs for which workspace, and what the audit log says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.dags import conftest as _configured  # noqa: F401  # Airflow is configured before its first import

from airflow.sdk.exceptions import AirflowFailException  # isort: skip
from fennel_airflow import task_bodies  # isort: skip

FORM = {
    "definitions": "shop",
    "workspace": "shop",
    "branch": "main",
    "message": None,
    "env": None,
    "incremental": False,
    "backfill": True,
    "allow_data_loss": False,
}
SELECTION = {
    "workspace": "shop",
    "dataset": None,
    "jobs": [],
    "partitions": [],
    "before": None,
    "at_most": None,
    "max_bytes": None,
}
SETTING = "alice:*=admin,bob:shop=query+market,carol:shop=commit,dan:market=admin"
Audit = Callable[[], list[tuple[str, ...]]]


@pytest.fixture
def audit(database: str, monkeypatch: pytest.MonkeyPatch) -> Audit:
    """Return a function that reads the audit log; code of definitions must not run."""
    monkeypatch.setenv("FENNEL_POSTGRES_DSN", database)
    monkeypatch.setenv("FENNEL_AIRFLOW_WORKSPACES", SETTING)

    async def run_code(*_: object, **__: object) -> tuple[bytes, str]:
        raise task_bodies.DefinitionsNotLoaded("the code ran")

    monkeypatch.setattr(task_bodies, "read", run_code)
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO workspace (name) VALUES ('shop'), ('market')")
        connection.execute(
            "INSERT INTO commit (id, workspace, branch, state, digest, request, options, problems)"
            " VALUES ('c1', 'shop', 'main', 'received', '', '', '{}', '[]')"
        )
        connection.execute(
            "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title,"
            " blueprint) VALUES ('shop.job.x.1', 'shop', 'job', 'x', 1, 'live', 'Order: table', '')"
        )
        connection.execute(
            "INSERT INTO job (id, workspace, spec) VALUES ('shop.job.x.1', 'shop', '')"
        )
        connection.execute(
            "INSERT INTO job_partition (job_id, part, status) VALUES ('shop.job.x.1', 0, 'running')"
        )

    def read() -> list[tuple[str, ...]]:
        with psycopg.connect(database) as connection:
            return connection.execute(
                "SELECT workspace, actor, action, outcome FROM audit_event ORDER BY id"
            ).fetchall()

    return read


def refusal(user: str, has: str, needed: str) -> str:
    return rf"user `{user}` of Airflow has {has} in workspace `shop`, and this run needs {needed}; "


@pytest.mark.parametrize("step", ["submit_commit", "preview_commit"])
@pytest.mark.parametrize(
    ("user", "has"),
    [("bob", "the role `query`"), ("dan", "no role"), ("eve", "no role"), ("unknown", "no role")],
)
def test_a_user_without_the_role_commits_nothing_and_runs_no_code(
    audit: Audit, step: str, user: str, has: str
) -> None:
    expected = refusal(user, has, "`commit` or `admin`") + "an operator gives roles with FENNEL_"
    with pytest.raises(AirflowFailException, match=expected):
        getattr(task_bodies, step)(FORM, user)
    actor = f"user {user} of Airflow"
    assert audit() == [
        ("shop", actor, "commit", "started"),
        ("shop", actor, "commit", "airflow-user-refused"),
    ]


@pytest.mark.parametrize("user", ["alice", "carol"])
def test_a_user_with_the_role_runs_the_code_of_definitions(audit: Audit, user: str) -> None:
    with pytest.raises(AirflowFailException, match="the code ran"):
        task_bodies.submit_commit(FORM, user)
    assert audit() == []


def test_a_stored_commit_is_run_by_the_platform_or_with_the_role(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENNEL_AIRFLOW_USER", "platform")
    task_bodies.permit_stored_commit("c1", "platform")
    task_bodies.permit_stored_commit("c1", "carol")
    assert audit() == []
    with pytest.raises(
        AirflowFailException, match=refusal("bob", "the role `query`", "`commit` or `admin`")
    ):
        task_bodies.permit_stored_commit("c1", "bob")
    with pytest.raises(AirflowFailException, match="commit-not-found"):
        task_bodies.permit_stored_commit("c2", "carol")
    assert {row[1] for row in audit()} == {"user bob of Airflow"}


def test_the_platforms_own_login_commits_from_the_form_only_if_it_is_listed(audit: Audit) -> None:
    with pytest.raises(AirflowFailException, match="user `admin` of Airflow has no role"):
        task_bodies.submit_commit(FORM, "admin")
    assert len(audit()) == 2


@pytest.mark.parametrize("step", ["select_partitions", "rebuild_partitions", "drill_partitions"])
def test_only_administrators_rebuild_and_drill(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(task_bodies.rebuild, "rebuild_partitions", lambda *a, **_: ran.append(a))
    monkeypatch.setattr(task_bodies.drills, "run_drills", lambda *a, **_: ran.append(a))
    body = getattr(task_bodies, step)
    for user, has in (("carol", "the role `commit`"), ("dan", "no role")):
        with pytest.raises(AirflowFailException, match=refusal(user, has, "`admin`")):
            body(SELECTION, user)
    assert ran == []
    refused = audit()
    assert [row[2:] for row in refused] == [
        ("rebuild", "started"),
        ("rebuild", "airflow-user-refused"),
    ] * 2
    body(SELECTION, "alice")
    assert bool(ran) == (step != "select_partitions")
    done = [row[1:] for row in audit()[len(refused) :]]
    if step == "rebuild_partitions":
        assert done == [
            ("user alice of Airflow", "rebuild", "started"),
            ("user alice of Airflow", "rebuild", "done"),
        ]
    else:
        assert done == []


def test_only_administrators_check_the_integrity_of_a_workspace(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(
        task_bodies.integrity, "check_integrity", lambda *a, **kw: ran.append(kw["workspace"])
    )
    monkeypatch.setattr(task_bodies.integrity, "workspaces_of", lambda *a: {"shop"})
    form = {"workspace": "shop", "dataset": None, "keys": None, "seed": None}
    with pytest.raises(
        AirflowFailException, match=refusal("carol", "the role `commit`", "`admin`")
    ):
        task_bodies.check_integrity(form, "carol")
    assert ran == []
    task_bodies.check_integrity(form, "alice")
    task_bodies.check_integrity(form | {"workspace": None}, None)
    assert ran == ["shop", None]


def test_a_difference_fails_the_task_with_the_next_action_and_is_not_repeated(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def differs(*_: Any, **__: Any) -> None:
        raise task_bodies.IntegrityDiffers("1 of 2 datasets, seed 7: Users")

    monkeypatch.setattr(task_bodies.integrity, "check_integrity", differs)
    form = {"workspace": None, "dataset": None, "keys": None, "seed": None}
    with pytest.raises(AirflowFailException, match="seed 7: Users"):
        task_bodies.check_integrity(form, None)
    assert "fennel-core recover --job ID" in caplog.text


@pytest.mark.usefixtures("audit")
def test_the_schedule_drills_without_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(task_bodies.drills, "run_drills", lambda *a, **_: ran.append(a))
    task_bodies.drill_partitions(SELECTION | {"workspace": None}, None)
    assert ran


def test_without_the_setting_airflow_alone_decides(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENNEL_AIRFLOW_WORKSPACES", "")
    with pytest.raises(AirflowFailException, match="the code ran"):
        task_bodies.submit_commit(FORM, "eve")
    task_bodies.permit_stored_commit("c1", "eve")
    assert audit() == []
