"""`Dataset.lookup` of real user code over rows of many times: pandas, in executors of a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import polars as pl
import pyarrow as pa
import pytest

from fennel_core.executors.calls import ExtractCall
from fennel_core.executors.client import Callbacks
from fennel_core.executors.launch import ExecutorLimits
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.offline.code_lookups import CallLookups
from fennel_core.offline.memory import MemoryRun, OfflineInputs
from fennel_core.offline.rows import REASON, ROW
from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.task_tools import SandboxExtractors
from fennel_core.settings.model import Settings
from fennel_core.wire.pycode import PyCode
from tests.laws.offline.queries import FAILED, Query, expected, given_frame, plain_rows
from tests.laws.offline.worlds import SECOND, SPECS, World, job_of, program
from tests.support.each_row import EachRow
from tests.support.executors import CLIENT_PYTHON
from tests.support.histories import Change, History

IMPORTS = """
from datetime import datetime
from typing import List, Optional
import pandas as pd
from fennel.datasets import dataset, field

@dataset(index=True)
class Users:
    k: int = field(key=True)
    v: Optional[int]
    tags: List[int]
    ts: datetime
"""
BODIES = {
    "_code": """
found, there = Users.lookup(ts, k=k, fields=["v"])
if (found["v"] == 1).any():
    raise ValueError("v is 1")
return pd.Series(found["v"].where(there, -1), name="F.code", dtype="Int64")
""",
    "_friend": """
first, _ = Users.lookup(ts, k=k)
some = first["v"].notna()
second, _ = Users.lookup(ts[some], k=first["v"][some].astype(int), fields=["v", "ts"])
out = pd.Series(-2, index=ts.index, dtype="Int64", name="F.friend")
out[some] = second["v"].array
return out
""",
    "_earlier": """
some = k[k != 1].index
found, _ = Users.lookup(ts[some] - pd.Timedelta(seconds=3), k=k[some])
out = pd.Series(pd.to_datetime(0, utc=True), index=ts.index, name="F.earlier")
out[some] = found["ts"].array
return out
""",
    "_later": """
found, _ = Users.lookup(ts + pd.Timedelta(seconds=3), k=k, fields=["ts"])
return pd.Series(found["ts"], name="F.later")
""",
}


class RealCode(EachRow):
    """Calls the bodies in executors, and counts the calls of each."""

    def __init__(self, executors: SandboxExtractors) -> None:
        self._executors, self.calls = executors, dict.fromkeys(BODIES, 0)

    def run(self, call: ExtractCall, rows: pa.Table, lookups: CallLookups | None) -> pl.DataFrame:
        self.calls[call.extractor] += 1
        text = f"def run(ts, k):\n{indent(BODIES[call.extractor].strip(), '    ')}\n"
        code = PyCode("run", "", "", text, IMPORTS, (), ())
        return self._executors.run(replace(call, code=code), rows, lookups)


@pytest.fixture
def code(tmp_path: Path) -> Iterator[RealCode]:
    settings = Settings(data_dir=tmp_path, run_dir=tmp_path, executor_python=CLIENT_PYTHON)
    with ExitStack() as stack:
        callbacks = Callbacks(workspace="w", version="main@1")
        yield RealCode(SandboxExtractors(ExecutorLimits.of(settings), callbacks, stack))


def user(number: int, k: int, v: int | None, seconds: int) -> Change:
    position = b"\x01" + number.to_bytes(13, "big")
    row = {"k": k, "v": v, "tags": [v or 0], "ts": seconds * SECOND, "__tombstone": False}
    return Change(0, 1, row | {"__pos": position})


WORLD = World(
    {
        **{name: History([]) for name in SPECS},
        "Users": History(
            [[user(1, 0, 2, 1), user(2, 2, 0, 2), user(3, 1, 1, 3), user(4, 0, None, 8)]]
        ),
    },
    frozenset(),
)
QUERIES: list[Query] = [
    ({"F.k": k, "F.n": None, "F.ks": [], "F.ns": []}, t * SECOND)
    for t in (0, 1, 3, 5, 9)
    for k in (0, 1, 2)
]


def computed(code: RealCode, output: str) -> tuple[list[object], list[str]]:
    """Return the rows of a feature, and the reasons of those that failed."""
    inputs = OfflineInputs(
        {job_of(name): spec for name, spec in SPECS.items()}, WORLD.versions(), WORLD.erasures()
    )
    run = MemoryRun(program([output]), inputs, code, lambda: ScratchStore(MemoryHangar))
    made, failures = run.run(given_frame(QUERIES))
    failed = set(failures[ROW].to_list())
    return plain_rows(made, [output], failed), failures[REASON].to_list()


@pytest.mark.parametrize(
    ("output", "most_calls"),
    [
        ("F.friend", 1 + 2 * (1 + 5)),  # the second lookup is of a part of the rows
        ("F.earlier", 2 * (1 + 5)),
        ("F.later", 2 * (1 + 5)),  # in both rounds, once for each time
        ("F.code", 1 + 30),  # until the rows that raise are known
    ],
)
def test_pandas_code_looks_up_what_was_known_at_the_time_of_each_row(
    code: RealCode, output: str, most_calls: int
) -> None:
    rows, reasons = computed(code, output)
    assert rows == [expected(WORLD, [output], row, at) for row, at in QUERIES]
    assert code.calls[f"_{output.removeprefix('F.')}"] <= most_calls
    assert (FAILED in rows) == (output == "F.code") == bool(reasons)
    assert all('raise ValueError("v is 1")' in reason for reason in reasons)
