"""The DAG `scheduled_sources`: which sources it reads, and what its tasks submit."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fennel_core.connections.spark import DRIVER_OPTIONS, SHORT_JVM
from tests.dags import conftest as _configured  # noqa: F401  # Airflow is configured before its first import

from airflow.sdk import Context  # isort: skip
from airflow.sdk.definitions.param import ParamsDict  # isort: skip
from airflow.sdk.exceptions import ParamValidationError  # isort: skip
from fennel_airflow import source_bodies, spark_tasks, tasks  # isort: skip
from fennel_airflow.factory import SCHEDULED_SOURCES, SCHEDULED_SOURCES_PARAMS  # isort: skip

PAIR = ["w.raw.t.1", "scheduled-1"]


def due(monkeypatch: pytest.MonkeyPatch, sources: list[list[str]]) -> Any:
    run = SimpleNamespace(run_id="manual__1")
    context = {"params": {"sources": sources}, "dag_run": run}
    monkeypatch.setattr(tasks, "get_current_context", lambda: context)
    monkeypatch.setattr(source_bodies, "claim_due", lambda name: [["w.raw.due.1", name]])
    return tasks.due_sources.function()


def test_a_run_of_the_server_reads_what_it_names_and_one_of_a_user_what_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert due(monkeypatch, [PAIR]) == [PAIR]
    assert due(monkeypatch, []) == [["w.raw.due.1", "manual__1"]]


@pytest.mark.parametrize("sources", ["w.raw.t.1", [["w.raw.t.1"]], [[1, 2]]])
def test_an_invalid_form_is_refused_before_a_run_starts(sources: object) -> None:
    params = ParamsDict(copy.deepcopy(SCHEDULED_SOURCES_PARAMS))

    def submit() -> None:
        params.update({"sources": sources})
        params.validate()

    with pytest.raises(ParamValidationError):
        submit()


def test_a_task_submits_the_program_with_the_driver_of_the_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "mysql" / "mariadb-java-client.jar"
    driver.parent.mkdir()
    driver.touch()
    monkeypatch.setenv("FENNEL_JARS_DIR", str(tmp_path))
    submitted: list[Any] = []
    monkeypatch.setattr(
        spark_tasks.SubmitProgram, "execute", lambda task, _context: submitted.append(task)
    )
    task = spark_tasks.ReadTable(
        task_id="read",
        conn_id=spark_tasks.CONNECTION,
        application=spark_tasks.job_file("scheduled_source"),
        application_args=PAIR,
    )
    task.execute(Context())
    assert submitted[0].application_args == PAIR
    assert submitted[0].application.endswith("fennel_core/apps/spark_jobs/scheduled_source.py")
    assert submitted[0].jars == str(driver), "Postgres is read without one"


def test_a_driver_starts_as_that_of_a_run_without_airflow() -> None:
    assert spark_tasks.READ_CONF[DRIVER_OPTIONS] == SHORT_JVM


def test_the_schedule_of_the_platform_and_not_airflow_repeats_a_read() -> None:
    assert SCHEDULED_SOURCES["default_args"]["retries"] == 0
    assert SCHEDULED_SOURCES["max_active_runs"] > 1, "a long first read holds up no other"
