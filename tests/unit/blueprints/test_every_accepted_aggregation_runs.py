"""Every aggregation, window and kind of input is refused by validation with a reason, or its jobs
are built and compute rows: no accepted definition parks a job.

`REFRESH_GOLDEN=1 pytest` of this file rewrites the table of what is accepted; read the diff before
committing it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import polars as pl
import pytest

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.job_check import jobs_that_cannot_be_built
from fennel_core.blueprints.logical import LogicalJob
from fennel_core.definition.validation import dataset_inputs
from fennel_core.graph.aggregation_schemas import WINDOW_TYPE, spec_dtype
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.errors import SchemaMismatch
from fennel_core.graph.passes import validate
from fennel_core.operators.build import as_lookup_step, as_watermark_step, build
from fennel_core.operators.spec import AggregateSpec, WindowsSpec
from fennel_core.vocab.dtypes import Field, Int, Optional, Str, Timestamp
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as o
from fennel_core.wire.connectors import Cdc
from fennel_core.wire.entities import Metadata, Pipeline
from tests.support.commit_graphs import TESTS
from tests.support.compiler_inputs import code, dataset, webhook
from tests.support.histories import Change, History, as_frame, run

SECOND = 1_000_000
META = Metadata("o@x", "", (), deprecated=False, deleted=False)
VALUES = (
    Field("user", Str()),
    Field("v", Int()),
    Field("maybe", Optional(Int())),
    Field("paid", Timestamp()),
)
INPUTS = {
    "stream": Schema((), (Field("id", Int()), *VALUES), "at"),
    "table": Schema((Field("id", Int()),), VALUES, "at"),
}
WINDOWS = {
    "Continuous(forever)": o.Forever(),
    "Continuous": o.Sliding(60 * SECOND),
    "Tumbling": o.Tumbling(60 * SECOND, 0),
    "Tumbling(lookback)": o.Tumbling(60 * SECOND, 5 * SECOND),
    "Hopping": o.Hopping(60 * SECOND, 20 * SECOND, 0),
    "Hopping(lookback)": o.Hopping(60 * SECOND, 20 * SECOND, 5 * SECOND),
    "Hopping(forever)": o.ForeverHopping(60 * SECOND, 0),
    "Session": o.Session(60 * SECOND),
}


def aggregations(window: o.Window) -> list[o.Spec]:
    return [
        o.Count("count", window, None, False, False, False),
        o.Count("count_unique", window, "user", True, True, False),
        o.Count("count_some", window, "maybe", False, False, True),
        o.Sum("sum", window, "v"),
        o.Average("average", window, "v", 0.0),
        o.Min("min", window, "maybe", None),
        o.Max("max", window, "v", 1.0),
        o.Stddev("stddev", window, "maybe", -1.0),
        o.Quantile("quantile", window, "v", 0.5, None, True),
        o.Distinct("distinct", window, "maybe", True),
        o.LastK("last_k", window, "v", 2, True, False),
        o.FirstK("first_k", window, "maybe", 2, False, True),
        o.ExpDecay("exp_decay", window, "v", 10 * SECOND),
    ]


@dataclass(frozen=True)
class Case:
    """One aggregation. `grouped`: the window is that of `groupby`, not of the aggregation."""

    input: str
    grouped: bool
    window: str
    along: bool
    emit: o.Emit
    spec: o.Spec

    @property
    def kind(self) -> o.Aggregate | o.WindowOp:
        if self.grouped:
            window = WINDOWS[self.window]
            return o.WindowOp("In", window, ("user",), "window", (self.spec,), self.emit, True)
        along = "paid" if self.along else None
        return o.Aggregate("In", ("user",), (self.spec,), along, self.emit)

    @property
    def row(self) -> str:
        """Return the row of the golden table."""
        place = "groupby window " if self.grouped else ""
        along = " along" if self.along else ""
        return f"{self.input:6} {place}{self.window}{along} emit={self.emit.value}"


def cases() -> Iterator[Case]:
    for input_, window, along, emit in product(INPUTS, WINDOWS, (False, True), o.Emit):
        for spec in aggregations(WINDOWS[window]):
            yield Case(input_, False, window, along, emit, spec)
    for input_, window, emit in product(INPUTS, WINDOWS, o.Emit):
        for spec in aggregations(WINDOWS[window]):
            yield Case(input_, True, window, False, emit, spec)


def graph_of(case: Case) -> Graph:
    source, kind = INPUTS[case.input], case.kind
    try:
        dtype = spec_dtype(case.spec, source)
    except SchemaMismatch as error:  # pragma: no cover - the columns above fit
        pytest.fail(str(error))
    keys = (Field("user", Str()), *([Field("window", WINDOW_TYPE)] if case.grouped else []))
    output = Schema(keys, (Field(case.spec.name, dtype),), "at")
    name = DatasetName("Out")
    return Graph(
        datasets=(dataset("In", source), replace(dataset("Out", output), is_source=False)),
        pipelines=(Pipeline("p", name, 1, (DatasetName("In"),), code("def p(): ..."), META),),
        operators=(
            o.Operator("In", name, 1, "p", False, o.DatasetRef(DatasetName("In"))),
            o.Operator("root", name, 1, "p", True, kind),
        ),
        sources=(
            webhook(
                "In",
                dataset=DatasetName("In"),
                cdc=Cdc.UPSERT if source.keyed else Cdc.APPEND,
            ),
        ),
    )


def rows_of(schema: Schema) -> list[dict[str, object]]:
    """Return a few rows of one user, with nulls where a column may be null."""
    return [
        {
            "id": n,
            "user": "a",
            "v": n,
            "maybe": None if n % 2 else n,
            "paid": n * 30 * SECOND,
            schema.timestamp: n * 25 * SECOND,
            "__valid_to": None if n == 4 else (n + 1) * 25 * SECOND,
            "__pos": b"\x01" + n.to_bytes(13, "big"),
            "__tombstone": False,
        }
        for n in range(5)
    ]


def computes(job: LogicalJob) -> bool:
    """Run the step over a few rows, and look the user up where it serves lookups; return whether it
    has a result.
    """
    assert isinstance(job.step, AggregateSpec | WindowsSpec)
    step, schema = build(job.step), job.step.input
    rows = rows_of(schema)
    history = History(
        [[Change(0, 1, row) for row in rows[:3]], [Change(0, 1, row) for row in rows[3:]]]
    )
    state, emitted = run(step, history, schema, canonical=False)
    retracted = step.apply(state, 0, as_frame(schema, [Change(0, -1, rows[4])]))
    assert retracted.puts or retracted.emits
    closing = as_watermark_step(step)
    if closing is not None:
        emitted += [e.frame for e in closing.advance(state, 10_000 * SECOND).emits]
    reader = as_lookup_step(step)
    if reader is None:
        return sum(frame.height for frame in emitted) > 0
    keys = key_bytes(pl.DataFrame({"user": ["a"]}), ["user"])
    return reader.lookup(state, keys, [100 * SECOND]) != [None]


def outcome(case: Case) -> str:
    """Return `runs`, or the codes with which validation refuses the case."""
    graph = graph_of(case)
    problems = validate(graph, None)
    if problems:
        assert all(len(p.text) > 20 and "Out" in p.text for p in problems), problems
        return " ".join(sorted({p.code for p in problems}))
    compiled = compile_datasets(dataset_inputs(graph), 1)
    assert list(jobs_that_cannot_be_built(compiled)) == [], case
    steps = [job for job in compiled.jobs if isinstance(job.step, AggregateSpec | WindowsSpec)]
    (job,) = steps
    assert computes(job), case
    return "runs"


def test_every_aggregation_is_refused_by_name_or_computes_rows() -> None:
    table: dict[str, dict[str, list[str]]] = {}
    for case in cases():
        table.setdefault(case.row, {}).setdefault(outcome(case), []).append(case.spec.name)
    lines = []
    for row, outcomes in table.items():
        if len(outcomes) == 1:
            lines.append(f"{row}: {next(iter(outcomes))}")
        else:
            parts = [
                f"{found} ({len(names)} others)" if len(names) > 3 else f"{found} {names}"
                for found, names in sorted(outcomes.items(), key=lambda item: len(item[1]))
            ]
            lines.append(f"{row}: {', '.join(parts)}")
    text = "\n".join(lines) + "\n"
    golden = TESTS / "golden" / "graph" / "aggregations.txt"
    if os.environ.get("REFRESH_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
