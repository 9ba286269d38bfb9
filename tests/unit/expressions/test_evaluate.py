"""Running expressions over frames: columns added, failing rows reported."""

from datetime import UTC, datetime

import polars as pl
import pytest

from fennel_core.expressions.compiler import Compiler
from fennel_core.expressions.errors import NULL_IN_NON_OPTIONAL, EvaluationFailed, InvalidExpression
from fennel_core.expressions.evaluate import Evaluation, compile_columns
from fennel_core.expressions.scope import NameScope
from fennel_core.expressions.type_lattice import polars_type
from fennel_core.vocab.dtypes import (
    Bool,
    Dtype,
    Field,
    Float,
    Int,
    List,
    Map,
    Optional,
    Str,
    Struct,
    Timestamp,
)
from fennel_core.wire import expr as e
from fennel_core.wire.expr import BinaryOp, MathUnary, StringUnary

POINT = Struct("Point", (Field("x", Int()), Field("y", Optional(Str()))))


def frame(schema: dict[str, Dtype], **columns: list[object]) -> pl.DataFrame:
    return pl.DataFrame(
        [pl.Series(name, columns[name], dtype=polars_type(dtype)) for name, dtype in schema.items()]
    )


def attempt(
    rows: pl.DataFrame, exprs: dict[str, tuple[e.Expr, Dtype]], schema: dict[str, Dtype]
) -> Evaluation:
    return compile_columns(exprs, schema).attempt(rows)


def evaluate(
    rows: pl.DataFrame,
    exprs: dict[str, tuple[e.Expr, Dtype]],
    schema: dict[str, Dtype],
    now: pl.Expr | None = None,
) -> pl.DataFrame:
    return compile_columns(exprs, schema, now=now).evaluate(rows)


def number(value: int | float) -> e.Literal:
    return e.Literal(str(value), Int() if isinstance(value, int) else Float())


def text(value: str) -> e.Literal:
    return e.Literal(f'"{value}"', Str())


def binary(left: e.Expr, op: BinaryOp, right: e.Expr) -> e.Binary:
    return e.Binary(op, left, right)


def parsed(column: str, dtype: Dtype) -> e.Expr:
    return e.StringFn(e.Ref(column), e.JsonDecode(dtype))


def read_date(column: str) -> e.Expr:
    return e.StringFn(e.Ref(column), e.Strptime("%Y-%m-%d", "UTC"))


def test_columns_are_added_and_replaced_from_the_input_frame() -> None:
    schema = {"a": Int(), "b": Int()}
    rows = frame(schema, a=[1, 2], b=[10, 20])
    exprs = {"a": (binary(e.Ref("a"), BinaryOp.ADD, e.Ref("b")), Int()), "c": (e.Ref("a"), Float())}
    result = evaluate(rows, exprs, schema)
    assert result.to_dict(as_series=False) == {"a": [11, 22], "b": [10, 20], "c": [1.0, 2.0]}
    assert result.schema == pl.Schema({"a": pl.Int64, "b": pl.Int64, "c": pl.Float64})


def test_an_empty_frame_gets_typed_columns() -> None:
    schema = {"s": Str()}
    result = evaluate(
        frame(schema, s=[]), {"p": (parsed("s", POINT), POINT), "n": (number(1), Int())}, schema
    )
    assert result.schema == pl.Schema(
        {"s": pl.String, "p": pl.Struct({"x": pl.Int64, "y": pl.String}), "n": pl.Int64}
    )
    assert result.height == 0


def test_a_constant_has_one_value_per_row() -> None:
    schema = {"a": Int()}
    sevens = e.Repeat(number(7), number(2))
    result = evaluate(frame(schema, a=[1, 2, 3]), {"c": (sevens, List(Int()))}, schema)
    assert result["c"].to_list() == [[7, 7]] * 3


def test_the_error_names_column_row_and_value_and_has_the_mask() -> None:
    schema = {"s": Str()}
    rows = frame(schema, s=["2024-01-01", "soon", "2024-02-30"])
    with pytest.raises(EvaluationFailed) as caught:
        evaluate(rows, {"day": (read_date("s"), Timestamp())}, schema)
    error = caught.value
    assert (error.failure.column, error.failure.row, error.failure.value, error.failure.code) == (
        "day",
        1,
        "soon",
        "bad-datetime",
    )
    assert error.failed.to_list() == [False, True, True]
    assert "column `day`, row 1" in str(error)
    assert "`soon`" in str(error)
    assert "1 more of 3 rows" in str(error)


