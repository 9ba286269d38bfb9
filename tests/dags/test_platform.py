"""The commit DAG on the running platform: triggered over REST as the form does, and by the
definition server for a client.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fennel_core.settings.model import Settings
from tests.support.airflow import Airflow, call, log_in
from tests.support.executors import commit_of

pytestmark = pytest.mark.platform
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


@pytest.fixture(scope="module")
def airflow(platform: None) -> Airflow:
    return log_in(Settings())


@pytest.fixture
def workspace(platform: None) -> Iterator[tuple[str, str]]:
    """The name and token of a workspace that is deleted afterwards."""
    settings = Settings()
    url, admin, name = (
        f"{settings.query_url}/api/v1/workspaces",
        settings.admin_token.get_secret_value(),
        f"t-{uuid.uuid4().hex[:10]}",
    )
    status, made = call("POST", url, {"name": name}, admin)
    assert status == 200, made
    yield name, made["token"]
    assert call("DELETE", f"{url}/{name}", None, admin)[0] == 200


def _commits(workspace: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(Settings().postgres_dsn.get_secret_value()) as connection:
        return connection.execute(
            "SELECT id, state FROM commit WHERE workspace = %s ORDER BY created_at", (workspace,)
        ).fetchall()


def test_definitions_from_the_form_are_previewed_committed_and_logged(
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
        "warm": "success",
        "destroy_assets": "success",
        "undo": "skipped",
    }
    assert [state for _, state in _commits(name)] == ["finished"]
    assert "creation ledger: pending" in airflow.log(run["dag_run_id"], "compile")
    assert "creation ledger: done" in airflow.log(run["dag_run_id"], "create_assets")

    assert airflow.run(**conf)["tasks"]["create_assets"] == "skipped", (
        "the same definitions again: nothing is left to do"
    )
    assert len(_commits(name)) == 1


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (SHOP.replace("amount: float", "amount: float = nowhere"), "name 'nowhere' is not defined"),
        ("x = 1", "defines no dataset"),
    ],
)
def test_invalid_definitions_fail_the_first_task_with_the_reason(
    airflow: Airflow, workspace: tuple[str, str], tmp_path: Path, code: str, text: str
) -> None:
    (tmp_path / "shop.py").write_text(code)
    run = airflow.run(definitions=str(tmp_path / "shop.py"), workspace=workspace[0])
    assert (run["state"], run["tasks"]["compile"], run["tasks"]["undo"]) == (
        "failed",
        "failed",
        "skipped",
    )
    assert text in airflow.log(run["dag_run_id"], "compile")
    assert _commits(workspace[0]) == []


async def test_a_clients_commit_is_a_run_of_the_same_dag(
    airflow: Airflow, workspace: tuple[str, str], tmp_path: Path
) -> None:
    name, token = workspace
    (tmp_path / "shop.py").write_text(SHOP)
    settings = Settings()
    body = await commit_of(str(tmp_path / "shop.py"), message="by a client")
    status, response = call(
        "POST",
        f"{settings.query_url}/api/v1/commit?preview=false&incremental=false&backfill=true",
        body,
        token,
    )
    assert status == 200, response
    [(commit_id, _)] = _commits(name)
    assert airflow.end_of(f"commit-{commit_id}-1")["state"] == "success"
    assert [state for _, state in _commits(name)] == ["finished"]
