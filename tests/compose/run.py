"""`make compose-test`: run docker-compose.yml, from empty images to removed volumes.

Makes base images (bases.py), builds, starts everything, runs the fraud example from this machine
through the published port, checks the commit in Airflow, takes a snapshot, kills a service, stops
and starts everything, repeats the query, and removes everything it made. `--keep` keeps images and
the engine's data for a faster next run.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.compose.bases import make_bases
from tests.compose.engine import CannotRun, compose_program, docker_engine, run
from tests.support.polling import eventually_sync

ROOT: Final = Path(__file__).resolve().parents[2]
WORK: Final = ROOT / ".fennel" / "compose-test"
PREFIX: Final = "fennel-compose-test"
CLIENT_PYTHON: Final = ROOT / ".venv-executor" / "bin" / "python"
TOKEN: Final = "dev-demo"  # noqa: S105  # a fixed value of a test
HEALTHY_S: Final = 600.0
RUN_S: Final = 180.0
REMOVED_VARIABLES: Final = ("FENNEL_", "AIRFLOW__", "COMPOSE_")


@contextmanager
def stage(title: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"… {title}", flush=True)
    yield
    print(f"✓ {title}: {time.monotonic() - began:.1f} s", flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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

    def unhealthy(self) -> str | None:
        wrong = []
        for service, container in self.containers().items():
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

    def run_to_completion(self, dag: str) -> dict[str, Any]:
        run_id = f"compose-test-{uuid.uuid4().hex[:8]}"
        self.call(
            "POST", f"/api/v2/dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": None}
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


def demo(stack: Stack) -> list[dict[str, Any]]:
    """Run the fraud example from this machine with the real client and return its features."""
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [str(CLIENT_PYTHON), "-m", "examples.fraud.demo", stack.url, TOKEN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    for event in events:
        if "end" in event:
            print(f"    {event['end']}: {event['seconds'] * 1000:.0f} ms")
    assert done.returncode == 0, done.stderr[-2000:]
    features: list[dict[str, Any]] = next(
        event["features"] for event in events if "features" in event
    )
    assert any(row["transactions"] > 0 and row["score"] > 0 for row in features), features
    return features


def query_cards(stack: Stack, cards: list[int]) -> list[dict[str, Any]]:
    """Return the features of cards; retries on 503 until the engine's partitions have resumed."""
    words = [
        str(CLIENT_PYTHON),
        "-m",
        "tests.compose.query_cards",
        stack.url,
        TOKEN,
        *map(str, cards),
    ]
    env, deadline = {**stack.env, "PYTHONPATH": str(ROOT)}, time.monotonic() + RUN_S
    while True:
        done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  # a program of this test, and no shell
        if done.returncode == 0:
            found: list[dict[str, Any]] = json.loads(done.stdout)
            return found
        assert "Server returned: 503" in done.stderr, done.stderr[-2000:]
        assert time.monotonic() < deadline, f"still 503 after {RUN_S:.0f} s: {done.stderr[-500:]}"