def test_failing_rows_do_not_affect_the_others() -> None:
    schema = {"s": Str(), "n": Int()}
    rows = frame(schema, s=['{"x":1}', "{", '{"x":3,"y":"z"}', '{"x":"no"}'], n=[1, 0, 0, 2])
    exprs = {
        "p": (parsed("s", POINT), POINT),
        "q": (binary(number(6), BinaryOp.FLOOR_DIV, e.Ref("n")), Int()),
    }
    evaluation = attempt(rows, exprs, schema)
    assert evaluation.failed.to_list() == [False, True, True, True]
    assert [(f.row, f.column, f.code) for f in evaluation.failures] == [
        (1, "p", "bad-json"),
        (2, "q", "null-value"),
        (3, "p", "bad-json"),
    ]
    assert evaluation.frame.columns == ["s", "n", "p", "q"]
    assert evaluation.frame.filter(~evaluation.failed).to_dicts() == [
        {"s": '{"x":1}', "n": 1, "p": {"x": 1, "y": None}, "q": 6}
    ]


def test_a_null_in_a_non_optional_column_fails_with_the_clients_text() -> None:
    schema = {"a": Int(), "b": Int()}
    exprs = {"c": (binary(e.Ref("a"), BinaryOp.MOD, e.Ref("b")), Int())}
    with pytest.raises(EvaluationFailed, match=NULL_IN_NON_OPTIONAL):
        evaluate(frame(schema, a=[5], b=[0]), exprs, schema)
    optional = {"c": (binary(e.Ref("a"), BinaryOp.MOD, e.Ref("b")), Optional(Int()))}
    assert evaluate(frame(schema, a=[5], b=[0]), optional, schema)["c"].to_list() == [None]


def test_nan_is_null_in_inputs_and_results() -> None:
    schema = {"f": Optional(Float()), "g": Float()}
    rows = frame(schema, f=[float("nan"), 1.0], g=[0.0, 0.0])
    quotient = binary(e.Ref("g"), BinaryOp.DIV, e.Ref("g"))
    exprs = {
        "isnull": (e.IsNull(e.Ref("f")), Bool()),
        "quotient": (quotient, Optional(Float())),
        "is_nan": (e.MathFn(quotient, MathUnary.IS_NAN), Bool()),
    }
    result = evaluate(rows, exprs, schema)
    assert result["isnull"].to_list() == [True, False]
    assert result["quotient"].to_list() == [None, None]
    assert result["is_nan"].to_list() == [True, True]
    with pytest.raises(EvaluationFailed, match=NULL_IN_NON_OPTIONAL):
        evaluate(rows, {"q": (quotient, Float())}, schema)


def test_only_the_branch_taken_can_fail() -> None:
    schema = {"s": Str()}
    guarded = e.Case(
        (
            e.WhenThen(
                binary(e.Ref("s"), BinaryOp.EQ, text("")), e.Literal("null", Optional(Int()))
            ),
        ),
        parsed("s", Int()),
    )
    evaluation = attempt(
        frame(schema, s=["", "5", "five"]), {"n": (guarded, Optional(Int()))}, schema
    )
    assert evaluation.frame["n"].to_list() == [None, 5, None]
    assert evaluation.failed.to_list() == [False, False, True]


def test_a_fill_value_fails_only_where_it_is_used() -> None:
    schema = {"n": Optional(Int()), "s": Str()}
    filled = e.FillNull(e.Ref("n"), parsed("s", Int()))
    evaluation = attempt(
        frame(schema, n=[1, None, None], s=["x", "2", "y"]), {"n": (filled, Int())}, schema
    )
    assert evaluation.failed.to_list() == [False, False, True]
    assert evaluation.frame["n"].to_list()[:2] == [1, 2]


def test_an_element_that_fails_in_a_lambda_fails_its_row() -> None:
    schema = {"l": List(Str())}
    body = e.ListFn(e.Ref("l"), e.ListMap("x", e.StringFn(e.Var("x"), e.JsonDecode(Int()))))
    evaluation = attempt(
        frame(schema, l=[["1", "2"], [], ["3", "x"]]), {"n": (body, List(Int()))}, schema
    )
    assert evaluation.failed.to_list() == [False, False, True]
    assert evaluation.frame["n"].to_list()[:2] == [[1, 2], []]
    assert evaluation.failures[0].code == "bad-json"


def test_nested_parsing_runs_in_stages_and_leaves_no_extra_columns() -> None:
    schema = {"s": Str()}
    inner = parsed("s", Str())
    twice = e.StringFn(inner, e.JsonDecode(Int()))
    evaluation = attempt(
        frame(schema, s=['"1"', '"x"', "1x"]), {"n": (twice, Int()), "m": (inner, Str())}, schema
    )
    assert evaluation.frame.columns == ["s", "n", "m"]
    assert evaluation.failed.to_list() == [False, True, True]
    assert [f.value for f in evaluation.failures] == ["x", "1x"]


