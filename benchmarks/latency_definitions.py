"""The definitions that `latency.py` measures; commits itself, with the client's environment.

One job: `Account`, keyed and indexed. A chain of three: payments are filtered, priced in cents and
sent to their account's partition (map), joined with the account's holder as of that moment (join),
and counted and summed per account (aggregate). The remaining jobs are more datasets like `Account`.

    .venv-executor/bin/python -m benchmarks.latency_definitions http://127.0.0.1:7400 dev-bench 30
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from fennel.client import Client

JOBS_OF_THE_MEASURED = 5
"""Tables of Account and Holder; map, join and aggregate of PaymentTotals."""

MEASURED = """
from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.expr import col
from fennel.featuresets import feature as F
from fennel.featuresets import featureset
from fennel.lib import inputs, meta

webhook = Webhook(name="bench")


@source(webhook.endpoint("accounts"), disorder="14d", cdc="upsert")
@meta(owner="bench@example.com")
@index
@dataset
class Account:
    account_id: int = field(key=True)
    balance: float
    name: str
    at: datetime = field(timestamp=True)


@source(webhook.endpoint("holders"), disorder="14d", cdc="upsert")
@meta(owner="bench@example.com")
@index
@dataset
class Holder:
    account_id: int = field(key=True)
    country: str
    since: datetime = field(timestamp=True)


@source(webhook.endpoint("payments"), disorder="14d", cdc="append")
@meta(owner="bench@example.com")
@dataset
class Payment:
    payment_id: int
    account_id: int
    amount: float
    at: datetime = field(timestamp=True)


@meta(owner="bench@example.com")
@index
@dataset
class PaymentTotals:
    account_id: int = field(key=True)
    payments: int
    cents: float
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Payment, Holder)
    def totals(cls, payments: Dataset, holders: Dataset):
        return (
            payments.filter(col("amount") > 0.0)
            .assign(cents=(col("amount") * 100.0).astype(float))
            .join(holders, how="inner", on=["account_id"])
            .groupby("account_id")
            .aggregate(
                payments=Count(window=Continuous("forever")),
                cents=Sum(of="cents", window=Continuous("forever")),
            )
        )


@meta(owner="bench@example.com")
@featureset
class Accounts:
    account_id: int
    balance: float = F(Account.balance, default=-1.0)


@meta(owner="bench@example.com")
@featureset
class Payments:
    account_id: int
    payments: int = F(PaymentTotals.payments, default=0)


DATASETS = [Account, Holder, Payment, PaymentTotals]
FEATURESETS = [Accounts, Payments]
"""

MORE = """

@source(webhook.endpoint("more{n}"), disorder="14d", cdc="upsert")
@meta(owner="bench@example.com")
@index
@dataset
class More{n}:
    account_id: int = field(key=True)
    balance: float
    name: str
    at: datetime = field(timestamp=True)


DATASETS.append(More{n})
"""


def definitions(jobs: int) -> ModuleType:
    """A module that defines so many jobs. It is a file, because the client reads the source of what
    it commits.
    """
    text = MEASURED + "".join(MORE.format(n=n) for n in range(jobs - JOBS_OF_THE_MEASURED))
    path = Path(tempfile.mkdtemp(prefix="fennel-bench-")) / "bench_definitions.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("bench_definitions", path)
    assert spec is not None, "the file was just written"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(url: str, token: str, jobs: str) -> None:
    made = definitions(int(jobs))
    with contextlib.redirect_stdout(io.StringIO()):
        Client(url, token).commit(
            message="latency benchmark", datasets=made.DATASETS, featuresets=made.FEATURESETS
        )


if __name__ == "__main__":
    main(*sys.argv[1:4])
