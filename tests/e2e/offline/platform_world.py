"""Long requests for training data on the running platform, and what a request leaves.

The features are those of `slow_shop`: each row has the age that was logged, and its double, which
user code computes. So every kind of process of a job works for a while: the JVM, its driver,
Python workers, and executors of user code.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from fennel_core.connections import s3
from fennel_core.settings.model import Settings
from tests.support.airflow import Airflow, call, log_in, rows
from tests.support.executors import commit_of
from tests.support.polling import eventually_sync
from tests.support.s3 import object_keys

ROWS: Final = 120_000
FEW: Final = 4_096
PEOPLE: Final = 50
ENDS_S: Final = 300.0
STOPS_S: Final = 10.0
"""How soon no process of a cancelled request may be left."""
OTHERS_S: Final = 120.0
"""How long folders may stay that another program has made in the meantime."""
SEED: Final = int(os.environ.get("SEED", "1"))
TMP: Final = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108  # as the programs choose it
OURS: Final = ("fennel-task-*", "fennel-offline-*", "fennel-publish-*")
SPARKS: Final = ("spark-*", "blockmgr-*")
"""What a job makes in the folders for temporary files: ours, and that of Spark."""


@dataclass(frozen=True)
class Process:
    """A process, which no later one with its id equals."""

    pid: int
    started: float
    words: str

    @property
    def runs(self) -> bool:
        try:
            found = psutil.Process(self.pid)
            same = found.create_time() == self.started
            return same and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def processes_of(id_: str) -> set[Process]:
    """Return the processes of the job of a request: `spark-submit` and all below it."""
    found = set()
    for root in psutil.process_iter(["cmdline"]):
        if id_ in (root.info["cmdline"] or ()):
            for each in _family(root):
                try:
                    words = " ".join(each.cmdline())[:200]
                    found.add(Process(each.pid, each.create_time(), words))
                except psutil.NoSuchProcess:
                    continue
    return found


def _family(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def local_folders() -> set[Path]:
    spark = Path(os.environ.get("SPARK_LOCAL_DIRS", TMP))
    return {
        path
        for patterns, folder in ((OURS, TMP), (SPARKS, spark))
        for path in _matching(patterns, folder)
    }


def _matching(patterns: Sequence[str], folder: Path) -> set[Path]:
    return {path for pattern in patterns for path in folder.glob(pattern)}


@dataclass(frozen=True)
class SlowShop:
    """A workspace with `slow_shop` and the ages of some people."""

    settings: Settings
    workspace: str
    airflow: Airflow
    folders: frozenset[Path]
    """Folders of other programs, from before."""

    @property
    def token(self) -> str:
        return f"dev-{self.workspace}"

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        return call(method, f"{self.settings.query_url}/api/v1{path}", body, self.token)

    def good(self, method: str, path: str, body: object = None) -> Any:
        status, found = self.call(method, path, body)
        assert status == 200, f"{method} {path}: {status} {found}"
        return found

    def body(self, count: int = ROWS, **more: object) -> dict[str, Any]:
        uids = [number % PEOPLE for number in range(count)]
        given = {"Shopper.uid": uids, "at": ["2026-01-02 00:00:00"] * count}
        return {
            "input_features": ["Shopper.uid"],
            "output_features": ["Shopper.age", "Shopper.double"],
            "timestamp_column": "at",
            "input": {"Pandas": given},
            "workflow": "slow",
        } | more

    def submit(self, count: int = ROWS, **more: object) -> str:
        return str(self.good("POST", "/query_offline", self.body(count, **more))["request_id"])

    def status(self, id_: str) -> dict[str, Any]:
        found: dict[str, Any] = self.good("GET", f"/query_offline/status?request_id={id_}")
        return found

    def objects_of(self, id_: str) -> list[str]:
        """Return the keys of the platform's objects that belong to a request."""
        client = s3.client(self.settings)
        keys = object_keys(client, self.settings.s3_bucket, self.settings.s3_prefix)
        return [key for key in keys if f"/{id_}/" in key]

    def unfinished_tasks(self, id_: str) -> list[str]:
        """Return the tasks of Airflow that work on a request, or have failed."""
        found = []
        for run in self.airflow.runs("offline_query"):
            if id_ in run["dag_run_id"]:
                path = f"/dags/offline_query/dagRuns/{run['dag_run_id']}/taskInstances"
                _, tasks = call("GET", f"{self.airflow.url}{path}", None, self.airflow.token)
                states = [(each["task_id"], each["state"]) for each in tasks["task_instances"]]
                found += [f"{task} is {state}" for task, state in states if state != "success"]
        return found

    def reaches(self, id_: str, *states: str) -> dict[str, Any]:
        """Wait until a request is in one of the states, and return its status."""
        latest: dict[str, Any] = {}

        def reached() -> bool:
            latest.update(self.status(id_))
            return latest["state"] in states

        eventually_sync(reached, within_s=ENDS_S, interval_s=0.1, what=lambda: latest)
        return latest

    def ends_all(self, id_: str) -> None:
        """Wait until no process and no task works on a request."""
        eventually_sync(
            lambda: not processes_of(id_) and not self.unfinished_tasks(id_),
            within_s=ENDS_S,
            interval_s=0.2,
            what=lambda: self.unfinished_tasks(id_) or processes_of(id_),
        )

    def working(self, id_: str) -> set[Process]:
        """Wait until user code runs for a request, and return the processes of its job."""

        def all_kinds() -> set[Process] | None:
            found = processes_of(id_)
            words = " ".join(each.words for each in found)
            kinds = ("java", "offline_query.py", "pyspark", "fennel_core.executors")
            return found if all(kind in words for kind in kinds) else None

        found: set[Process] = eventually_sync(
            all_kinds, within_s=ENDS_S, interval_s=0.1, what="user code runs"
        )
        return found


