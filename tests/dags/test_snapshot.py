"""The snapshot DAG, run by Airflow itself, with task bodies that only record their calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fennel_core.settings.model import Settings
from tests.dags.conftest import OPTIONS, ROOT

RUN = """
import gc, importlib.util, json, sys, types
from airflow.sdk.definitions.dag import DAG

calls = []
def snapshot_slot(address):
    calls.append(address)
    if address == "/run/b.sock":
        raise ValueError("no disk")

spec = importlib.util.spec_from_file_location("snapshot", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
[dag] = [each for each in gc.get_objects() if type(each) is DAG and each.dag_id == "snapshot"]
for task in dag.tasks:
    task.retries = 0
import fennel_airflow
fake = sys.modules["fennel_airflow.task_bodies"] = types.ModuleType("fennel_airflow.task_bodies")
fennel_airflow.task_bodies = fake
fake.owning_slots = lambda: ["/run/a.sock", "/run/b.sock", "/run/c.sock"]
fake.snapshot_slot = snapshot_slot
fake.prune_snapshots = lambda: calls.append("pruned")
fake.shorten_logs = lambda: calls.append("shortened")
run = dag.test()
states = sorted([t.task_id, str(t.state)] for t in run.get_task_instances())
print(json.dumps({"run": str(run.state), "tasks": states, "calls": sorted(calls)}))
"""


@pytest.fixture(scope="module")
def result(airflow_home: Path) -> dict[str, Any]:
    words = [sys.executable, "-c", RUN, str(ROOT / "dags" / "snapshot.py")]
    ran = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        words,
        env={"PATH": "/usr/bin:/bin", **OPTIONS},
        cwd=airflow_home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_a_slot_task_that_fails_stops_neither_the_other_slots_nor_pruning(
    result: dict[str, Any],
) -> None:
    assert result["calls"] == ["/run/a.sock", "/run/b.sock", "/run/c.sock", "pruned", "shortened"]
    assert result["tasks"] == [
        ["owning_slots", "success"],
        ["prune_snapshots", "success"],
        ["shorten_logs", "success"],
        ["snapshot_slot", "failed"],
        ["snapshot_slot", "success"],
        ["snapshot_slot", "success"],
    ]
    assert result["run"] == "failed", "an operator must see the failure"


def test_the_schedule_is_the_setting() -> None:
    from fennel_airflow.factory import DRILL, HISTORY_MAINTENANCE, INTEGRITY, SNAPSHOT

    assert DRILL["schedule"] == Settings().drill_schedule
    assert INTEGRITY["schedule"] == Settings().integrity_schedule
    assert HISTORY_MAINTENANCE["schedule"] == Settings().history_maintenance_schedule
    assert SNAPSHOT["schedule"] == f"*/{Settings().snapshot_minutes} * * * *"
