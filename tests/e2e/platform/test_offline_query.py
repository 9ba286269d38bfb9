"""Training data with the public client: features as of each row's time, and the rows that fail."""

from __future__ import annotations

import io
import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fennel_core.connections import s3
from fennel_core.settings.model import Settings
from tests.e2e.offline.platform_world import slow_shop
from tests.support.airflow import call, log_in
from tests.support.s3 import object_keys

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(600)]
PROGRAM = Path(__file__).parent / "offline_shop.py"
TRAINING_FILES = (
    "shopper,at,label\n1,2026-01-03 00:00:00,0\n1,2026-01-07 00:00:00,1\n",
    "shopper,at,label\n3,2026-01-03 00:00:00,0\n",
)
"""Rows are numbered by the names of files and their positions in them."""


def assert_that_the_result_is_in(bucket: str, status: dict[str, Any], settings: Settings) -> None:
    assert status["state"] == "done", status
    client, folder = s3.client(settings), f"out/{status['request_id']}/"
    keys = object_keys(client, bucket, folder)
    assert f"{folder}_SUCCESS" in keys
    parts = [s3.get(client, bucket, key) or b"" for key in keys if "/part-" in key]
    frame = pl.concat(pl.read_parquet(io.BytesIO(part)) for part in parts)
    assert frame["Shopper.age"].to_list() == [20, 40, -1]
    assert frame["Shopper.placed"].to_list() == [1, 3, 0]


@pytest.mark.long
def test_a_client_asks_for_training_data_and_gets_features_as_of_each_time() -> None:
    settings = Settings()
    workspace = f"offline-{uuid.uuid4().hex[:8]}"
    api, token = f"{settings.query_url}/api/v1", f"dev-{workspace}"
    objects, bucket = s3.client(settings), f"training-{workspace}"
    objects.create_bucket(Bucket=bucket)
    for number, text in enumerate(TRAINING_FILES):
        objects.put_object(Bucket=bucket, Key=f"in/{number}.csv", Body=text.encode())
    key = (settings.s3_access_key, settings.s3_secret_key.get_secret_value())
    try:
        done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [
                *(str(settings.executor_python.absolute()), str(PROGRAM)),
                *(settings.query_url, token, bucket, *key),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        status, of_bucket = (json.loads(line) for line in done.stdout.splitlines()[-2:])
        assert_that_the_result_is_in(bucket, of_bucket, settings)
        assert status["state"] == "done", status
        assert (status["completion_rate"], status["failure_rate"]) == (1.0, 2 / 6)
        assert status["data"]["Shopper.age"] == [20, 40, 20, None, -1, None]
        assert status["data"]["Shopper.placed"] == [1, 3, 0, None, 0, None]
        assert status["data"]["Shopper.inverse"] == [0.05, 0.025, 0.05, None, -1.0, None]
        assert status["data"]["Shopper.regular"] == [-1, 3, -1, None, -1, None]
        reasons = {each["row"]: each["reason"] for each in status["failures"]}
        assert "Extractor `invert` in `Shopper`" in reasons[3]
        assert "1 / int(age)" in reasons[3], "the user's line is named"
        assert "has no time" in reasons[5]
        assert any("num_dpus" in each for each in status["warnings"])
        [file] = status["files"]
        assert (file["rows"], file["failed_rows"]) == (6, 2)
        # A request is done before its task has logged that.
        airflow, run = log_in(settings), f"offline-{status['request_id']}-1"
        assert airflow.end_of(run, "offline_query")["state"] == "success"
        assert "row 3 failed" in airflow.log(run, "compute", "offline_query")
        assert "6 rows, about" in airflow.log(run, "accept", "offline_query")
        estimate = status["estimate"]
        assert estimate["versions"] + estimate["tail_records"] > 0
        path = f"{api}/query_offline/cancel?request_id={status['request_id']}"
        code, text = call("POST", path, {}, token)
        assert (code, "is done" in text) == (409, True)
    finally:
        admin = settings.admin_token.get_secret_value()
        call("DELETE", f"{api}/workspaces/{workspace}", None, admin)


@pytest.mark.long
def test_a_request_from_airflows_form_is_computed_by_the_run_of_the_form() -> None:
    with slow_shop(Settings()) as shop:
        form = shop.airflow.run(
            "offline_query",
            workspace=shop.workspace,
            inputs=["Shopper.uid"],
            outputs=["Shopper.age"],
            timestamp_column="at",
            rows={"Shopper.uid": [1], "at": ["2026-01-03 00:00:00"]},
            workflow="form",
        )
        assert form["state"] == "success", form
        [computed] = shop.good("GET", "/query_offline/list")["requests"]
        assert (computed["workflow"], computed["state"]) == ("form", "done")
        names = [each["dag_run_id"] for each in shop.airflow.runs("offline_query")]
        assert [name for name in names if computed["request_id"] in name] == [], "one run: its own"
