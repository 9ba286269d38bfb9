"""Law: a plan run by the query service equals computing every feature separately.

The oracle uses no plans, levels, batches or columns: it computes one feature of one row by
recursion.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.blueprints.spec import DatasetView
from fennel_core.executors.calls import ExecutorCall, ExtractCall
from fennel_core.executors.client import NO_CALLBACKS, Callbacks
from fennel_core.plans.absent_keys import NULL
from fennel_core.plans.feature_index import FeatureIndex
from fennel_core.plans.planner import make_plan
from fennel_core.query.columns import QueryColumn
from fennel_core.query.execution import ProgramRunner, QueryRequest
from fennel_core.query.lookups import Lookups
from fennel_core.query.owners import Owners
from fennel_core.query.program import ServedDataset, bind
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.vocab.dtypes import Int, List, Optional
from fennel_core.vocab.ids import JobId, TopicName, WorkspaceId
from fennel_core.wire import entities as wire
from fennel_core.wire.expr import Binary, BinaryOp, Ref
from tests.support.fake_slots import FakeRegistry, FakeSlot, nothing_hidden
from tests.support.featuresets import CODE, dataset, extractor, list_lookup, lookup, request

OPTIONAL = Optional(Int())
STORE = {n: (n * 7) % 5 if n % 3 else None for n in range(0, 40, 2)}
"""Key to value; odd keys and large ones are missing, some values are null."""
DATASET = dataset("D", {"k": OPTIONAL}, {"v": OPTIONAL})
GIVEN = ("A.g0", "A.g1")
NOW = 10**15

Row = dict[str, int | None]


# --- random graphs --------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> list[wire.Extractor]:
    """Extractors of up to twelve features, each reading earlier ones; some provide two features."""
    known = list(GIVEN)
    extractors: list[wire.Extractor] = []
    for number in range(draw(st.integers(1, 12))):
        name = f"A.f{number}"
        kind = draw(st.sampled_from(["lookup", "lookup", "alias", "expr", "python", "python2"]))
        one, other = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        default = draw(st.sampled_from([None, "3"]))
        match kind:
            case "lookup":
                extractors.append(extractor(name, lookup("D", "v", OPTIONAL, default), one))
            case "alias":
                extractors.append(extractor(name, wire.Alias(default), one))
            case "expr":
                body = Binary(BinaryOp.ADD, Ref(one.split(".")[1]), Ref(other.split(".")[1]))
                extractors.append(
                    extractor(name, wire.ExprExtractor(body), *dict.fromkeys((one, other)))
                )
            case "python":
                extractors.append(extractor(name, wire.PyFunc(CODE), one, other))
            case _:
                extractors.append(
                    extractor(name, wire.PyFunc(CODE), one, other, also=(f"f{number}b",))
                )
                known.append(f"{name}b")
        known.append(name)
    return extractors


def python_code(values: Sequence[int | None], output: int) -> int | None:
    """What the fake executor computes for output number `output`."""
    return None if None in values else (sum(v for v in values if v is not None) * 2 + output) % 50


# --- the oracle -----------------------------------------------------------------------------------


def feature(name: str, row: Row, providers: Mapping[str, wire.Extractor]) -> int | None:
    if name in row:
        return row[name]
    step = providers[name]
    inputs = [feature(ref.fqn, row, providers) for ref in step.inputs]
    match step.kind:
        case wire.Lookup(default_json=default):
            found = STORE.get(inputs[0]) if inputs[0] is not None else None
            return int(default) if found is None and default is not None else found
        case wire.Alias(default):
            return int(default) if inputs[0] is None and default is not None else inputs[0]
        case wire.ExprExtractor(Binary(left=Ref(a), right=Ref(b))):
            by_name = dict(zip((ref.name for ref in step.inputs), inputs, strict=True))
            x, y = by_name[a], by_name[b]
            return None if x is None or y is None else x + y
        case _:
            return python_code(inputs, [ref.fqn for ref in step.output_refs].index(name))


# --- the flow over fakes --------------------------------------------------------------------------


class FakeExecutors:
    async def run(
        self, call: ExecutorCall, rows: pa.Table, *, callbacks: Callbacks = NO_CALLBACKS
    ) -> pa.Table:
        assert isinstance(call, ExtractCall)
        assert rows.column_names == ["__ts", *(field.name for field in call.inputs)]
        inputs = list(zip(*(column.to_pylist() for column in rows.columns[1:]), strict=True))
        return pa.table(
            {
                out.name: pa.array([python_code(v, n) for v in inputs], pa.int64())
                for n, out in enumerate(call.outputs)
            }
        )


def tables() -> dict[object, ServedDataset]:
    view = DatasetView(
        DATASET.name,
        1,
        DATASET.schema,
        TopicName("t"),
        JobId("job"),
        online=True,
        offline=True,
        erase_keys=(),
        is_source=True,
    )
    return {DATASET.name: ServedDataset(WorkspaceId("w"), view, 4, (NULL,))}


async def run_flow(
    steps: list[wire.Extractor], rows: list[Row], outputs: tuple[str, ...]
) -> dict[str, list[object]]:
    names = [*GIVEN, *dict.fromkeys(ref.fqn for step in steps for ref in step.output_refs)]
    index = FeatureIndex.of(request(dict.fromkeys(names, OPTIONAL), steps, [DATASET]))
    inputs = tuple(rows[0])
    program = bind(make_plan(index, inputs, outputs), tables())  # type: ignore[arg-type]  # names are names
    with tempfile.TemporaryDirectory() as folder:
        async with FakeSlot(Path(folder) / "s") as slot:
            for key, value in STORE.items():
                slot.put("job", [key], 1, [value])
            registry, slots = FakeRegistry(), SlotConnections()
            registry.own(slot, "job", 4)
            flow = ProgramRunner(
                Lookups(slots, Owners(registry), 2.0, nothing_hidden), FakeExecutors()
            )  # type: ignore[arg-type]  # has the one method
            given_columns = {
                name: QueryColumn(OPTIONAL, [row[name] for row in rows]) for name in inputs
            }
            columns = await flow.run(
                program, QueryRequest(given_columns, len(rows), NOW), NO_CALLBACKS
            )
            await slots.close()
    return {
        name: list(column.values)
        for (name, _, _), column in zip(program.outputs, columns, strict=True)
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_plan_equals_computing_each_feature_separately(data: st.DataObject) -> None:
    steps = data.draw(graphs())
    providers = {ref.fqn: step for step in steps for ref in step.output_refs}
    computed = list(providers)
    outputs = tuple(
        data.draw(
            st.lists(st.sampled_from([*computed, *GIVEN]), min_size=1, max_size=6, unique=True)
        )
    )
    also_given = tuple(data.draw(st.lists(st.sampled_from(computed), max_size=2, unique=True)))
    value = st.one_of(st.none(), st.integers(0, 40))
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries(dict.fromkeys((*GIVEN, *also_given), value)),
            min_size=1,
            max_size=20,
        )
    )

    result = asyncio.run(run_flow(steps, rows, outputs))

    assert result == {name: [feature(name, row, providers) for row in rows] for name in outputs}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 20), max_size=5), min_size=1, max_size=10),
    st.sampled_from([None, "3"]),
)
def test_a_list_lookup_equals_one_lookup_per_element(
    keys: list[list[int]], default: str | None
) -> None:
    steps = [extractor("L.out", list_lookup("D", "v", OPTIONAL, default), "L.keys")]
    index = FeatureIndex.of(
        request({"L.keys": List(OPTIONAL), "L.out": List(OPTIONAL)}, steps, [DATASET])
    )
    program = bind(make_plan(index, ("L.keys",), ("L.out",)), tables())  # type: ignore[arg-type]  # names are names

    async def run() -> list[object]:
        with tempfile.TemporaryDirectory() as folder:
            async with FakeSlot(Path(folder) / "s") as slot:
                for key, value in STORE.items():
                    slot.put("job", [key], 1, [value])
                registry, slots = FakeRegistry(), SlotConnections()
                registry.own(slot, "job", 4)
                flow = ProgramRunner(
                    Lookups(slots, Owners(registry), 2.0, nothing_hidden), FakeExecutors()
                )  # type: ignore[arg-type]  # has the one method
                query = QueryRequest({"L.keys": QueryColumn(List(OPTIONAL), keys)}, len(keys), NOW)
                [column] = await flow.run(program, query, NO_CALLBACKS)
                await slots.close()
                return list(column.values)

    fill = None if default is None else int(default)
    assert asyncio.run(run()) == [
        [fill if STORE.get(k) is None else STORE[k] for k in row] for row in keys
    ]


def test_an_input_feature_is_not_overwritten_by_its_extractor() -> None:
    steps = [extractor("A.f", wire.PyFunc(CODE), "A.g0", also=("fb",))]
    result = asyncio.run(run_flow(steps, [{"A.g0": 1, "A.f": 40}], ("A.f", "A.fb")))
    assert result == {"A.f": [40], "A.fb": [python_code([1], 1)]}
