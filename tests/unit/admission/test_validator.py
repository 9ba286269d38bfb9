"""Admission without user code: preproc, where, cast, bounds and samples."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fennel_core.admission.payload import Payload, descend
from fennel_core.admission.validator import RowsRejected, Validator
from fennel_core.executors.client import NO_CALLBACKS
from fennel_core.vocab.dtypes import Field, Int, Optional, Timestamp
from fennel_core.vocab.ids import Micros
from fennel_core.wire import expr as e
from fennel_core.wire.connectors import Constant, EvalExpr, FromPayload, Sampling
from tests.support.ingest_world import KEYED, NoExecutors, binding, source

AT_MS = 1_700_000_000_000


VALIDATOR = Validator(NoExecutors(), NO_CALLBACKS)


def payload(**columns: list) -> Payload:
    return Payload(columns, np.arange(len(next(iter(columns.values())))))


async def ages(given: Payload, **changes: object) -> list[tuple[str, int]]:
    rows = await VALIDATOR.validate(binding(KEYED, of=source(**changes)), given)
    return list(zip(rows.frame["user"].to_list(), rows.frame["age"].to_list(), strict=True))


async def test_a_preproc_copies_a_payload_column_or_descends_into_it():
    given = payload(
        who=["a", "b"], data=[{"years": {"n": 7}}, {"years": {}}], age=[0, 0], at=[AT_MS] * 2
    )
    preproc = (("age", FromPayload("data[years][n]")), ("user", FromPayload("who")))
    with pytest.raises(RowsRejected, match="Null values found"):
        await ages(given, preproc=preproc)
    assert await ages(given.take(np.array([0])), preproc=preproc) == [("a", 7)]


async def test_a_preproc_of_an_unknown_column_is_rejected():
    with pytest.raises(
        RowsRejected,
        match="Error using pre_proc for dataset `Users`: Referenced column who not found "
        "in dataframe",
    ):
        await ages(payload(age=[1], at=[AT_MS]), preproc=(("user", FromPayload("who")),))


async def test_a_constant_is_the_same_for_every_row_and_a_small_time_is_not_guessed_a_unit():
    given = payload(user=["a"], age=[1])
    rows = await VALIDATOR.validate(
        binding(KEYED, of=source(preproc=(("at", Constant(5, Timestamp())),))), given
    )
    assert rows.frame["at"].to_physical().to_list() == [5]


async def test_an_expression_reads_extra_payload_columns():
    step = EvalExpr(
        e.Binary(e.BinaryOp.ADD, e.Ref("buggy"), e.Literal("1", Int())), (Field("buggy", Int()),)
    )
    assert await ages(payload(user=["a"], buggy=[6], at=[AT_MS]), preproc=(("age", step),)) == [
        ("a", 7)
    ]


async def test_where_sees_nulls_before_the_cast_forbids_them():
    fill = EvalExpr(
        e.FillNull(e.Ref("age"), e.Literal("-1", Int())), (Field("age", Optional(Int())),)
    )
    keep = EvalExpr(e.Binary(e.BinaryOp.NE, e.Ref("age"), e.Literal("-1", Int())), ())
    given = payload(user=["a", "b"], age=[None, 3], at=[AT_MS] * 2)
    assert await ages(given, preproc=(("age", fill),), where=keep) == [("b", 3)]


async def test_rows_keep_their_numbers_through_every_filter():
    keep = EvalExpr(e.Binary(e.BinaryOp.GT, e.Ref("age"), e.Literal("1", Int())), ())
    given = payload(
        user=["a", "b", "c", "d"], age=[1, 2, 3, 4], at=[AT_MS, AT_MS, AT_MS + 1000, AT_MS]
    )
    made = source(where=keep, until_us=Micros(AT_MS * 1000))
    rows = await VALIDATOR.validate(binding(KEYED, of=made), given)
    assert rows.numbers.tolist() == [1, 3]


async def test_bounds_are_inclusive():
    low, high = Micros(AT_MS * 1000), Micros((AT_MS + 2) * 1000)
    given = payload(
        user=list("abcd"), age=[1, 2, 3, 4], at=[AT_MS - 1, AT_MS, AT_MS + 2, AT_MS + 3]
    )
    assert await ages(given, since_us=low, until_us=high) == [("b", 2), ("c", 3)]


async def test_a_sample_keeps_about_its_share_and_a_key_whole_or_not_at_all():
    users = [f"u{i % 1000}" for i in range(4000)]
    given = payload(user=users, age=list(range(4000)), at=[AT_MS] * 4000)
    kept = await ages(given, sampling=Sampling(0.3, ("user",)))
    per_user = {user: sum(1 for u, _ in kept if u == user) for user, _ in kept}
    assert set(per_user.values()) == {4}
    assert 250 < len(per_user) < 350


async def test_for_other_branches_only_the_bad_rows_are_dead_lettered():
    given = payload(user=["a", "b", "c", "d"], age=[1, "x", 3, "y"], at=[AT_MS] * 4)
    good, dead = await VALIDATOR.validate_or_dead_letter(binding(), given)
    assert [r.numbers.tolist() for r in good] == [[0, 2]]
    assert [
        (d.payload.numbers.tolist(), 'Unable to parse string "x"' in d.reason) for d in dead
    ] == [([1, 3], True)]


async def test_a_missing_column_dead_letters_every_row():
    good, dead = await VALIDATOR.validate_or_dead_letter(
        binding(), payload(user=["a", "b"], at=[AT_MS] * 2)
    )
    assert good == []
    assert sorted(n for d in dead for n in d.payload.numbers.tolist()) == [0, 1]
    assert "Field `age` not found in dataframe while logging to dataset" in dead[0].reason


MAYBE = Field("extra", Optional(Int()))
ADDED = EvalExpr(
    e.Binary(
        e.BinaryOp.ADD, e.FillNull(e.Ref("extra"), e.Literal("0", Int())), e.Literal("1", Int())
    ),
    (MAYBE,),
)
KEEP_UNKNOWN = EvalExpr(e.IsNull(e.Ref("extra")), (MAYBE,))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"preproc": (("age", ADDED),)}, [1, 1]),
        ({"preproc": (("age", replace(ADDED, schema=(Field("extra", Int()),))),)}, None),
        ({"where": KEEP_UNKNOWN}, [5, 6]),
        ({"where": replace(KEEP_UNKNOWN, schema=(Field("extra", Int()),))}, None),
    ],
)
async def test_an_optional_field_that_only_code_reads_may_be_missing_and_a_required_one_may_not(
    changes: dict[str, Any], found: list[int] | None
):
    made = binding(KEYED, of=source(**changes))
    columns = payload(user=["a", "b"], age=[5, 6], at=[AT_MS] * 2)
    good, dead = await VALIDATOR.validate_or_dead_letter(made, columns)
    assert [age for rows in good for age in rows.frame["age"]] == (found or [])
    lost = sorted(n for d in dead for n in d.payload.numbers.tolist())
    assert lost == ([] if found else [0, 1])
    assert all("`extra` is read by the source's code, but not found" in d.reason for d in dead)


@pytest.mark.parametrize("path", ["data", "data[years]", "age"])
async def test_a_path_to_nothing_is_null_in_an_optional_field_only(path: str):
    preproc = (("age", FromPayload(path)),)
    columns = payload(user=["a"], at=[AT_MS])
    _, dead = await VALIDATOR.validate_or_dead_letter(
        binding(KEYED, of=source(preproc=preproc)), columns
    )
    assert [f"column {path} not found" in letter.reason for letter in dead] == [True]
    schema = replace(KEYED, values=(Field("age", Optional(Int())),))
    optional = binding(schema, of=source(preproc=preproc))
    good, dead = await VALIDATOR.validate_or_dead_letter(optional, columns)
    assert ([rows.frame["age"].to_list() for rows in good], dead) == ([[None]], [])


def test_a_path_is_a_column_first():
    assert descend(payload(**{"a[b]": [1]}), "a[b]") == [1]
    assert descend(payload(a=[{"b": {"c": 1}}, {"b": 2}, 3]), "a[b][c]") == [1, None, None]
    assert descend(payload(a=[1]), "z") is None
