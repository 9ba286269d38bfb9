"""A whole platform whose topics are on a broker with SCRAM users and ACLs, a user per component.

`make kafka-acl-platform` runs it, in about four minutes; CI does not. Everything that reaches Kafka
does so here: servers, Spark's Java client in the history writer, readers of DataFrames, Airflow's
tasks with the Spark job of an offline query, commands. What no rule allows is refused by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fennel_core.apps.local.file_layout import ROOT
from fennel_core.apps.local.status_tables import history_by_topic
from fennel_core.settings.model import Settings
from tests.e2e.history.reads import MARK
from tests.support.airflow import call
from tests.support.kafka import secured_kafka
from tests.support.own_platform import OwnPlatform
from tests.support.polling import eventually_sync

__all__ = ["secured_kafka"]  # the fixture
pytestmark = pytest.mark.timeout(1200)
DEMO, SHOP, STRANGER = "demo", "offline-shop", "stranger"
PROGRAM: Final = ROOT / "tests" / "e2e" / "platform" / "offline_shop.py"
WITHIN_S: Final = 120.0
CARDS: Final = [2703186189652095, 375534208663984]
FEATURES: Final = {
    "CardRisk.cc_num": CARDS,
    "CardRisk.transactions": [6, 2],
    "CardRisk.home_state": ["TN", "PA"],
}
"""Features of two cards of the example that do not depend on the time of the query."""


@pytest.fixture(scope="module")
def platform(
    secured_kafka: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnPlatform]:
    folder = tmp_path_factory.mktemp("acl")
    platform = OwnPlatform(
        folder / "data",
        FENNEL_ORCHESTRATOR="airflow",
        FENNEL_KAFKA_BOOTSTRAP=secured_kafka.kafka_bootstrap,
        FENNEL_KAFKA_SECURITY=secured_kafka.kafka_security,
        FENNEL_KAFKA_PASSWORDS_DIR=str(folder / "kafka"),
        FENNEL_HISTORY_TRIGGER_S="0.5",
        FENNEL_HISTORY_MAX_WAIT_S="1",
    )
    administrator = {
        "FENNEL_KAFKA_USER": secured_kafka.kafka_user,
        "FENNEL_KAFKA_PASSWORD": secured_kafka.kafka_password.get_secret_value(),
    }
    wanted = ("kafka-access", DEMO, SHOP, "--passwords", str(folder / "kafka"))
    assert "6 users" in platform.run(*wanted, **administrator)
    try:
        platform.run("up")
        yield platform
    finally:
        platform.run("down")


def run(platform: OwnPlatform, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the settings of the running platform."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("FENNEL_")}
    path = f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"
    return subprocess.run(  # noqa: S603  # a program of this repository, and no shell
        list(words),
        env=variables | platform.settings | {"PYTHONPATH": path} | more,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def client(platform: OwnPlatform, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the public client."""
    python = Path(platform.value("EXECUTOR_PYTHON"))
    return run(platform, str(python), *words)


def query(platform: OwnPlatform) -> dict[str, Any]:
    """Send a query that is logged; return the features."""
    body = {
        "inputs": ["CardRisk.cc_num"],
        "outputs": list(FEATURES),
        "data": {"CardRisk.cc_num": CARDS},
        "log": True,
        "workflow": "risk",
    }
    status, features = call("POST", f"{platform.url}/api/v1/query", body, f"dev-{DEMO}")
    assert status == 200, features
    found: dict[str, Any] = features
    return found


def log_in_history(platform: OwnPlatform) -> bool:
    """Return whether the writer has moved logged queries to S3, and all of them."""
    port = platform.settings["FENNEL_HISTORY_PORT"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/topics") as answer:
        topics = history_by_topic(json.load(answer))
    held = [topic for name, topic in topics.items() if name.startswith(f"{DEMO}.querylog.")]
    return sum(topic["rows"] for topic in held) > 0 == sum(topic["lag_records"] for topic in held)


def read(platform: OwnPlatform, *wanted: dict[str, str]) -> list[dict[str, Any]]:
    """Return what a Spark program of a user reads with the data source."""
    environment = {"env_file": str(platform.data / "env"), "token": f"dev-{DEMO}"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.history.reads"],
        input=json.dumps([each | environment for each in wanted]),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(each for each in done.stdout.splitlines() if each.startswith(MARK))
    answers: list[dict[str, Any]] = json.loads(line.removeprefix(MARK))
    assert not [each["error"] for each in answers if "error" in each]
    return answers


def test_the_example_runs_and_its_logged_queries_are_read_from_history(
    platform: OwnPlatform,
) -> None:
    done = client(platform, "-m", "examples.fraud.demo", platform.url, f"dev-{DEMO}")
    assert done.returncode == 0, done.stderr[-4000:]
    assert query(platform) == FEATURES
    eventually_sync(
        lambda: log_in_history(platform), within_s=WITHIN_S, what="the log is in history"
    )
    rows, log = read(platform, {"dataset": "Transaction"}, {"query_log": "risk"})
    assert len(rows["rows"]) == 10
    columns = [name for name, _ in log["columns"]]
    found = sorted(log["rows"], key=lambda row: row[columns.index("row")])
    assert {name: [row[columns.index(name)] for row in found] for name in FEATURES} == FEATURES


def test_training_data_is_computed_by_a_task_of_airflow(platform: OwnPlatform) -> None:
    done = client(platform, str(PROGRAM), platform.url, f"dev-{SHOP}")
    assert done.returncode == 0, done.stdout + done.stderr
    status = json.loads(done.stdout.splitlines()[-1])
    assert status["state"] == "done", status
    assert status["data"]["Shopper.placed"] == [1, 3, 0, None, 0, None]


def test_state_is_kept_by_snapshots_and_restarts(platform: OwnPlatform) -> None:
    assert "snapshot" in platform.run("snapshot")
    platform.run("drill", "--workspace", DEMO, "--at-most", "2")
    platform.run("restart", "engine", "ingest", "query")
    call("POST", f"{platform.url}/api/v1/barrier", {"timeout_s": 60}, f"dev-{DEMO}")
    assert query(platform) == FEATURES
    status = json.loads(platform.run("status", "--json"))
    parked = [each for each in status["job_partitions"] if each["status"] != "running"]
    assert parked == []


def test_a_workspace_without_rules_is_refused_by_name(platform: OwnPlatform) -> None:
    done = client(platform, "-m", "examples.fraud.demo", platform.url, f"dev-{STRANGER}")
    assert done.returncode != 0
    assert f"fennel-core kafka-access {STRANGER}" in done.stderr, done.stderr[-3000:]
