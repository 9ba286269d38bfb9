"""The commit DAG, run by Airflow on its own database, with steps that only record their calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dags.conftest import OPTIONS, ROOT

pytestmark = pytest.mark.timeout(900)  # nine runs of Airflow, each in a process of its own

RUN = """
import gc, importlib.util, json, os, sys, types
from airflow.sdk.definitions.dag import DAG

class Steps:
    def __init__(self, failing):
        self.failing, self.calls = failing, []
    def run_commit_step(self, name, commit_id):
        self.calls.append([name, commit_id])
        if name == self.failing:
            raise ValueError(name)
    def permit_stored_commit(self, commit_id, user):
        assert user == "dag_test", user
    def submit_commit(self, params, user):
        assert user == "dag_test", user
        self.run_commit_step("submit", params["definitions"])
        return "made-here"
    def compile_commit(self, commit_id, waited_s):
        is_first = ["compile", commit_id] not in self.calls
        assert (waited_s == 0.0) == is_first, waited_s
        self.run_commit_step("compile", commit_id)
        return "must wait" if is_first and self.failing == "busy branch" else "compiled"
    def reads_have_moved(self, commit_id, *, is_first_look):
        self.run_commit_step("warm" if is_first_look else "warm again", commit_id)
        return not (is_first_look and self.failing == "slow jobs")
    def preview_commit(self, params, user):
        assert user == "dag_test", user
        self.run_commit_step("preview", params["definitions"])

spec = importlib.util.spec_from_file_location("commit", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
[dag] = [each for each in gc.get_objects() if type(each) is DAG and each.dag_id == "commit"]
for task in dag.tasks:
    task.retries = 0
    task.poke_interval = 1
import fennel_airflow
fake = sys.modules["fennel_airflow.task_bodies"] = types.ModuleType("fennel_airflow.task_bodies")
fennel_airflow.task_bodies = fake

def result_of(conf, failing):
    steps = Steps(failing)
    for entry in (
        "run_commit_step", "submit_commit", "compile_commit", "preview_commit", "reads_have_moved",
        "permit_stored_commit"
    ):
        setattr(fake, entry, getattr(steps, entry))
    run = dag.test(run_conf=conf)
    tasks = {t.task_id: str(t.state) for t in run.get_task_instances()}
    return {"run": str(run.state), "tasks": tasks, "calls": steps.calls}

# The first request to the API for tasks takes longer than a run; the forks inherit what it makes.
import asyncio, httpx, uuid
from airflow.sdk.execution_time.supervisor import in_process_api_server
async def first_request():
    app = in_process_api_server().app
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://tasks") as client,
    ):
        answer = await client.patch(f"/task-instances/{uuid.uuid4()}/run", json={})
        assert answer.status_code == 422, answer.text
asyncio.run(first_request())

results = {}
for name, (conf, failing) in json.loads(sys.argv[2]).items():
    reader, writer = os.pipe()
    # a run writes its own values into the DAG's parameters, so each has the DAG to itself
    if os.fork() == 0:
        try:
            os.write(writer, json.dumps(result_of(conf, failing)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        results[name] = json.loads(answer.read())
    os.wait()
print(json.dumps(results))
"""
STORED = {"commit_id": "c1"}
FORM = {"definitions": "shop", "workspace": "shop"}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "stored": (STORED, "-"),
    "form": (FORM, "-"),
    "preview": (FORM | {"preview": True}, "-"),
    "not stored": (FORM, "submit"),
    "busy branch": (STORED, "busy branch"),
    "slow jobs": (STORED, "slow jobs"),
    **{step: (STORED, step) for step in ("compile", "create_assets", "destroy_assets")},
}


@pytest.fixture(scope="module")
def results(airflow_home: Path) -> dict[str, dict[str, Any]]:
    words = [sys.executable, "-c", RUN, str(ROOT / "dags" / "commit.py"), json.dumps(CASES)]
    ran = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        words,
        env={"PATH": "/usr/bin:/bin", **OPTIONS},
        cwd=airflow_home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_a_stored_commit_passes_through_the_five_steps(results: dict[str, dict[str, Any]]) -> None:
    result = results["stored"]
    assert result["calls"] == [
        ["compile", "c1"],
        ["create_assets", "c1"],
        ["switch", "c1"],
        ["warm", "c1"],
        ["destroy_assets", "c1"],
    ]
    assert (result["run"], result["tasks"]["undo"]) == ("success", "skipped")


def test_a_commit_whose_branch_is_busy_is_compiled_again_later(
    results: dict[str, dict[str, Any]],
) -> None:
    result = results["busy branch"]
    assert [name for name, _ in result["calls"]] == [
        "compile",
        "compile",
        "create_assets",
        "switch",
        "warm",
        "destroy_assets",
    ]
    assert (result["run"], result["tasks"]["undo"]) == ("success", "skipped")


def test_only_the_first_look_at_slow_jobs_waits_for_them(
    results: dict[str, dict[str, Any]],
) -> None:
    result = results["slow jobs"]
    assert [name for name, _ in result["calls"]][-3:] == ["warm", "warm again", "destroy_assets"]
    assert result["run"] == "success"


def test_definitions_from_the_form_are_stored_first_and_then_treated_alike(
    results: dict[str, dict[str, Any]],
) -> None:
    result = results["form"]
    assert result["calls"][0] == ["submit", "shop"]
    assert [name for name, id_ in result["calls"][1:] if id_ == "made-here"] == [
        "compile",
        "create_assets",
        "switch",
        "warm",
        "destroy_assets",
    ]


@pytest.mark.parametrize("failing", ["compile", "create_assets"])
def test_a_step_that_fails_before_the_switch_runs_the_undo_task(
    results: dict[str, dict[str, Any]], failing: str
) -> None:
    result = results[failing]
    assert result["calls"][-2:] == [[failing, "c1"], ["undo", "c1"]]
    assert (result["run"], result["tasks"]["undo"], result["tasks"][failing]) == (
        "failed",
        "success",
        "failed",
    )


def test_after_the_switch_nothing_is_undone(results: dict[str, dict[str, Any]]) -> None:
    result = results["destroy_assets"]
    assert (result["run"], result["tasks"]["undo"]) == ("failed", "skipped")


def test_a_commit_that_was_never_stored_needs_no_undo(results: dict[str, dict[str, Any]]) -> None:
    result = results["not stored"]
    assert (result["run"], result["tasks"]["compile"], result["tasks"]["undo"]) == (
        "failed",
        "failed",
        "skipped",
    )


def test_a_preview_shows_the_plan_and_does_nothing_else(results: dict[str, dict[str, Any]]) -> None:
    result = results["preview"]
    assert result["calls"] == [["preview", "shop"]]
    assert result["run"] == "success"
    assert set(result["tasks"].values()) == {"skipped"}
