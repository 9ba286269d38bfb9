"""Commit the project, wait until all orders are counted, and compare features online and offline.

Prints one JSON object per step:

.venv-executor/bin/python -m examples.delivery.story http://127.0.0.1:7400 dev-delivery 20000
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pandas as pd
from fennel.client import Client

from examples.delivery.definitions import DATASETS, FEATURESETS, Customer

CUSTOMERS = 500
WAIT_S, LOOK_S = 600.0, 2.0


def emit(**event: object) -> None:
    """Print an event as one line of JSON."""
    sys.stdout.write(json.dumps(event, default=str) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Time one step; the client's own output is kept out of the JSON lines."""
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        yield
    emit(step=title, seconds=round(time.perf_counter() - started, 1))


def online(client: Client) -> pd.DataFrame:
    """Return the features of every customer as of now."""
    wanted = pd.DataFrame({"Customer.customer_id": range(CUSTOMERS)})
    found = client.query(inputs=[Customer.customer_id], outputs=[Customer], input_dataframe=wanted)
    return named(found)


def offline(client: Client, at: datetime) -> pd.DataFrame:
    """Return the features of every customer as of a time, computed by a Spark job."""
    wanted = pd.DataFrame({"Customer.customer_id": range(CUSTOMERS), "at": [at] * CUSTOMERS})
    request = client.query_offline(
        inputs=[Customer.customer_id],
        outputs=[Customer],
        timestamp_column="at",
        input_dataframe=wanted,
    )
    while request["state"] in ("queued", "running"):
        time.sleep(LOOK_S)
        request = client.track_offline_query(request["request_id"])
    if request["state"] != "done":
        raise SystemExit(f"the offline query failed: {request}")
    return named(pd.DataFrame(request["data"]))


def named(features: pd.DataFrame) -> pd.DataFrame:
    """Return the features with short names, by customer."""
    features = features.rename(columns=lambda name: str(name).removeprefix("Customer."))
    names = [each for each in features.columns if each != "at"]
    found = features[names].sort_values("customer_id").reset_index(drop=True)
    found["cuisines"] = [list(each) for each in found["cuisines"]]
    return found


def wait_for(client: Client, orders: int) -> None:
    """Wait until so many orders are counted; a part of the platform may be away for a time."""
    give_up, counted = time.monotonic() + WAIT_S, 0
    while counted < orders:
        if time.monotonic() > give_up:
            raise SystemExit(f"{counted} of {orders} orders are counted after {WAIT_S:.0f} s")
        time.sleep(LOOK_S)
        with contextlib.suppress(Exception):  # it is asked again
            counted = int(online(client)["orders"].sum())


def main(url: str, token: str, orders: int) -> None:
    client = Client(url, token)
    with step("commit the definitions"):
        client.commit(message="delivery example", datasets=DATASETS, featuresets=FEATURESETS)
    with step(f"wait until {orders} orders from the lake and the topic are counted"):
        wait_for(client, orders)
    with step("query the features online"):
        now = datetime.now(timezone.utc)  # noqa: UP017  # as people write it
        served = online(client)
    with step("compute the same features offline, as of the same time"):
        computed = offline(client, now)
    pd.testing.assert_frame_equal(served, computed[served.columns], check_dtype=False, rtol=1e-9)
    emit(features=json.loads(served.to_json(orient="records")))
    emit(equal=f"{len(served)} customers have the same {len(served.columns)} features in both")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
