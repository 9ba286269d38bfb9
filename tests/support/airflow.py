"""Airflow's REST API, as far as tests use it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from fennel_core.settings.model import Settings
from tests.support.polling import eventually_sync

FINISHED_SECONDS: Final = 180.0


def call(method: str, url: str, body: object = None, token: str | None = None) -> tuple[int, Any]:
    """Return the status and the JSON body, or the text of an error response."""
    headers = {"content-type": "application/json"} | (
        {"authorization": f"Bearer {token}"} if token else {}
    )
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(  # noqa: S310  # an address of this machine
            urllib.request.Request(url, data, headers, method=method),  # noqa: S310  # an address of this machine
            timeout=FINISHED_SECONDS,
        ) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


@dataclass(frozen=True)
class Airflow:
    """Airflow's API, logged in."""

    url: str
    token: str

    def run(self, dag: str = "commit", **conf: object) -> dict[str, Any]:
        """Trigger a DAG and wait for its end."""
        status, run = call(
            "POST",
            f"{self.url}/dags/{dag}/dagRuns",
            {"logical_date": None, "conf": conf},
            self.token,
        )
        assert status == 200, run
        return self.end_of(run["dag_run_id"], dag)

    def end_of(self, run_id: str, dag: str = "commit") -> dict[str, Any]:
        """Wait for the end of a run; return it with the states of its tasks.

        The state of a mapped task is that of its last instance.
        """
        path = f"{self.url}/dags/{dag}/dagRuns/{run_id}"
        latest: list[Any] = []

        def ended() -> dict[str, Any] | None:
            status, run = call("GET", path, None, self.token)
            latest[:] = [status, run]
            return run if status == 200 and run["state"] in ("success", "failed") else None

        run = eventually_sync(
            ended,
            within_s=FINISHED_SECONDS,
            interval_s=0.2,
            what=lambda: f"{run_id} has ended: {latest}",
        )
        _, tasks = call("GET", f"{path}/taskInstances", None, self.token)
        states = {each["task_id"]: each["state"] for each in tasks["task_instances"]}
        return {**run, "tasks": states}

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """Return the newest runs of a DAG, newest first."""
        _, found = call(
            "GET", f"{self.url}/dags/{dag}/dagRuns?order_by=-run_after&limit=20", None, self.token
        )
        runs: list[dict[str, Any]] = found["dag_runs"]
        return runs

    def instances(self, run_id: str, task: str, dag: str) -> list[int]:
        """Return the indexes of a mapped task's instances."""
        _, found = call(
            "GET", f"{self.url}/dags/{dag}/dagRuns/{run_id}/taskInstances", None, self.token
        )
        return [each["map_index"] for each in found["task_instances"] if each["task_id"] == task]

    def cancel(self, run_id: str, dag: str = "commit") -> None:
        """Mark a run as failed, as in the UI: running tasks are killed and no other task starts."""
        status, response = call(
            "PATCH", f"{self.url}/dags/{dag}/dagRuns/{run_id}", {"state": "failed"}, self.token
        )
        assert status == 200, response

    @contextmanager
    def unscheduled(self, dag: str) -> Iterator[None]:
        """Let a DAG start no run by its schedule meanwhile; wait for those that it has started."""
        path = f"{self.url}/dags/{dag}"
        status, response = call("PATCH", path, {"is_paused": True}, self.token)
        assert status == 200, response
        try:
            eventually_sync(
                lambda: all(run["state"] in ("success", "failed") for run in self.runs(dag)),
                within_s=FINISHED_SECONDS,
                interval_s=0.5,
                what=lambda: f"no run of {dag} is under way: {self.runs(dag)[:3]}",
            )
            yield
        finally:
            status, response = call("PATCH", path, {"is_paused": False}, self.token)
            assert status == 200, response

    def lines(
        self, run_id: str, task: str, dag: str = "commit", *, attempt: int = 1, mapped: int = -1
    ) -> list[dict[str, Any]]:
        """Return the lines of a task's log as dicts: `event` and the other fields of each line."""
        instance = f"{self.url}/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}"
        path = f"{instance}/logs/{attempt}?map_index={mapped}"
        _, log = call("GET", path, None, self.token)
        return [each for each in log["content"] if isinstance(each, dict)]

    def log(
        self, run_id: str, task: str, dag: str = "commit", *, attempt: int = 1, mapped: int = -1
    ) -> str:
        return "\n".join(
            str(each.get("event"))
            for each in self.lines(run_id, task, dag, attempt=attempt, mapped=mapped)
        )


def log_in(settings: Settings) -> Airflow:
    login = {
        "username": settings.airflow_user,
        "password": settings.airflow_password.get_secret_value(),
    }
    _, response = call("POST", f"{settings.airflow_url}/auth/token", login)
    return Airflow(f"{settings.airflow_url}/api/v2", response["access_token"])


def rows(query: str, *values: object) -> list[tuple[object, ...]]:
    """Run a query in the database of the platform and return its rows."""
    with psycopg.connect(Settings().postgres_dsn.get_secret_value(), autocommit=True) as connection:
        return connection.execute(query.encode(), values).fetchall()
