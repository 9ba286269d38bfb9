"""Measure the cost of one call of a Python extractor, from the platform's side of the socket.

    .venv/bin/python benchmarks/executor.py [--calls 2000]

Starts its own host with one process. Prints p50 and p99 for 1 and 100 rows of three extractors: one
int input, ten mixed inputs, and one with a dataset lookup (whose response is made here, so the
lookup itself costs nothing).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import uvloop

from fennel_core.executors.calls import ExtractCall
from fennel_core.executors.client import Callbacks, Executors, LookupReply, LookupRequest
from fennel_core.executors.protocol import TS
from fennel_core.vocab.dtypes import Field, Float, Int, Optional, Str, arrow_type
from fennel_core.wire.pycode import PyCode
from tests.support.executors import running_host

OUT = (Field("F.out", Int()),)
WARM_UP = 100


def code(text: str) -> PyCode:
    imports = (
        "__fennel_gen_code__=True\nimport pandas as pd\nimport fennel.datasets.datasets "
        "as datasets\n"
    )
    return PyCode("run", "", "", text, imports, (), ())


def subjects() -> dict[str, ExtractCall]:
    one = (Field("F.a", Int()),)
    mixed = tuple(
        Field(f"F.m{i}", kind)
        for i, kind in enumerate((Int(), Float(), Str(), Optional(Int()), Optional(Str())) * 2)
    )
    looking = (
        "def run(ts, a):\n"
        "    found, known = datasets.dataset_lookup('D', ts, [], pd.DataFrame({'k': a}))\n"
        "    return pd.Series(found['v'].fillna(0), name='F.out')\n"
    )
    return {
        "one int": ExtractCall(
            code("def run(ts, a):\n    return pd.Series(a + 1, name='F.out')\n"),
            "F",
            "one",
            one,
            OUT,
            (),
        ),
        "ten mixed": ExtractCall(
            code("def run(ts, *g):\n    return pd.Series(g[0] + 1, name='F.out')\n"),
            "F",
            "ten",
            mixed,
            OUT,
            (),
        ),
        "a lookup": ExtractCall(code(looking), "F", "look", one, OUT, ("D",)),
    }


async def look_up(asked: LookupRequest) -> LookupReply:
    rows = len(asked.keys)
    return LookupReply(
        pa.table({"v": pa.array(range(rows), pa.int64())}),
        (Field("v", Optional(Int())),),
        pa.array([True] * rows),
    )


def table_of(call: ExtractCall, rows: int) -> pa.Table:
    samples = {Int: 1, Float: 1.5, Str: "abc"}
    columns = {
        f.name: pa.array(
            [samples[type(f.dtype.of if isinstance(f.dtype, Optional) else f.dtype)]] * rows,
            arrow_type(f.dtype),
        )
        for f in call.inputs
    }
    return pa.table(
        {TS: pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", "UTC")), **columns}
    )


async def measure(socket: Path, calls: int) -> None:
    print(f"{'extractor':12} {'rows':>5} {'p50 ms':>8} {'p99 ms':>8}")
    async with Executors(socket) as executors:
        for name, call in subjects().items():
            for rows in (1, 100):
                table, took = table_of(call, rows), []
                for _ in range(calls + WARM_UP):
                    start = time.perf_counter()
                    await executors.run(call, table, callbacks=Callbacks(lookup=look_up))
                    took.append(time.perf_counter() - start)
                ordered = sorted(took[WARM_UP:])
                print(
                    f"{name:12} {rows:5} {ordered[calls // 2] * 1e3:8.2f} "
                    f"{ordered[calls * 99 // 100] * 1e3:8.2f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2000)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="fennel-ex-") as folder,
        running_host(Path(folder), executor_processes=1) as socket,
    ):
        uvloop.run(measure(socket, arguments.calls))


if __name__ == "__main__":
    main()
