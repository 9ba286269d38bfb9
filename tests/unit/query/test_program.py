"""Programs: defaults of features and aggregations, and expressions evaluated together."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fennel_core.executors.client import NO_CALLBACKS, Executors, LookupRequest
from fennel_core.executors.internal_errors import LookupRefused
from fennel_core.plans.absent_keys import NULL, AbsentValue
from fennel_core.plans.feature_index import FeatureIndex
from fennel_core.plans.planner import make_plan
from fennel_core.query.bound_expressions import BoundExpressions, group_expressions
from fennel_core.query.columns import QueryColumn
from fennel_core.query.datasets import ExtractorLookups, NotLaterThan
from fennel_core.query.errors import LookupRejected
from fennel_core.query.execution import ProgramRunner, QueryRequest
from fennel_core.query.lookups import Lookups, ReadOutcome
from fennel_core.query.owners import Owners
from fennel_core.query.program import ServedDataset, bind
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.vocab.dtypes import Dtype, Float, Int, Optional, Str, Timestamp
from fennel_core.wire import entities as wire
from fennel_core.wire.expr import Binary, BinaryOp, Ref
from tests.support.fake_slots import FakeRegistry, FakeSlot, nothing_hidden
from tests.support.featuresets import USERS, dataset, extractor, lookup, request
from tests.support.query_world import PARTITIONS, WORKSPACE, table_view

TOTALS = dataset("Totals", {"uid": Int()}, {"count": Int(), "mean": Float()})


async def absent_value(folder: Path, field: str, dtype: Dtype, default: str | None) -> object:
    """Return the value of a feature that looks `field` up for a key that does not exist."""
    steps = [extractor("F.out", lookup("Totals", field, dtype, default), "F.uid")]
    index = FeatureIndex.of(request({"F.uid": Int(), "F.out": dtype}, steps, [TOTALS]))
    table = ServedDataset(
        WORKSPACE,
        table_view(TOTALS),
        PARTITIONS,
        (AbsentValue(0, declared=False), AbsentValue(-1.0, declared=True)),
    )
    program = bind(make_plan(index, ("F.uid",), ("F.out",)), {TOTALS.name: table})
    async with FakeSlot(folder / "s") as slot:
        registry, slots = FakeRegistry(), SlotConnections()
        registry.own(slot, "job-Totals", PARTITIONS)
        flow = ProgramRunner(
            Lookups(slots, Owners(registry), 1.0, nothing_hidden),
            Executors(folder / "none", time_limit_ms=10_000),
        )
        [column] = await flow.run(
            program, QueryRequest({"F.uid": QueryColumn(Int(), [5])}, 1, 1), NO_CALLBACKS
        )
        await slots.close()
        return column.values[0]


@pytest.mark.parametrize(
    ("field", "dtype", "default", "value"),
    [
        ("count", Optional(Int()), None, 0),
        ("count", Int(), "-5", -5),
        ("mean", Optional(Float()), None, -1.0),
        ("mean", Float(), "9.0", -1.0),
    ],
)
async def test_a_features_default_gives_way_only_to_an_aggregations_own(
    tmp_path: Path, field: str, dtype: Dtype, default: str | None, value: object
) -> None:
    assert await absent_value(tmp_path, field, dtype, default) == value


def test_a_feature_cannot_look_up_what_has_no_online_index() -> None:
    steps = [extractor("F.out", lookup("Totals", "count"), "F.uid")]
    index = FeatureIndex.of(request({"F.uid": Int(), "F.out": Int()}, steps, [TOTALS]))
    table = ServedDataset(WORKSPACE, table_view(TOTALS, online=False), PARTITIONS, (NULL, NULL))
    with pytest.raises(LookupRejected, match="Please define an online index on dataset : Totals"):
        bind(make_plan(index, ("F.uid",), ("F.out",)), {TOTALS.name: table})


def test_expressions_that_do_not_read_one_another_are_one_group() -> None:
    def plus(a: str, b: str) -> wire.ExprExtractor:
        return wire.ExprExtractor(Binary(BinaryOp.ADD, Ref(a), Ref(b)))

    steps = [
        extractor("F.b", plus("a", "a"), "F.a"),
        extractor("F.c", plus("b", "a"), "F.b", "F.a"),
        extractor("F.d", wire.Alias(None), "F.b"),
        extractor("F.e", plus("a", "a"), "F.a"),
        extractor("F.f", plus("d", "e"), "F.d", "F.e"),
    ]
    index = FeatureIndex.of(
        request(dict.fromkeys(("F.a", "F.b", "F.c", "F.d", "F.e", "F.f"), Int()), steps)
    )
    plan = make_plan(index, ("F.a",), ("F.c", "F.f"))
    [level] = plan.levels
    groups = [
        [step.output.ref.name for step in group]
        if isinstance(group, tuple)
        else group.output.ref.name
        for group in group_expressions(level.local)
    ]
    assert groups == [["b", "e"], "d", ["c", "f"]]
    program = bind(plan, {})
    registers = [QueryColumn(Int(), [1, 2])] * program.registers
    for step in program.levels[0].local:
        if isinstance(step, BoundExpressions):
            step.run(registers, 2, 0)
        else:
            registers[step.out] = registers[step.source]
    assert [list(registers[place].values) for _, _, place in program.outputs] == [[3, 6], [4, 8]]


# --- lookups from inside user code ----------------------------------------------------------------


class Inside:
    """`Dataset.lookup` of user code during a query at time 100 (microseconds)."""

    def __init__(self, slot: FakeSlot) -> None:
        registry, self.slots = FakeRegistry(), SlotConnections()
        registry.own(slot, "job-Users", PARTITIONS)
        lookups = Lookups(self.slots, Owners(registry), 1.0, nothing_hidden)
        self.answer = ExtractorLookups(
            lookups,
            {USERS.name: ServedDataset(WORKSPACE, table_view(USERS), PARTITIONS, (NULL, NULL))},
            NotLaterThan(100),
            ReadOutcome(),
        )


def asked(uids: list[object], at: list[int], *fields: str, name: str = "Users") -> LookupRequest:
    return LookupRequest(
        name,
        fields,
        pa.table({"uid": uids}),
        pa.chunked_array([pa.array(at, pa.timestamp("us", "UTC"))]),
    )


async def test_user_code_gets_typed_columns_and_found(tmp_path: Path) -> None:
    async with FakeSlot(tmp_path / "s") as slot:
        inside = Inside(slot)
        slot.put("job-Users", [1], 7, [30, "a"])
        found = await inside.answer(asked([1.0, 2.0], [100, 100]))
        assert found.table.to_pydict()["age"] == [30, None]
        assert found.table.column_names == ["uid", "age", "name", "ts"]
        assert found.table.schema.field("name").type == pa.large_string()
        assert [f.dtype for f in found.fields] == [
            Int(),
            Optional(Int()),
            Optional(Str()),
            Optional(Timestamp()),
        ]
        assert found.found.to_pylist() == [True, False]
        await inside.slots.close()


async def test_user_code_sees_the_past_it_asks_for_and_never_the_future(tmp_path: Path) -> None:
    async with FakeSlot(tmp_path / "s") as slot:
        inside = Inside(slot)
        for at in (10, 50, 500):
            slot.put("job-Users", [1], at, [at, "a"])
        found = await inside.answer(asked([1, 1, 1], [20, 100, 900], "age"))
        assert found.table.to_pydict() == {"age": [10, 50, 50]}
        await inside.slots.close()


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (asked([1], [1], name="Nobody"), "Dataset `Nobody` not found, please ensure it is synced."),
        (asked([1], [1], "zip"), "Field: zip not in dataset"),
        (asked(["x"], [1]), "conversion"),
    ],
)
async def test_an_invalid_lookup_of_user_code_is_refused_with_the_reason(
    tmp_path: Path, question: LookupRequest, text: str
) -> None:
    async with FakeSlot(tmp_path / "s") as slot:
        inside = Inside(slot)
        with pytest.raises(LookupRefused, match=text):
            await inside.answer(question)
