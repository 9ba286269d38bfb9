"""Every kind of user code, written with the real client, run by real executors."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from fennel_core.executors.calls import (
    AssignCall,
    EachRowCall,
    ExecutorCall,
    ExtractCall,
    FilterCall,
    TransformCall,
)
from fennel_core.executors.client import (
    NO_CALLBACKS,
    Callbacks,
    Executors,
    LookupReply,
    LookupRequest,
)
from fennel_core.executors.errors import UserCodeFailed
from fennel_core.executors.internal_errors import LookupRefused
from fennel_core.executors.protocol import ROW, TS
from fennel_core.executors.results import failures_of
from fennel_core.vocab.dtypes import Field, Optional, arrow_type
from fennel_core.wire import operators
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.entities import PyFunc, SyncRequest
from tests.support.executors import written_by_the_client

AT = dt.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
EVENT = {
    "user": "ann",
    "amount": 3.5,
    "count": None,
    "price": Decimal("1.50"),
    "day": dt.date(2024, 1, 2),
    "tags": ["a", "bc"],
    "scores": [{"key": "k", "value": 4}],
    "place": {"x": 1, "label": None},
    "flag": True,
    "at": AT,
}


@pytest.fixture(scope="module")
def commit(tmp_path_factory):
    target = tmp_path_factory.mktemp("commit") / "request.binpb"
    return decode_sync_request(
        written_by_the_client(Path(__file__).parent / "definitions.py", target)
    )


@pytest.fixture
async def executors(executors_socket):
    async with Executors(executors_socket, time_limit_ms=10_000) as client:
        yield client


def fields_of(commit: SyncRequest, dataset: str) -> tuple[Field, ...]:
    return next(d for d in commit.datasets if d.name == dataset).schema.fields


def rows(fields: tuple[Field, ...], *values: dict) -> pa.Table:
    return pa.table(
        {f.name: pa.array([v[f.name] for v in values], arrow_type(f.dtype)) for f in fields}
    )


def events(commit: SyncRequest, *changes: dict) -> pa.Table:
    return rows(fields_of(commit, "Events"), *(EVENT | change for change in changes))


def pipeline_call(
    commit: SyncRequest, dataset: str, pipeline: str, column: str | None = None
) -> ExecutorCall:
    given = fields_of(commit, "Events")
    for operator in commit.operators:
        if (operator.dataset, operator.pipeline) != (dataset, pipeline):
            continue
        match operator.kind:
            case operators.Transform() as op:
                return TransformCall(
                    op.pycode, f"{dataset}.{pipeline}", given, fields_of(commit, dataset)
                )
            case operators.Filter() as op if column is None:
                return FilterCall(op.pycode, f"{dataset}.{pipeline}", given)
            case operators.Assign() as op if op.column == column:
                return AssignCall(
                    op.pycode, f"{dataset}.{pipeline}", given, Field(op.column, op.dtype)
                )
    raise LookupError(f"{dataset}.{pipeline} has no such user code")


def extract_call(commit: SyncRequest, name: str) -> ExtractCall:
    extractor = next(e for e in commit.extractors if e.name == name)
    types = {f.ref: f.dtype for f in commit.features}
    assert isinstance(extractor.kind, PyFunc)
    return ExtractCall(
        extractor.kind.pycode,
        extractor.featureset,
        extractor.name,
        tuple(Field(ref.fqn, types[ref]) for ref in extractor.inputs),
        tuple(Field(ref.fqn, types[ref]) for ref in extractor.output_refs),
        tuple(extractor.datasets),
    )


def feature_rows(call: ExtractCall, *values: tuple) -> pa.Table:
    columns = {
        f.name: pa.array([v[i] for v in values], arrow_type(f.dtype))
        for i, f in enumerate(call.inputs)
    }
    return pa.table({TS: pa.array([AT] * len(values), pa.timestamp("us", "UTC")), **columns})


async def test_a_transform_sees_the_dtypes_the_clients_test_server_hands_out(commit, executors):
    answer = await executors.run(pipeline_call(commit, "Seen", "by_type"), events(commit, {}))
    assert answer.column("seen")[0].as_py() == (
        "user=string|amount=Float64|count=Int64|price=decimal128(28, "
        "2)[pyarrow]|day=date32[day][pyarrow]|tags=object|scores=object|"
        "place=object|flag=boolean|at=datetime64[ns, UTC]|dict"
    )
    assert answer.column("at")[0].as_py() == AT


async def test_the_rows_of_a_transform_carry_the_number_of_their_input_row(commit, executors):
    answer = await executors.run(
        pipeline_call(commit, "Sorted", "sort"),
        events(commit, {"amount": 1.0}, {"amount": 3.0}, {"amount": 2.0}),
    )
    assert answer.column("amount").to_pylist() == [3.0, 2.0, 1.0]
    assert answer.column(ROW).to_pylist() == [1, 2, 0]


async def test_a_filter_names_the_rows_it_keeps(commit, executors):
    answer = await executors.run(
        pipeline_call(commit, "Assigned", "assign"),
        events(commit, {"amount": 1.0}, {"amount": 3.0}),
    )
    assert answer.to_pydict() == {ROW: [1]}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("total", [100, 107]),
        ("pair", [{"x": 3, "label": "ann"}] * 2),
        ("pairs", [[{"x": 1, "label": None}, {"x": 2, "label": None}]] * 2),
        ("table", [[{"key": "k", "value": 5}]] * 2),
        ("bounded", [0, 7]),
    ],
)
async def test_an_assigned_column_comes_back_in_the_platforms_layout(
    commit, executors, column, expected
):
    call = pipeline_call(commit, "Assigned", "assign", column)
    answer = await executors.run(call, events(commit, {}, {"count": 7}))
    assert answer.column(column).to_pylist() == expected
    assert answer.schema.field(column).type == arrow_type(call.column.dtype)


async def test_an_assigned_column_of_another_type_is_refused_with_the_clients_words(
    commit, executors
):
    with pytest.raises(
        UserCodeFailed,
        match=r"Error in assign node for column `half` for pipeline `Assigned\.assign`, "
        r"Field `half` is of type int",
    ):
        await executors.run(pipeline_call(commit, "Assigned", "assign", "half"), events(commit, {}))


async def test_an_assigned_value_out_of_bounds_is_refused(commit, executors):
    with pytest.raises(
        UserCodeFailed, match=r"Value 70 is out of bounds for between type, bounds are \[0, 10\]"
    ):
        await executors.run(
            pipeline_call(commit, "Assigned", "assign", "bounded"), events(commit, {"count": 70})
        )


async def test_secrets_reach_user_code_and_a_missing_one_is_the_clients_key_error(
    commit, executors
):
    call = pipeline_call(commit, "Seen", "by_secret")

    async def salt(name: str) -> str | None:
        return f"value of {name}"

    async def nothing(_: str) -> str | None:
        return None

    answer = await executors.run(call, events(commit, {}), callbacks=Callbacks(secret=salt))
    assert answer.column("seen").to_pylist() == ["value of salt"]
    with pytest.raises(UserCodeFailed, match="Secret : `salt` does not exist") as raised:
        await executors.run(call, events(commit, {}), callbacks=Callbacks(secret=nothing))
    assert "with_secret" in raised.value.traceback


def users_answering(commit: SyncRequest, ages: dict[str, int], asked: list[LookupRequest]):
    fields = fields_of(commit, "Users")

    async def lookup(question: LookupRequest) -> LookupReply:
        asked.append(question)
        keys = question.keys.column("user").to_pylist()
        table = pa.table(
            {
                "user": pa.array(keys, pa.large_string()),
                "age": pa.array([ages.get(k) for k in keys], pa.int64()),
                "home": pa.array(
                    [{"x": 1, "label": f"home of {k}"} if k in ages else None for k in keys],
                    arrow_type(fields[2].dtype),
                ),
                "at": pa.array(
                    [AT if k in ages else None for k in keys], pa.timestamp("us", "UTC")
                ),
            }
        )
        return LookupReply(table, fields, pa.array([k in ages for k in keys]))

    return Callbacks(lookup=lookup)


async def test_an_extractor_looks_a_dataset_up_through_the_callback(commit, executors):
    call, asked = extract_call(commit, "both"), []
    answer = await executors.run(
        call,
        feature_rows(call, ("ann",), ("bob",)),
        callbacks=users_answering(commit, {"ann": 30}, asked),
    )
    assert answer.to_pydict() == {"Ages.age": [31, None], "Ages.label": ["home of ann", "nowhere"]}
    assert (asked[0].dataset, asked[0].fields, asked[0].at.to_pylist()) == ("Users", (), [AT, AT])


async def test_an_extractor_may_not_look_up_what_it_does_not_declare(commit, executors):
    call, asked = replace(extract_call(commit, "both"), datasets=("Others",)), []
    with pytest.raises(UserCodeFailed) as raised:
        await executors.run(
            call, feature_rows(call, ("ann",)), callbacks=users_answering(commit, {}, asked)
        )
    assert str(raised.value) == (
        "Extractor `both` in `Ages` failed to run with error: Extractor `both` is "
        "not allowed to access dataset `Users`, "
        "enabled datasets are ['Others']. Use `depends_on` param in @extractor to "
        "specify dataset dependencies.. "
    )
    assert asked == []


async def test_a_name_the_client_did_not_send_is_not_defined(commit, executors):
    call = extract_call(commit, "undeclared")
    with pytest.raises(UserCodeFailed, match="name 'Users' is not defined"):
        await executors.run(call, feature_rows(call, ("ann",)))


async def test_a_refused_lookup_is_user_codes_error_and_a_broken_one_the_callers(commit, executors):
    call = extract_call(commit, "both")

    async def refuse(_: LookupRequest) -> LookupReply:
        raise LookupRefused("Please define an online index on dataset : Users")

    async def broken(_: LookupRequest) -> LookupReply:
        raise ConnectionError("the slot is gone")

    with pytest.raises(UserCodeFailed, match="Please define an online index"):
        await executors.run(call, feature_rows(call, ("ann",)), callbacks=Callbacks(lookup=refuse))
    with pytest.raises(ConnectionError, match="the slot is gone"):
        await executors.run(call, feature_rows(call, ("ann",)), callbacks=Callbacks(lookup=broken))


async def test_an_extractor_of_plain_inputs_gives_full_names(commit, executors):
    call = extract_call(commit, "add")
    answer = await executors.run(call, feature_rows(call, (41,), (None,)))
    assert answer.to_pydict() == {"Ages.older": [42, 1]}


async def test_an_extractor_reads_struct_inputs_as_mappings(commit, executors):
    call = extract_call(commit, "hidden")

    async def salt(_: str) -> str | None:
        return "!"

    answer = await executors.run(
        call, feature_rows(call, ({"x": 1, "label": "here"},)), callbacks=Callbacks(secret=salt)
    )
    assert answer.column("Ages.secret").to_pylist() == ["here!"]


async def test_each_row_alone_reports_the_rows_on_which_code_of_any_kind_fails(commit, executors):
    bounded = pipeline_call(commit, "Assigned", "assign", "bounded")
    outside = events(commit, {}, {"count": 70}, {"count": 7}, {"count": -1})
    (_, high), (row, low) = await failing(executors, EachRowCall(bounded), outside)
    assert row == 3
    assert "Value 70 is out of bounds" in str(high)
    assert "Value -1 is out of bounds" in str(low)

    kept = EachRowCall(pipeline_call(commit, "Assigned", "assign"))
    assert await failing(executors, kept, events(commit, {}, {"amount": 1.0})) == []

    async def nothing(_: str) -> str | None:
        return None

    seen = EachRowCall(pipeline_call(commit, "Seen", "by_secret"))
    raised = await failing(executors, seen, events(commit, {}, {}), Callbacks(secret=nothing))
    assert [number for number, _ in raised] == [0, 1]
    assert "with_secret" in raised[1][1].traceback

    text = EachRowCall(pipeline_call(commit, "Sorted", "unreadable"))
    ((row, error),) = await failing(executors, text, events(commit, {}, {"user": "bob"}))
    assert row == 1
    assert "ValueError: ?" in error.traceback

    older = extract_call(commit, "add")
    ages = feature_rows(older, (41,), (None,))
    assert await failing(executors, EachRowCall(older), ages) == []
    unknown = extract_call(commit, "undeclared")
    ((_, error),) = await failing(executors, EachRowCall(unknown), feature_rows(unknown, ("ann",)))
    assert "name 'Users' is not defined" in str(error)


async def failing(
    executors: Executors, call: EachRowCall, rows: pa.Table, callbacks: Callbacks = NO_CALLBACKS
) -> list[tuple[int, UserCodeFailed]]:
    return list(failures_of(call, await executors.run(call, rows, callbacks=callbacks)))


async def test_no_rows_give_no_rows(commit, executors):
    call = extract_call(commit, "add")
    assert (await executors.run(call, feature_rows(call))).num_rows == 0
    assert (
        await executors.run(pipeline_call(commit, "Sorted", "sort"), events(commit))
    ).num_rows == 0


async def test_a_sources_code_runs_on_payload_columns(commit, executors):
    source = next(s for s in commit.sources if s.dataset == "Events")
    preproc = dict(source.preproc)["amount"]
    fields = tuple(f for f in fields_of(commit, "Events") if f.name != "amount")
    table = (
        rows(fields, EVENT)
        .append_column("cents", pa.array([250]))
        .append_column("note", pa.array(['{"a": 1}'], pa.large_string()))
    )
    call = AssignCall(
        preproc.pycode,
        "Events",
        (*fields, *preproc.schema),
        Field("amount", fields_of(commit, "Events")[1].dtype),
        ("note",),
        False,
    )
    assert (await executors.run(call, table)).column("amount").to_pylist() == [2.5]
    where = FilterCall(source.where.pycode, "Events", fields_of(commit, "Events"))
    assert (await executors.run(where, events(commit, {}, {"amount": -1.0}))).column(
        ROW
    ).to_pylist() == [0]


def test_the_definitions_cover_optional_types(commit):
    assert isinstance(
        next(f for f in fields_of(commit, "Events") if f.name == "count").dtype, Optional
    )
