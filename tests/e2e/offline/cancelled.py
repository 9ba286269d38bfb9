"""Requests that are cancelled at every stage of a real Spark job: it ends soon and leaves nothing.

`make offline-faults` runs it on the running platform, through Airflow. The time is that from the
response to the cancellation to the end of the last process: `spark-submit` with its JVM, the
driver, Python workers, and executors of user code.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fennel_core.connections import s3
from tests.e2e.faults.strikes import frozen
from tests.e2e.offline.platform_world import (
    ENDS_S,
    FEW,
    SEED,
    STOPS_S,
    SlowShop,
    cancelled,
    gone,
    processes_of,
    shop,
)
from tests.support.polling import eventually_sync
from tests.support.s3 import object_keys

__all__ = ["shop"]
pytestmark = [pytest.mark.platform, pytest.mark.timeout(900)]
ENDS = 3


def test_while_its_tasks_run_user_code(shop: SlowShop) -> None:
    id_ = shop.submit()
    cancelled(shop, id_, shop.working(id_))


def test_while_s3_does_not_answer(shop: SlowShop) -> None:
    id_ = shop.submit()
    cancelled(shop, id_, shop.working(id_), frozen(shop.settings, "s3"))


def test_while_it_is_queued(shop: SlowShop) -> None:
    id_ = shop.submit()
    cancelled(shop, id_, set())


def test_while_the_jvm_starts(shop: SlowShop) -> None:
    id_ = shop.submit()
    found = eventually_sync(lambda: processes_of(id_), within_s=ENDS_S, what="spark-submit runs")
    cancelled(shop, id_, found)


def test_while_spark_starts(shop: SlowShop) -> None:
    id_ = shop.submit()
    shop.reaches(id_, "running")
    cancelled(shop, id_, set())


@pytest.fixture
def bucket(shop: SlowShop) -> Iterator[str]:
    """A bucket of a user; the names of objects in it."""
    client, name = s3.client(shop.settings), f"theirs-{shop.workspace}"
    client.create_bucket(Bucket=name)
    yield name
    for key in object_keys(client, name, ""):
        s3.delete(client, name, key)
    client.delete_bucket(Bucket=name)


def test_right_before_the_end(shop: SlowShop, bucket: str) -> None:
    """The result is being copied to the user's bucket: it is there as a whole, or not at all."""
    draw, client = random.Random(SEED), s3.client(shop.settings)  # noqa: S311  # not for secrets
    for number in range(ENDS):
        id_ = shop.submit(FEW, s3_output=target(shop, bucket))

        def published(id_: str = id_) -> list[str]:
            return object_keys(client, bucket, f"out/{id_}/part-")

        copied: Callable[[], object] = published
        eventually_sync(copied, within_s=ENDS_S, what="the result is being copied")
        time.sleep(number and draw.uniform(0.0, 0.3))  # the moment in the last steps of the run
        code, text = shop.call("POST", f"/query_offline/cancel?request_id={id_}", {})
        took = gone(id_, set())
        state = shop.status(id_)["state"]
        print(f"{state} ({code}), its processes gone after {took:.1f} s")
        assert took <= STOPS_S
        assert (code, state) in {(200, "cancelled"), (409, "done")}, text
        if state == "done":
            assert f"out/{id_}/_SUCCESS" in object_keys(client, bucket, f"out/{id_}/")
        else:
            eventually_sync(
                lambda id_=id_: not object_keys(client, bucket, f"out/{id_}/"), within_s=30
            )
            eventually_sync(lambda id_=id_: not shop.objects_of(id_), within_s=30)


def target(shop: SlowShop, bucket: str) -> dict[str, Any]:
    """Return a place in a bucket as the client sends it."""
    settings = shop.settings
    secret = settings.s3_secret_key.get_secret_value()
    account = {
        "S3": {
            "creds": {"access_key": settings.s3_access_key, "secret_key": secret},
            "role_arn": None,
        }
    }
    place = {"bucket": bucket, "path_prefix": "out", "format": "parquet"}
    return place | {"db": {"name": "theirs", "db": account}}
