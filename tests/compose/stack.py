"""The compose project under test, and Airflow in it."""

from __future__ import annotations

import json
import subprocess
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.compose.engine import compose_program, run
from tests.support.polling import eventually_sync
from tests.support.ports import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
PREFIX: Final = "fennel-compose-test"
HEALTHY_S: Final = 600.0
RUN_S: Final = 180.0


def until(question: Callable[[], str | None], limit_s: float, what: str) -> None:
    """Wait until `question` returns None; it returns the present problem until then."""
    problem: str | None = None

    def solved() -> bool:
        nonlocal problem
        problem = question()
        return problem is None

    eventually_sync(
        solved, within_s=limit_s, interval_s=1, what=lambda: f"{what}; problem: {problem}"
    )


class Stack:
    """One compose project."""

    def __init__(self, env: dict[str, str]) -> None:
        self.query_port, self.airflow_port = free_port(), free_port()
        ports = {
            "FENNEL_QUERY_PORT": str(self.query_port),
            "FENNEL_AIRFLOW_PORT": str(self.airflow_port),
        }
        self.env = env | ports
        self.url = f"http://127.0.0.1:{self.query_port}"
        self.words = [*compose_program(), "-p", PREFIX, "-f", str(ROOT / "docker-compose.yml")]

    def compose(self, *words: str) -> None:
        """Run a compose command and show its output."""
        done = subprocess.run([*self.words, *words], env=self.env, cwd=ROOT, check=False)  # noqa: S603  # a program of this test, and no shell
        if done.returncode != 0:
            raise AssertionError(f"compose {' '.join(words)} ended with {done.returncode}")

    def output(self, *words: str) -> str:
        return run(*self.words, *words, env=self.env, quiet=True)

    def failing_output(self, *words: str) -> str:
        """Return the output of a command that must fail."""
        done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [*self.words, *words],
            env=self.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0, f"compose {' '.join(words)} should have failed: {done.stdout}"
        return done.stdout + done.stderr

    def show(self, *words: str) -> None:
        """Run `docker` and show its output."""
        done = subprocess.run(["docker", *words], env=self.env, check=False)  # noqa: S603, S607  # a program of this test, and no shell
        assert done.returncode == 0, f"docker {' '.join(words)} ended with {done.returncode}"

    def containers(self) -> dict[str, dict[str, Any]]:
        """Return service → its container as the engine describes it, stopped ones included."""
        ids = run(
            "docker",
            "ps",
            "-aq",
            "--filter",
            f"label=com.docker.compose.project={PREFIX}",
            env=self.env,
        ).split()
        known = json.loads(run("docker", "inspect", *ids, env=self.env)) if ids else []
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in known}

    def unhealthy(self, *names: str) -> str | None:
        """Return what is wrong with the named services, or with all; None if nothing is."""
        wrong = []
        for service, container in self.containers().items():
            if names and service not in names:
                continue
            state = container["State"]
            if "Health" in state and state["Health"]["Status"] != "healthy":
                wrong.append(f"{service} is {state['Health']['Status']}")
            elif "Health" not in state and (state["Status"], state["ExitCode"]) != ("exited", 0):
                wrong.append(f"{service} is {state['Status']} ({state['ExitCode']})")
        return ", ".join(wrong) or None

    def print_failures(self) -> None:
        for service, container in self.containers().items():
            state = container["State"]
            healthy = (
                state.get("Health", {}).get("Status", "healthy") == "healthy"
                and state["ExitCode"] == 0
            )
            if not healthy:
                print(
                    f"--- {service}: {state['Status']}, exit code "
                    f"{state['ExitCode']}, restarts {container['RestartCount']}"
                )
                print(
                    "\n".join(
                        str(each.get("Output", "")).strip()
                        for each in state.get("Health", {}).get("Log", [])[-2:]
                    )
                )
                subprocess.run(  # noqa: S603  # a program of this test, and no shell
                    ["docker", "logs", "--tail", "40", container["Id"]],  # noqa: S607  # found on the PATH, as by its users
                    env=self.env,
                    check=False,
                )

    def up(self) -> None:
        self.compose("up", "-d")
        until(self.unhealthy, HEALTHY_S, "everything healthy")


class Airflow:
    """Airflow's API on the published port, with the password generated in the volume."""

    def __init__(self, stack: Stack) -> None:
        self._url = f"http://127.0.0.1:{stack.airflow_port}"
        password = stack.output(
            "exec", "-T", "airflow-api", "cat", "/data/secrets/airflow_password"
        ).strip()
        self._token: str | None = None
        self._token = self.call("POST", "/auth/token", {"username": "admin", "password": password})[
            "access_token"
        ]

    def call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self._token}"} if self._token else {}
        )
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(  # noqa: S310  # an address of this machine
            self._url + path, data=data, method=method, headers=headers
        )
        with urllib.request.urlopen(request, timeout=60) as output:  # noqa: S310  # an address of this machine
            return json.loads(output.read())

    def runs(self, dag: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
        return found

    def run_to_completion(self, dag: str, form: dict[str, Any]) -> dict[str, Any]:
        run_id = f"compose-test-{uuid.uuid4().hex[:8]}"
        self.call(
            "POST",
            f"/api/v2/dags/{dag}/dagRuns",
            {"dag_run_id": run_id, "logical_date": None, "conf": form},
        )

        def mine() -> dict[str, Any]:
            return next(each for each in self.runs(dag) if each["dag_run_id"] == run_id)

        until(
            lambda: None if mine()["state"] in {"success", "failed"} else mine()["state"],
            RUN_S,
            f"the end of {dag}",
        )
        return mine()

    def log(self, dag: str, run_id: str, task: str) -> str:
        lines = self.call(
            "GET", f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/logs/1"
        )["content"]
        return "\n".join(str(each.get("event")) for each in lines)
