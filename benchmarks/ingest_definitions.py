"""The definitions that `ingest.py` measures; commits itself, with the client's environment.

Each kind of source has two datasets: a small one, whose reading starts what a process keeps, and
the measured one. `http` has a dataset that is logged to, and an aggregate over it.

    echo '{"kinds": ["http"]}' | python -m benchmarks.ingest_definitions URL TOKEN
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from fennel.client import Client
from fennel.datasets import Dataset

HEAD = """
from datetime import datetime

from fennel.connectors import S3, Kafka, Postgres, Webhook, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.lib import inputs, meta

"""
CONNECTORS = {
    "kafka": """
connector = Kafka(
    name="kafka", bootstrap_servers="{bootstrap}", security_protocol="PLAINTEXT",
    sasl_mechanism="PLAIN", sasl_plain_username=None, sasl_plain_password=None,
)
""",
    "parquet": """
connector = S3(name="parquet", aws_access_key_id="{key}", aws_secret_access_key="{secret}")
""",
    "postgres": """
connector = Postgres(
    name="postgres", host="{host}", port={port}, db_name="{database}", username="{user}",
    password="{password}",
)
""",
}
TABLES = {
    "kafka": 'connector.topic("{name}")',
    "parquet": 'connector.bucket("{bucket}", path="{name}/*.parquet", format="parquet")',
    "postgres": 'connector.table("{name}", cursor="id")',
}
READ = """
@source({table}, every="1s", disorder="14d", cdc="append")
@meta(owner="bench@example.com")
@dataset
class {dataset}:
    id: int
    user: str
    city: str
    amount: float
    at: datetime = field(timestamp=True)
"""
LOGGED = """
webhook = Webhook(name="bench")


@source(webhook.endpoint("orders"), disorder="14d", cdc="append")
@meta(owner="bench@example.com")
@dataset
class Logged:
    id: int
    user: str
    city: str
    amount: float
    at: datetime = field(timestamp=True)


@meta(owner="bench@example.com")
@index
@dataset
class Spent:
    user: str = field(key=True)
    orders: int
    amount: float
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Logged)
    def spent(cls, orders: Dataset):
        return orders.groupby("user").aggregate(
            orders=Count(window=Continuous("forever")),
            amount=Sum(of="amount", window=Continuous("forever")),
        )
"""


def definitions(kinds: list[str], given: dict[str, Any]) -> str:
    """Return the text of a module; `given` has the addresses and the names of what is read."""
    text = HEAD
    for kind in kinds:
        if kind == "http":
            text += LOGGED
            continue
        text += CONNECTORS[kind].format(**given)
        for size in ("small", "large"):
            table = TABLES[kind].format(name=given[size], **given)
            text += READ.format(table=table, dataset=f"{kind}_{size}".title().replace("_", ""))
    return text


def module_of(text: str) -> ModuleType:
    """Return the module; the client reads the source of pipelines from a file."""
    path = Path(tempfile.mkdtemp(prefix="fennel-bench-")) / "bench_ingest.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a path has a loader"
    assert spec.loader is not None, "a path has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    url, token, given = sys.argv[1], sys.argv[2], json.load(sys.stdin)
    module = module_of(definitions(given.pop("kinds"), given))
    found = [each for each in vars(module).values() if isinstance(each, Dataset)]
    with contextlib.redirect_stdout(io.StringIO()):
        Client(url, token=token).commit(message="benchmark", datasets=found)


if __name__ == "__main__":
    main()