@pytest.mark.parametrize("count", [-1, 2_000_000])
def test_an_invalid_repeat_count_fails_its_row_only(count: int) -> None:
    schema = {"n": Int()}
    evaluation = attempt(
        frame(schema, n=[2, count]), {"l": (e.Repeat(number(1), e.Ref("n")), List(Int()))}, schema
    )
    assert evaluation.failed.to_list() == [False, True]
    assert evaluation.failures[0].code == "bad-count"


@pytest.mark.parametrize("exponent", [-1, 2**40])
def test_an_unsupported_int_power_fails_its_row_only(exponent: int) -> None:
    schema = {"n": Int()}
    evaluation = attempt(
        frame(schema, n=[3, exponent]),
        {"p": (e.MathFn(number(2), e.Pow(e.Ref("n"))), Int())},
        schema,
    )
    assert evaluation.frame["p"].to_list()[0] == 8
    assert [(f.row, f.code) for f in evaluation.failures] == [(1, "bad-exponent")]


def test_an_epoch_beyond_the_calendar_fails_its_row_only() -> None:
    schema = {"n": Int()}
    year = e.DateTimeFn(e.FromEpoch(e.Ref("n"), e.TimeUnit.SECOND), e.Part(e.TimeUnit.YEAR, "UTC"))
    evaluation = attempt(frame(schema, n=[0, 2**62, -(2**62)]), {"y": (year, Int())}, schema)
    assert evaluation.frame["y"].to_list()[0] == 1970
    assert evaluation.failed.to_list() == [False, True, True]


def test_now_is_the_expression_passed_to_the_compiler() -> None:
    schema = {"t": Timestamp(), "queried_at": Timestamp()}
    rows = frame(
        schema,
        t=[datetime(2024, 1, 1, tzinfo=UTC)] * 2,
        queried_at=[datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 11, tzinfo=UTC)],
    )
    age = e.DateTimeFn(e.Now(), e.Since(e.Ref("t"), e.TimeUnit.DAY))
    assert evaluate(rows, {"age": (age, Int())}, schema, pl.col("queried_at"))["age"].to_list() == [
        1,
        10,
    ]
    fixed = pl.lit(datetime(2024, 1, 4, tzinfo=UTC))
    assert evaluate(rows, {"age": (age, Int())}, schema, fixed)["age"].to_list() == [3, 3]
    with pytest.raises(InvalidExpression, match="now-missing"):
        evaluate(rows, {"age": (age, Int())}, schema)


def test_a_single_term_is_null_where_a_row_fails() -> None:
    rows = pl.DataFrame({"s": ["5", "x", None]})
    value = Compiler(NameScope({"s": Optional(Str())}), None).term(parsed("s", Int())).value
    assert rows.select(value).to_series().to_list() == [5, None, None]


def test_compiled_expressions_run_over_many_frames() -> None:
    schema = {"s": Str()}
    program = compile_columns({"n": (e.StringFn(e.Ref("s"), StringUnary.LEN), Int())}, schema)
    assert [program.evaluate(frame(schema, s=[s]))["n"].item() for s in ("", "é", "日本")] == [
        0,
        1,
        2,
    ]


def test_an_expression_must_fit_its_declared_type() -> None:
    schema = {"a": Optional(Int())}
    with pytest.raises(
        InvalidExpression, match=r"is of type Optional\[int\], but int was declared. Use fillnull"
    ) as caught:
        compile_columns({"b": (e.Ref("a"), Int())}, schema)
    assert caught.value.rule == "declared-type"
    compile_columns({"b": (e.Ref("a"), Optional(Float()))}, schema)


def test_a_dict_lookup_uses_the_key_of_each_row() -> None:
    schema = {"m": Map(Int()), "k": Optional(Str())}
    rows = frame(
        schema,
        m=[[{"key": "a", "value": 1}, {"key": "b", "value": 2}], [], [{"key": "a", "value": 3}]],
        k=["b", "a", None],
    )
    exprs = {
        "v": (e.DictFn(e.Ref("m"), e.DictGet(e.Ref("k"), None)), Optional(Int())),
        "w": (e.DictFn(e.Ref("m"), e.DictGet(e.Ref("k"), number(0))), Int()),
        "has": (e.DictFn(e.Ref("m"), e.DictContains(text("a"))), Bool()),
    }
    result = evaluate(rows, exprs, schema)
    assert result["v"].to_list() == [2, None, None]
    assert result["w"].to_list() == [2, 0, 0]
    assert result["has"].to_list() == [True, False, True]


def test_text_becomes_an_int_or_fails() -> None:
    schema = {"s": Optional(Str())}
    evaluation = attempt(
        frame(schema, s=["12", "1.5", None]),
        {"n": (e.StringFn(e.Ref("s"), StringUnary.TO_INT), Optional(Int()))},
        schema,
    )
    assert evaluation.frame["n"].to_list() == [12, None, None]
    assert [(f.row, f.code) for f in evaluation.failures] == [(1, "bad-int")]
