"""The DAG that rebuilds job partitions, on the running platform: what is served afterwards is what was served before."""

from __future__ import annotations

from typing import Any

import pytest

from fennel_core.settings.model import Settings
from fennel_core.snapshots import rounds
from tests.e2e.airflow import test_dags
from tests.e2e.airflow.test_dags import rows
from tests.support.airflow import Airflow, call

pytestmark = pytest.mark.platform
airflow, workspace, shop = test_dags.airflow, test_dags.workspace, test_dags.shop
UIDS = list(range(20))


def ordered(workspace: str, amount: float, uids: list[int]) -> None:
    """Log an order of each of these users, and wait until queries see them."""
    url, token = f"{Settings().query_url}/api/v1", f"dev-{workspace}"
    data = {"uid": uids, "amount": [amount] * len(uids), "ts": [f"2026-01-{int(amount):02d}T00:00:00"] * len(uids)}
    assert call("POST", f"{url}/log", {"webhook": "shop", "endpoint": "Order", "data": data}, token)[0] == 200
    assert call("POST", f"{url}/barrier", {"timeout_s": 30}, token)[0] == 200


def served(workspace: str) -> Any:
    body = {"keys": [{"uid": uid} for uid in UIDS], "fields": []}
    status, answer = call("POST", f"{Settings().query_url}/api/v1/dataset/Order/lookup", body, f"dev-{workspace}")
    assert status == 200, answer
    return answer


def copied(workspace: str) -> None:
    """Have every slot copy what it owns: what the DAG `snapshot` does."""
    for address in rounds.owning_slots(Settings()):
        rounds.refuse_failures(rounds.snapshot_slot(Settings(), address))
    assert rows("SELECT count(DISTINCT part) FROM snapshot WHERE starts_with(job_id, %s)", f"{workspace}.") == [(Settings().partitions,)]


def test_the_recovery_dag_rebuilds_what_the_form_names_and_features_are_as_before(airflow: Airflow, workspace: str, shop: str) -> None:
    assert airflow.run(definitions=shop, workspace=workspace)["state"] == "success"
    ordered(workspace, 1, UIDS)
    copied(workspace)
    ordered(workspace, 2, UIDS[::2])
    before = served(workspace)

    wrong = airflow.run("recovery", workspace=workspace, dataset="Orders")
    assert wrong["tasks"] == {"choose_partitions": "failed", "rebuild_partitions": "upstream_failed"}
    assert "no dataset with a job `Orders`: there is Order" in airflow.log(wrong["dag_run_id"], "choose_partitions", "recovery")

    shown = airflow.run("recovery", workspace=workspace, dry_run=True)
    assert shown["tasks"] == {"choose_partitions": "skipped", "rebuild_partitions": "skipped"}
    assert airflow.log(shown["dag_run_id"], "choose_partitions", "recovery").count("meant: Order: table") == Settings().partitions

    run = airflow.run("recovery", workspace=workspace, dataset="Order")
    told = airflow.log(run["dag_run_id"], "rebuild_partitions", "recovery")
    assert run["state"] == "success", told
    assert told.count("caught up, from snapshot #") == Settings().partitions
    [(job,)] = rows("SELECT id FROM job WHERE workspace = %s", workspace)
    asides = {path.name for path in (Settings().state_dir / str(job)).glob("aside-*")}
    assert asides == {f"aside-{part}" for part in range(Settings().partitions)}, "local state was put aside, so none of it is used"
    assert served(workspace) == before
    ordered(workspace, 3, UIDS[:1])
    assert served(workspace)["data"]["amount"][0] == 3
