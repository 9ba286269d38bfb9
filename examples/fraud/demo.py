"""Commit, log and query the fraud project with the real client.

Prints one JSON object per stage, with its duration:

python -m examples.fraud.demo http://127.0.0.1:7400 dev-demo
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import urllib.request
from collections.abc import Iterator

import pandas as pd
from fennel.client import Client

from examples.fraud.data import load
from examples.fraud.definitions import DATASETS, FEATURESETS, CardRisk

BARRIER_TIMEOUT_S = 60


def emit(**event: object) -> None:
    """Print an event as one line of JSON."""
    sys.stdout.write(json.dumps(event, default=str) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def stage(title: str) -> Iterator[io.StringIO]:
    """Time one stage; the client's own output is kept out of the JSON lines."""
    emit(begin=title)
    started = time.perf_counter()
    client_output = io.StringIO()
    with contextlib.redirect_stdout(client_output):
        yield client_output
    emit(end=title, seconds=round(time.perf_counter() - started, 3))


def barrier(url: str, token: str) -> None:
    """Wait until everything logged so far is visible to queries."""
    request = urllib.request.Request(  # noqa: S310  # the address the user gave
        f"{url}/api/v1/barrier",
        data=json.dumps({"timeout_s": BARRIER_TIMEOUT_S}).encode(),
        headers={
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "X-FENNEL-BRANCH": "main",
        },
    )
    with urllib.request.urlopen(request, timeout=BARRIER_TIMEOUT_S + 5) as response:  # noqa: S310  # as above
        response.read()


def main(url: str, token: str) -> None:
    client = Client(url, token)
    cards, transactions = load(pd.Timestamp.now(tz="UTC"))
    with stage("commit the definitions"):
        client.commit(message="fraud example", datasets=DATASETS, featuresets=FEATURESETS)
    with stage(f"log {len(cards)} cards and {len(transactions)} transactions"):
        client.log("bank", "cards", cards)
        client.log("bank", "transactions", transactions)
    with stage("wait until they are visible (barrier)"):
        barrier(url, token)
    wanted = pd.DataFrame({"CardRisk.cc_num": sorted(cards["cc_num"])})
    with stage("query the features, first time (loads user code)"):
        client.query(inputs=[CardRisk.cc_num], outputs=[CardRisk], input_dataframe=wanted)
    with stage("query the features again"):
        features = client.query(
            inputs=[CardRisk.cc_num], outputs=[CardRisk], input_dataframe=wanted
        )
    features.columns = [name.split(".", 1)[1] for name in features.columns]
    emit(features=json.loads(features.to_json(orient="records")))


if __name__ == "__main__":
    main(*sys.argv[1:3])