def without_recent(features: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop the features that change with time: counts of the last day and the score."""
    return [
        {name: value for name, value in row.items() if name not in {"transactions_1d", "score"}}
        for row in features
    ]


def check_network_access(stack: Stack) -> None:
    """Check that ports are published on loopback only, that user code reaches neither keys nor
    other containers, and that development tokens are refused off loopback.
    """
    for service, container in stack.containers().items():
        bindings = [
            each["HostIp"]
            for found in (container["NetworkSettings"]["Ports"] or {}).values()
            for each in found or []
        ]
        assert set(bindings) <= {"127.0.0.1"}, (service, bindings)
    inside = (
        "import os, socket; print(sorted(os.listdir('/data'))); "
        "socket.create_connection(('{}', {}), 3)"
    )
    for name, port in (("kafka", 7411), ("postgres", 7410), ("query", stack.query_port)):
        output = stack.failing_output(
            "exec", "-T", "executors", "python", "-c", inside.format(name, port)
        )
        assert "['executors']" in output, output
        assert "socket.gaierror" in output, output
    words = [
        "run",
        "--rm",
        "--no-deps",
        "-e",
        "FENNEL_PUBLISHED_HOST=0.0.0.0",
        "-e",
        "FENNEL_DEV_TOKENS=true",
        "query",
    ]
    assert "is not loopback" in stack.failing_output(*words)


def check_airflow(stack: Stack) -> None:
    airflow = Airflow(stack)
    commits = airflow.runs("commit")
    assert [each["state"] for each in commits] == ["success"], commits
    assert "create topic" in airflow.log("commit", commits[0]["dag_run_id"], "compile"), (
        "the api-server must read the scheduler's log files"
    )
    snapshot = airflow.run_to_completion("snapshot")
    assert snapshot["state"] == "success", snapshot


def kill_the_query_server(stack: Stack) -> None:
    """Kill the process under the container's init, without compose."""
    child = "int(open('/proc/1/task/1/children').read().split()[0])"
    subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [*stack.words, "exec", "-T", "query", "python", "-c", f"import os; os.kill({child}, 9)"],
        env=stack.env,
        check=False,
    )
    until(
        lambda: None if stack.containers()["query"]["RestartCount"] == 1 else "not restarted",
        HEALTHY_S,
        "a restart",
    )
    until(stack.unhealthy, HEALTHY_S, "everything healthy")


def print_sizes(stack: Stack) -> None:
    print(
        run(
            "docker",
            "stats",
            "--no-stream",
            "--format",
            "    {{.Name}}\t{{.MemUsage}}\t{{.CPUPerc}}",
            env=stack.env,
        ),
        end="",
    )
    images = run(
        "docker", "images", "--format", "{{.ID}} {{.Size}} {{.Repository}}", env=stack.env
    ).splitlines()
    print("\n".join(f"    image {line}" for line in sorted(images)))
    print(run("docker", "system", "df", env=stack.env))


def remove(stack: Stack, *, images: bool) -> None:
    stack.compose("down", "--volumes", "--remove-orphans", *(["--rmi", "all"] if images else []))
    for kind in ("container", "volume", "network"):
        words = ("--all",) if kind == "container" else ()
        left = run(
            "docker",
            kind,
            "ls",
            "-q",
            *words,
            "--filter",
            f"label=com.docker.compose.project={PREFIX}",
            env=stack.env,
        ).split()
        assert left == [], f"remaining {kind}s: {left}"


def everything(env: dict[str, str], *, keep: bool) -> None:
    with stage("base images"):
        bases = make_bases(PREFIX, env)
    stack = Stack(env | bases)
    try:
        with stage("build"):
            stack.compose("build")
        with stage("first start until everything is healthy"):
            stack.up()
        with stage("the fraud example from this machine"):
            features = demo(stack)
        with stage("Airflow ran the commit; a snapshot"):
            check_airflow(stack)
        with stage("network access"):
            check_network_access(stack)
        print_sizes(stack)
        cards = [row["cc_num"] for row in features]
        with stage("restart of the killed query server"):
            kill_the_query_server(stack)
            assert without_recent(query_cards(stack, cards)) == without_recent(features)
        with stage("down"):
            stack.compose("down")
        with stage("second start until everything is healthy"):
            stack.up()
        with stage("the same features after the restart, without a commit"):
            assert without_recent(query_cards(stack, cards)) == without_recent(features)
            assert [each["state"] for each in Airflow(stack).runs("commit")] == ["success"], (
                "Airflow must remember its run"
            )
    except (AssertionError, CannotRun):
        stack.print_failures()
        raise
    finally:
        with stage("removal"):
            remove(stack, images=not keep)
            if not keep:
                run("docker", "image", "rm", "-f", *bases.values(), env=env)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave images and the engine's data for a faster next run",
    )
    chosen = parser.parse_args()
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(REMOVED_VARIABLES)
    }
    began = time.monotonic()
    try:
        with docker_engine(WORK / "docker", keep=chosen.keep) as found:
            everything(clean | found, keep=chosen.keep)
    except (AssertionError, CannotRun, urllib.error.URLError) as wrong:
        print(f"compose-test failed: {wrong}", file=sys.stderr)
        return 1
    print(f"compose-test passed in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
