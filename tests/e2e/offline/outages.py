"""Services that die or freeze while an offline query runs and its client polls.

`make offline-faults` runs it on the running platform, through Airflow, with the public client. The
client's polls fail with an exception and it asks again. The request is neither lost nor finished
twice: one result, with every row once and in order, and no object of another run.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from fennel_core.connections import s3
from fennel_core.settings.model import Settings
from tests.e2e.faults.outage import frozen_postgres, killed_postgres
from tests.e2e.faults.strikes import frozen, kill_part
from tests.e2e.offline.platform_world import (
    FEW,
    PEOPLE,
    SlowShop,
    processes_of,
    runs_of,
    shop,
)
from tests.support.airflow import call

__all__ = ["shop"]
pytestmark = [pytest.mark.platform, pytest.mark.timeout(900)]
PROGRAM: Final = Path(__file__).with_name("polling_client.py")
ROWS: Final = {"queued": FEW, "running": FEW, "computing": 20 * FEW}
"""By stage: their computation takes 2 s, or longer than the outage."""
OUTAGE_S: Final = float(os.environ.get("OUTAGE_S", "20"))


@contextmanager
def killed_api(settings: Settings) -> Iterator[None]:
    """Kill the query server, which is the entry point, and the definition server behind it."""
    with frozen(settings, "watchdog"):
        for part in ("query", "definition"):
            kill_part(settings, part)
        yield


@contextmanager
def killed_airflow(settings: Settings) -> Iterator[None]:
    """Kill every part of Airflow, and so the task that watches the job."""
    with frozen(settings, "watchdog"):
        for part in ("airflow-api", "airflow-dags", "airflow-scheduler"):
            kill_part(settings, part)
        yield


@contextmanager
def killed_stores(settings: Settings) -> Iterator[None]:
    """Kill what the job reads and writes: Kafka and S3."""
    with frozen(settings, "watchdog"):
        for part in ("kafka", "s3"):
            kill_part(settings, part)
        yield


Fault = Callable[[Settings], Any]
FAULTS: Final = (killed_api, killed_postgres, frozen_postgres, killed_airflow, killed_stores)
NOTICED: Final = (killed_api, killed_postgres)
"""Polls fail. While Postgres is frozen a poll waits, and may be answered after all."""


@pytest.mark.parametrize("stage", ROWS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_polled_request_is_finished_once(shop: SlowShop, fault: Fault, stage: str) -> None:
    began = time.monotonic()
    with subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
        [
            *(str(shop.settings.executor_python.absolute()), str(PROGRAM)),
            *(shop.settings.query_url, shop.token, str(ROWS[stage])),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        id_ = json.loads(client.stdout.readline())["request_id"]
        if stage == "computing":
            shop.working(id_)
        elif stage == "running":
            shop.reaches(id_, "running")
        with fault(shop.settings):
            time.sleep(OUTAGE_S)  # the outage
        said = [json.loads(line) for line in client.stdout]
    assert client.returncode == 0
    errors, status = [each["error"] for each in said[:-1]], said[-1]["status"]
    starts, claims = runs_of(id_)
    print(
        f"{fault.__name__} while {stage}: {status['state']} after {time.monotonic() - began:.0f} s,"
        f" {starts} starts, {claims} claims; polls raised {[each[:90] for each in errors]}"
    )
    assert status["state"] == "done", status
    if fault in NOTICED:
        assert errors, "the client has noticed"
    assert_one_whole_result(shop, id_, status, ROWS[stage])


def assert_one_whole_result(shop: SlowShop, id_: str, status: dict[str, Any], count: int) -> None:
    assert (status["rows"], status["failed_rows"]) == (count, 0)
    client, keys = s3.client(shop.settings), [each["key"] for each in status["files"]]
    bucket = shop.settings.s3_bucket
    parts = [pl.read_parquet(io.BytesIO(s3.get(client, bucket, key) or b"")) for key in keys]
    ages = [20 + number % PEOPLE for number in range(count)]
    result = pl.concat(parts)
    assert result["Shopper.age"].to_list() == ages
    assert result["Shopper.double"].to_list() == [2 * age for age in ages]
    shop.ends_all(id_)
    assert sorted(shop.objects_of(id_)) == sorted(keys), "and nothing of other runs"
    path = f"{shop.settings.query_url}/api/v1/query_offline/list"
    _, listed = call("GET", path, None, shop.token)
    assert [each["request_id"] for each in listed["requests"]].count(id_) == 1
    assert processes_of(id_) == set()
