"""The commit DAG on the running platform: triggered over REST as the form does, and by the definition server for a client."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fennel_core.executors.definitions import read
from fennel_core.settings.model import Settings

pytestmark = pytest.mark.platform
FINISHED_SECONDS = 180.0
SHOP = """
from datetime import datetime
from fennel.connectors import Webhook, source
from fennel.datasets import dataset, field
__owner__ = "shop@example.com"
@source(Webhook(name="shop").endpoint("Order"), disorder="1d", cdc="upsert")
@dataset(index=True)
class Order:
    uid: int = field(key=True)
    amount: float
    ts: datetime
"""


def _call(method: str, url: str, body: object = None, token: str | None = None) -> tuple[int, Any]:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=FINISHED_SECONDS) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


@dataclass(frozen=True)
class Airflow:
    """Airflow's API, logged in."""

    url: str
    token: str

    def run(self, **conf: object) -> dict[str, Any]:
        status, run = _call("POST", f"{self.url}/dags/commit/dagRuns", {"logical_date": None, "conf": conf}, self.token)
        assert status == 200, run
        return self.end_of(run["dag_run_id"])

    def end_of(self, run_id: str) -> dict[str, Any]:
        """The run when it has ended, with the states of its tasks."""
        deadline = time.monotonic() + FINISHED_SECONDS
        while time.monotonic() < deadline:
            status, run = _call("GET", f"{self.url}/dags/commit/dagRuns/{run_id}", None, self.token)
            if status == 200 and run["state"] in ("success", "failed"):
                _, tasks = _call("GET", f"{self.url}/dags/commit/dagRuns/{run_id}/taskInstances", None, self.token)
                return {**run, "tasks": {each["task_id"]: each["state"] for each in tasks["task_instances"]}}
            time.sleep(0.2)
        raise AssertionError(f"{run_id} did not end: {run}")

    def log(self, run_id: str, task: str) -> str:
        _, log = _call("GET", f"{self.url}/dags/commit/dagRuns/{run_id}/taskInstances/{task}/logs/1", None, self.token)
        return "\n".join(str(each.get("event")) for each in log["content"])


@pytest.fixture(scope="module")
def airflow(platform: None) -> Airflow:
    settings = Settings()
    login = {"username": settings.airflow_user, "password": settings.airflow_password.get_secret_value()}
    _, answer = _call("POST", f"{settings.airflow_url}/auth/token", login)
    return Airflow(f"{settings.airflow_url}/api/v2", answer["access_token"])


@pytest.fixture
def workspace(platform: None) -> Iterator[tuple[str, str]]:
    """The name and token of a workspace that is deleted afterwards."""
    settings = Settings()
    url, admin, name = f"{settings.query_url}/api/v1/workspaces", settings.admin_token.get_secret_value(), f"t-{uuid.uuid4().hex[:10]}"
    status, made = _call("POST", url, {"name": name}, admin)
    assert status == 200, made
    yield name, made["token"]
    assert _call("DELETE", f"{url}/{name}", None, admin)[0] == 200


def _commits(workspace: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(Settings().postgres_dsn.get_secret_value()) as connection:
        return connection.execute("SELECT id, state FROM commit WHERE workspace = %s ORDER BY created_at", (workspace,)).fetchall()


def test_definitions_from_the_form_are_previewed_and_committed_and_the_tasks_tell_it(
    airflow: Airflow, workspace: tuple[str, str], tmp_path: Path
) -> None:
    name, _ = workspace
    (tmp_path / "shop.py").write_text(SHOP)
    conf = {"definitions": str(tmp_path / "shop.py"), "workspace": name, "message": "first"}

    preview = airflow.run(**conf, preview=True)
    assert preview["state"] == "success"
    assert "+ create topic of Order" in airflow.log(preview["dag_run_id"], "compile")
    assert _commits(name) == []

    run = airflow.run(**conf)
    assert run["state"] == "success"
    assert run["tasks"] == {
        "compile": "success",
        "create_assets": "success",
        "switch": "success",
        "destroy_assets": "success",
        "undo": "skipped",
    }
    assert [state for _, state in _commits(name)] == ["finished"]
    assert "creation ledger: pending" in airflow.log(run["dag_run_id"], "compile")
    assert "creation ledger: done" in airflow.log(run["dag_run_id"], "create_assets")

    assert airflow.run(**conf)["tasks"]["create_assets"] == "skipped", "the same definitions again: nothing is left to do"
    assert len(_commits(name)) == 1


@pytest.mark.parametrize(
    ("code", "text"),
    [(SHOP.replace("amount: float", "amount: float = nowhere"), "name 'nowhere' is not defined"), ("x = 1", "defines no dataset")],
)
def test_wrong_definitions_fail_the_first_task_with_the_reason_and_leave_nothing(
    airflow: Airflow, workspace: tuple[str, str], tmp_path: Path, code: str, text: str
) -> None:
    (tmp_path / "shop.py").write_text(code)
    run = airflow.run(definitions=str(tmp_path / "shop.py"), workspace=workspace[0])
    assert (run["state"], run["tasks"]["compile"], run["tasks"]["undo"]) == ("failed", "failed", "skipped")
    assert text in airflow.log(run["dag_run_id"], "compile")
    assert _commits(workspace[0]) == []


async def test_a_clients_commit_is_a_run_of_the_same_dag(airflow: Airflow, workspace: tuple[str, str], tmp_path: Path) -> None:
    name, token = workspace
    (tmp_path / "shop.py").write_text(SHOP)
    settings = Settings()
    body, _ = await read(settings, str(tmp_path / "shop.py"), env=None, message="by a client")
    status, answer = _call("POST", f"{settings.query_url}/api/v1/commit?preview=false&incremental=false&backfill=true", body, token)
    assert status == 200, answer
    [(commit_id, _)] = _commits(name)
    assert airflow.end_of(f"commit-{commit_id}-1")["state"] == "success"
    assert [state for _, state in _commits(name)] == ["finished"]
