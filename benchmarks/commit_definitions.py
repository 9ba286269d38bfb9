"""Write the definitions that `commit.py` commits to a file, with the client's environment.

Three entities at a time: a source, a dataset with a count and a sum per user, and a featureset that
looks it up.

    .venv-executor/bin/python -m benchmarks.commit_definitions FILE ENTITIES
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from fennel.internal_lib.to_proto.to_proto import to_sync_request_proto

HEAD = """
from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, pipeline
from fennel.dtypes import Continuous
from fennel.expr import col
from fennel.featuresets import feature as F
from fennel.featuresets import featureset
from fennel.lib import inputs

__owner__ = "bench@example.com"
webhook = Webhook(name="bench")
OBJECTS = []
"""
THREE = """

@source(webhook.endpoint("events{n}"), disorder="14d", cdc="append")
@dataset
class Events{n}:
    user: int
    amount: float
    city: str
    at: datetime


@dataset(index=True)
class Totals{n}:
    user: int = field(key=True)
    total: float
    events: int
    at: datetime

    @pipeline
    @inputs(Events{n})
    def totals(cls, events: Dataset):
        return (
            events.filter(col("amount") > 1.0)
            .groupby("user")
            .aggregate(
                total=Sum(of="amount", window=Continuous("forever")),
                events=Count(window=Continuous("1d")),
            )
        )


@featureset
class Features{n}:
    user: int
    total: float = F(Totals{n}.total, default=0.0)
    events: int = F(Totals{n}.events, default=0)


OBJECTS += [Events{n}, Totals{n}, Features{n}]
"""


def load(folder: Path, threes: int) -> ModuleType:
    """The module with the definitions; in a file, because the client reads its classes' source."""
    path = folder / "definitions.py"
    path.write_text(HEAD + "".join(THREE.format(n=n) for n in range(threes)))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def main(target: Path, entities: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        request = to_sync_request_proto(
            load(Path(folder), -(-entities // 3)).OBJECTS, "benchmark", None
        )
        target.write_bytes(request.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
