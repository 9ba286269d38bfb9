"""Commit versions of a chain of datasets, one with user code, while queries run all the time.

    python growing_chain.py URL TOKEN < plan.json > result

The client's interpreter runs it. `plan.json`: {"rows", "users", "lengths"}; `lengths`: the number
of new datasets over one another, per commit. All rows are logged before the first version that is
counted. Each version multiplies the amounts by its number, so an answer names its version, and it
is complete if it counts every row. The last line of the output is the result.
"""

import importlib.util
import json
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pandas as pd
import requests
from fennel.client import Client

warnings.simplefilter("ignore")
HEADER = """
from datetime import datetime
import pandas as pd
from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, pipeline
from fennel.dtypes import Continuous
from fennel.expr import col
from fennel.featuresets import feature as F
from fennel.featuresets import featureset
from fennel.lib import inputs, meta

__owner__ = "tests@example.com"
webhook = Webhook(name="door")


@source(webhook.endpoint("Orders"), disorder="14d", cdc="append")
@dataset
class Orders:
    uid: int
    amount: int
    at: datetime
"""
SCALED = """

@dataset(version={version})
class Scaled:
    uid: int
    amount: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def scale(cls, orders: Dataset):
        return orders.assign("amount", int, lambda df: df["amount"] * {version})
"""
STEP = """

@dataset(version={version})
class Step{number}:
    uid: int
    amount: int
    at: datetime

    @pipeline
    @inputs({before})
    def step(cls, before: Dataset):
        return before.filter(col("amount") > -{number})
"""
SPENT = """

@dataset(index=True, version={version})
class Spent:
    uid: int = field(key=True)
    count: int
    total: int
    at: datetime

    @pipeline
    @inputs({before})
    def spend(cls, before: Dataset):
        return before.groupby("uid").aggregate(
            count=Count(window=Continuous("forever")),
            total=Sum(of="amount", window=Continuous("forever")),
        )


@featureset
class User:
    uid: int
    count: int = F(Spent.count, default=0)
    total: int = F(Spent.total, default=0)
"""


def definitions(folder, version, length):
    """Return the datasets and the featureset of a version: one to four new jobs over `Orders`."""
    parts, before = [HEADER], "Orders"
    if length > 1 or version == 1:
        parts.append(SCALED.format(version=version))
        before = "Scaled"
    for number in range(length - 2):
        parts.append(STEP.format(version=version, number=number, before=before))
        before = f"Step{number}"
    parts.append(SPENT.format(version=version, before=before))
    path = Path(folder) / f"chain_{version}.py"
    path.write_text("".join(parts))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    names = ["Orders", "Scaled", *(f"Step{n}" for n in range(length)), "Spent"]
    return [getattr(module, name) for name in names if hasattr(module, name)], [module.User]


class Reader(threading.Thread):
    """Query every user until stopped, and keep each distinct answer that is not complete."""

    def __init__(self, url, token, count, total, versions):
        super().__init__(daemon=True)
        self.url, self.headers = url, {"Authorization": f"Bearer {token}"}
        self.count, self.total, self.versions = count, total, versions
        self.stopped, self.answers, self.wrong, self.refused = threading.Event(), 0, [], []

    def run(self):
        users = sorted(self.count)
        body = {
            "inputs": ["User.uid"],
            "outputs": ["User.count", "User.total"],
            "data": {"User.uid": users},
        }
        session = requests.Session()
        while not self.stopped.is_set():
            response = session.post(
                f"{self.url}/api/v1/query", json=body, headers=self.headers, timeout=60
            )
            if response.status_code != 200:
                self.refused.append(response.text[:300])
                continue
            data = response.json()["data"] if "data" in response.json() else response.json()
            self.answers += 1
            for uid, count, total in zip(
                users, data["User.count"], data["User.total"], strict=True
            ):
                factor = total / self.total[uid]
                if count != self.count[uid] or factor not in self.versions:
                    self.wrong.append([uid, count, total, sorted(self.versions)])
            self.latest = factor


def main(url, token):
    plan = json.load(sys.stdin)
    client = Client(url, token)
    folder = tempfile.mkdtemp()
    datasets, featuresets = definitions(folder, 1, plan["lengths"][0])
    client.commit(message="version 1", datasets=datasets, featuresets=featuresets)
    frame = pd.DataFrame({"uid": range(plan["rows"])})
    frame["amount"] = frame["uid"] % 97 + 1
    frame["uid"] %= plan["users"]
    frame["at"] = pd.Timestamp("2026-01-01", tz="UTC")
    for first in range(0, len(frame), 10_000):
        client.log("door", "Orders", frame.iloc[first : first + 10_000])
    requests.post(
        f"{url}/api/v1/barrier",
        json={"timeout_s": 300},
        headers={"Authorization": f"Bearer {token}"},
        timeout=310,
    ).raise_for_status()
    count = frame.groupby("uid").size().to_dict()
    total = frame.groupby("uid")["amount"].sum().to_dict()
    count = {int(k): int(v) for k, v in count.items()}
    total = {int(k): int(v) for k, v in total.items()}
    versions = {1}
    readers = [Reader(url, token, count, total, versions) for _ in range(2)]
    for reader in readers:
        reader.start()
    seconds = []
    for version, length in enumerate(plan["lengths"][1:], start=2):
        datasets, featuresets = definitions(folder, version, length)
        versions.add(version if length > 1 else 1)
        began = time.monotonic()
        client.commit(message=f"version {version}", datasets=datasets, featuresets=featuresets)
        seconds.append(round(time.monotonic() - began, 2))
    last = max(versions)
    until = time.monotonic() + 120
    while any(getattr(r, "latest", None) != last for r in readers) and time.monotonic() < until:
        time.sleep(0.1)  # until the last version is served
    for reader in readers:
        reader.stopped.set()
    for reader in readers:
        reader.join(60)
    print(
        json.dumps(
            {
                "answers": sum(r.answers for r in readers),
                "wrong": [each for r in readers for each in r.wrong][:5],
                "wrong_count": sum(len(r.wrong) for r in readers),
                "refused": [each for r in readers for each in r.refused][:5],
                "latest": [getattr(r, "latest", None) for r in readers],
                "last": last,
                "seconds": seconds,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