@contextmanager
def slow_shop(settings: Settings) -> Iterator[SlowShop]:
    """Yield a shop, and delete it."""
    name, folders = f"slow-{uuid.uuid4().hex[:8]}", frozenset(local_folders())
    shop = SlowShop(settings, name, log_in(settings), folders)
    try:
        commit = asyncio.run(commit_of("tests.e2e.offline.slow_shop"))
        shop.good("POST", "/commit", commit)
        data = {
            "uid": list(range(PEOPLE)),
            "age": [20 + uid for uid in range(PEOPLE)],
            "at": ["2026-01-01 00:00:00"] * PEOPLE,
        }
        shop.good("POST", "/log", {"webhook": "slow", "endpoint": "people", "data": data})
        yield shop
    finally:
        admin = settings.admin_token.get_secret_value()
        call("DELETE", f"{settings.query_url}/api/v1/workspaces/{shop.workspace}", None, admin)


@pytest.fixture(scope="module")
def shop(platform: None) -> Iterator[SlowShop]:
    with slow_shop(Settings()) as made:
        yield made


def runs_of(id_: str) -> tuple[int, int]:
    """Return how often a request was started, and claimed."""
    [(starts, epoch)] = rows("SELECT starts, epoch FROM offline_query WHERE id = %s", id_)
    return int(str(starts)), int(str(epoch))


def cancelled(
    shop: SlowShop,
    id_: str,
    known: set[Process],
    outage: AbstractContextManager[None] | None = None,
) -> None:
    """Cancel a request, and wait until nothing of it is left.

    During the `outage` it is cancelled, and its processes end.
    """
    folders, known = local_folders(), known | processes_of(id_)
    with outage or nullcontext():
        status = shop.good("POST", f"/query_offline/cancel?request_id={id_}", {})
        assert status["state"] == "cancelled"
        took = gone(id_, known)
    no_object = f"{id_}: no object is left"
    eventually_sync(lambda: not shop.objects_of(id_), within_s=30, interval_s=0.2, what=no_object)
    eventually_sync(lambda: not shop.unfinished_tasks(id_), within_s=30, what="no task runs")
    print(f"cancelled, {len(known)} processes gone after {took:.1f} s")
    assert took <= STOPS_S
    assert processes_of(id_) == set()
    assert_that_folders_are_gone(folders - shop.folders)
    assert shop.status(id_)["state"] == "cancelled"


def gone(id_: str, known: set[Process]) -> float:
    """Wait until no process of a request is left; return the seconds since now."""
    began = time.monotonic()

    def left() -> list[str]:
        known.update(processes_of(id_))
        return [each.words for each in known if each.runs]

    eventually_sync(lambda: not left(), within_s=60, interval_s=0.05, what=left)
    return time.monotonic() - began


def assert_that_folders_are_gone(made: set[Path]) -> None:
    def left() -> set[Path]:
        return made & local_folders()

    eventually_sync(lambda: not left(), within_s=OTHERS_S, interval_s=0.2, what=left)
