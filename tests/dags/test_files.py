"""DAG files are short, quick to import, without errors, and of the expected shape."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fennel_core.apps.local import airflow
from fennel_core.settings.model import Settings
from tests.dags.conftest import OPTIONS, ROOT

FILES = sorted((ROOT / "dags").glob("*.py"))
HEAVY = (
    "fennel_core",
    "pandas",
    "numpy",
    "pyarrow",
    "polars",
    "pyspark",
    "confluent_kafka",
    "boto3",
    "psycopg",
    "fastapi",
    "asyncpg",
)
IN_FORKS = """
import os, sys, traceback
assert "fennel_airflow" not in sys.modules, "each process loads the plugin by itself"
for argument in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            look(argument)
            sys.stdout.flush()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{argument} failed")
"""
"""Importing Airflow takes seconds, so the processes of a test are forks of one that has."""
LOOK = """
import gc, importlib.util, json, sys
from airflow.sdk.definitions.dag import DAG
from airflow.task.priority_strategy import validate_and_load_priority_weight_strategy

def weight(task):
    strategy = validate_and_load_priority_weight_strategy(task.weight_rule)
    return strategy.get_weight(type("Instance", (), {"task": task}))

def look(file):
    spec = importlib.util.spec_from_file_location("dag_file", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dags = [each for each in gc.get_objects() if type(each) is DAG]
    print(json.dumps({
        "modules": sorted({name.split(".")[0] for name in sys.modules}),
        "dags": {dag.dag_id: {
            "tasks": {
                task.task_id: {
                    "down": sorted(task.downstream_task_ids),
                    "rule": task.trigger_rule.value,
                    "pool": task.pool,
                    "weight": weight(task),
                }
                for task in dag.tasks
            },
            "catchup": dag.catchup, "tags": sorted(dag.tags), "runs": dag.max_active_runs,
        } for dag in dags},
    }))
"""


def _python(script: str, *arguments: str) -> str:
    words = [sys.executable, "-c", script, *arguments]
    ran = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        words, env={"PATH": "/usr/bin:/bin", **OPTIONS}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def looks() -> dict[str, dict[str, Any]]:
    lines = _python(LOOK + IN_FORKS, *map(str, FILES)).splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]  # Airflow logs to stdout
    return {file.stem: look for file, look in zip(FILES, found, strict=True)}


def test_the_dag_folder_contains_the_documented_dags() -> None:
    documented = {
        "commit",
        "drill",
        "history_maintenance",
        "integrity",
        "offline_query",
        "reconcile",
        "recovery",
        "scheduled_sources",
        "snapshot",
    }
    assert documented <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dag_file_is_a_table_of_contents(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 20


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dag_file_imports_without_errors_and_without_anything_heavy(
    file: Path, looks: dict[str, dict[str, Any]]
) -> None:
    assert set(looks[file.stem]["dags"]) == {file.stem}, "one DAG per file, named like it"
    assert set(HEAVY) & set(looks[file.stem]["modules"]) == set(), "every task would import it"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_dag_catches_up_on_the_past_and_every_one_carries_the_tag(
    file: Path, looks: dict[str, dict[str, Any]]
) -> None:
    dag = looks[file.stem]["dags"][file.stem]
    assert (dag["catchup"], "fennel" in dag["tags"]) == (False, True)


def test_commit_is_five_steps_in_order_and_any_of_the_first_three_leads_to_undo(
    looks: dict[str, dict[str, Any]],
) -> None:
    tasks = looks["commit"]["dags"]["commit"]["tasks"]
    assert {name: task["down"] for name, task in tasks.items()} == {
        "compile": ["create_assets", "undo"],
        "create_assets": ["switch", "undo"],
        "switch": ["undo", "warm"],
        "warm": ["destroy_assets"],
        "destroy_assets": [],
        "undo": [],
    }
    assert {name for name, task in tasks.items() if task["rule"] != "all_success"} == {"undo"}
    assert tasks["undo"]["rule"] == "one_failed"


def test_every_task_names_a_pool_that_every_start_makes(looks: dict[str, dict[str, Any]]) -> None:
    pools = {
        name: {task["pool"] for task in look["dags"][name]["tasks"].values()}
        for name, look in looks.items()
    }
    assert pools == {
        "commit": {"fennel_commit"},
        "reconcile": {"fennel_commit"},
        "snapshot": {"fennel_long"},
        "recovery": {"fennel_long"},
        "drill": {"fennel_long"},
        "integrity": {"fennel_checks"},
        "offline_query": {"fennel_offline"},
        "history_maintenance": {"fennel_offline"},
        "scheduled_sources": {"fennel_sources"},
    }
    assert set.union(*pools.values()) == set(airflow.POOLS)


def test_no_pool_holds_every_worker_and_snapshots_always_get_one(
    looks: dict[str, dict[str, Any]],
) -> None:
    slots = {name: int(pool["slots"]) for name, pool in airflow.POOLS.items()}
    runs = {name: look["dags"][name]["runs"] for name, look in looks.items()}
    assert max(slots.values()) < airflow.PARALLELISM
    assert slots["fennel_sources"] == Settings().source_runs_at_once, "claimed runs have slots"
    assert runs["recovery"] + runs["drill"] < slots["fennel_long"], "snapshots would wait for hours"


def test_steps_that_a_client_waits_for_go_first_and_later_ones_before_first_ones(
    looks: dict[str, dict[str, Any]],
) -> None:
    tasks = looks["commit"]["dags"]["commit"]["tasks"]
    weights = {name: task["weight"] for name, task in tasks.items()}
    assert weights == {
        "warm": 0,
        "destroy_assets": 0,
        "compile": 1,
        "create_assets": 2,
        "switch": 3,
        "undo": 4,
    }


def test_airflow_loads_only_plugin_py_as_a_plugin() -> None:
    script = (
        "import sys\n"
        "from airflow import plugins_manager\n"
        "assert not plugins_manager.get_import_errors()\n"
        "print(*(each['source'] for each in plugins_manager.get_plugin_info() if "
        "each['name'] == 'fennel'), 'tasks' in sys.modules)"
    )
    assert _python(script).splitlines()[-1] == "$PLUGINS_FOLDER/fennel_airflow/plugin.py False"


START = """
import sys
import airflow.settings

def look(kind):
    sys.argv = ["airflow", "dag-processor" if kind == "other" else "scheduler"]
    from airflow.jobs.job import Job
    if kind == "broken":
        sys.modules["fennel_core.ledger.reservation"] = None  # an import of it fails
    if kind != "task":
        Job()
    if kind == "changed":
        sys.modules["fennel_airflow"].preloaded_sources_ns = 0
    # tasks have listeners of their own, made from a second copy of the plugin
    if kind in ("task", "changed", "forked"):
        from airflow.sdk.listener import get_listener_manager as listeners_of_tasks
        listeners_of_tasks().hook.on_starting(component=object())
    ours = [
        name
        for name, module in sys.modules.items()
        if module and name.startswith("fennel_core") and ".wire." not in name
    ]
    print("imported", kind, bool(ours))
"""


def test_tasks_inherit_preloaded_modules_unless_sources_changed() -> None:
    imported = {
        "scheduler": True,
        "forked": True,
        "changed": False,
        "broken": False,
        "other": False,
        "task": False,
    }
    lines = _python(START + IN_FORKS, *imported).splitlines()
    assert [line for line in lines if line.startswith("imported")] == [
        f"imported {kind} {found}" for kind, found in imported.items()
    ]
