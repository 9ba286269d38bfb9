"""Exercise every conversion once before the first fork (executor environment).

A worker is a fork of the host and inherits everything the host has imported, compiled and cached.
The code here triggers what the first call would otherwise pay for: lazily imported parts of pandas,
kernels of pyarrow, the modules that generated code imports.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import fennel.connectors.connectors
import fennel.datasets.aggregate
import fennel.dtypes.dtypes
import fennel.expr
import fennel.featuresets
import fennel.lib.expectations
import fennel.lib.includes
import fennel.lib.metadata
import fennel.lib.params
import pandas as pd
import pyarrow as pa

from fennel_core.executors import protocol
from fennel_core.executors.code_cache import CodeCache, code_key
from fennel_core.executors.columns_out import layout
from fennel_core.executors.invocation import assign, extract, keep, transform

IMPORTED = (
    fennel.connectors.connectors,
    fennel.datasets.aggregate,
    fennel.dtypes.dtypes,
    fennel.expr,
    fennel.featuresets,
    fennel.lib.expectations,
    fennel.lib.includes,
    fennel.lib.metadata,
    fennel.lib.params,
)
"""The imports of generated code, loaded once in the parent."""

_AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
SAMPLES: tuple[tuple[str, Any, list[Any]], ...] = (
    ("i", "i", [1]),
    ("f", "f", [1.0]),
    ("s", "s", ["a"]),
    ("b", "b", [True]),
    ("y", "y", [b"a"]),
    ("t", "t", [_AT]),
    ("d", "d", [_AT.date()]),
    ("m", ["decimal", 2], [Decimal("1.00")]),
    ("e", ["embedding", 2], [[1.0, 2.0]]),
    ("l", ["list", "i"], [[1]]),
    ("p", ["map", "i"], [[{"key": "a", "value": 1}]]),
    ("u", ["struct", "S", [["a", "i"]]], [{"a": 1}]),
    ("oi", ["optional", "i"], [None]),
    ("os", ["optional", "s"], [None]),
    ("ot", ["optional", "t"], [None]),
)


def exercise() -> None:
    """Invoke every kind of call once with every type."""
    fields = [[name, description] for name, description, _ in SAMPLES]
    table = pa.table(
        [pa.array(values, layout(description)) for _, description, values in SAMPLES],
        names=[n for n, _, _ in SAMPLES],
    )
    header = {
        "input": fields,
        "output": fields,
        "entity": "warm-up",
        "checked": True,
        "extractor": "warm-up",
    }
    transform(lambda frame: frame, header, table)
    keep(lambda frame: frame[frame["i"] > 0], header, table)
    assign(
        lambda frame: frame.assign(i=lambda x: x["i"] + 1), header | {"output": [["i", "i"]]}, table
    )
    timed = table.add_column(0, protocol.TS, pa.array([_AT], pa.timestamp("us", tz="UTC")))
    extract(lambda _, *given: pd.concat(given, axis=1), header, timed)
    extract(
        lambda _, *given: pd.Series(given[0] * 2, name="i"),
        header | {"output": [["i", "i"]]},
        timed,
    )
    text = "import pandas as pd\ndef f(): return pd"
    CodeCache().load(code_key(text, "f", None), text, "f", None)
