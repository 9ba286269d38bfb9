"""Type inference: accepted expressions and their types, rejected ones and their errors."""

import re

import pytest

from fennel_core.expressions.compiler import Compiler
from fennel_core.expressions.errors import InvalidExpression
from fennel_core.expressions.infer import infer
from fennel_core.expressions.references import references, uses_now
from fennel_core.expressions.scope import NameScope
from fennel_core.expressions.type_lattice import common_type, is_assignable
from fennel_core.vocab.dtypes import (
    Between,
    Bool,
    Date,
    Decimal,
    Dtype,
    Field,
    Float,
    Int,
    List,
    Map,
    Null,
    Optional,
    Regex,
    Str,
    Struct,
    Timestamp,
)
from fennel_core.wire import expr as e
from fennel_core.wire.expr import BinaryOp, ListFold, MathUnary, StringUnary, TimeUnit, UnaryOp

POINT = Struct("Point", (Field("x", Int()),))
SCHEMA: dict[str, Dtype] = {
    "i": Int(),
    "f": Float(),
    "s": Str(),
    "oi": Optional(Int()),
    "t": Timestamp(),
    "l": List(Int()),
    "ol": List(Optional(Int())),
    "p": POINT,
    "m": Map(Int()),
    "day": Date(),
    "dec": Decimal(2),
    "bounded": Between(Int(), 0, 9),
}


def lit(json: str, dtype: Dtype) -> e.Literal:
    return e.Literal(json, dtype)


ONE = lit("1", Int())

REFUSED: dict[str, tuple[e.Expr, ...]] = {
    "unknown-column": (e.Ref("zz"),),
    "unknown-variable": (e.Var("x"), e.ListFn(e.Ref("l"), e.ListMap("x", e.Var("y")))),
    "column-in-lambda": (
        e.ListFn(e.Ref("l"), e.ListMap("x", e.Binary(BinaryOp.ADD, e.Var("x"), e.Ref("i")))),
    ),
    "nested-lambda": (
        e.ListFn(
            e.Ref("l"),
            e.ListMap("x", e.ListFn(e.Repeat(e.Var("x"), ONE), e.ListMap("y", e.Var("y")))),
        ),
    ),
    "now-in-lambda": (e.ListFn(e.Ref("l"), e.ListMap("x", e.Now())),),
    "not-a-number": (
        e.Binary(BinaryOp.ADD, e.Ref("s"), e.Ref("s")),
        e.Binary(BinaryOp.LT, e.Ref("t"), e.Ref("t")),
        e.Binary(BinaryOp.MUL, e.Ref("dec"), ONE),
        e.Binary(BinaryOp.ADD, e.Ref("bounded"), ONE),
        e.Unary(UnaryOp.NEG, e.Ref("s")),
        e.MathFn(e.Ref("s"), MathUnary.ABS),
    ),
    "not-a-bool": (
        e.Unary(UnaryOp.NOT, e.Ref("i")),
        e.Case((e.WhenThen(e.Ref("i"), ONE),), None),
        e.ListFn(e.Ref("l"), ListFold.ALL),
    ),
    "types-incompatible": (
        e.Binary(BinaryOp.EQ, e.Ref("i"), e.Ref("s")),
        e.FillNull(e.Ref("oi"), e.Ref("s")),
        e.ListFn(e.Ref("l"), e.ListContains(e.Ref("oi"))),
        e.MakeStruct(POINT, (("x", e.Ref("f")),)),
        e.DictFn(e.Ref("m"), e.DictGet(e.Ref("s"), e.Ref("f"))),
    ),
    "not-an-int": (
        e.ListFn(e.Ref("l"), e.ListGet(e.Ref("oi"))),
        e.Repeat(ONE, e.Ref("f")),
        e.FromEpoch(e.Ref("f"), TimeUnit.SECOND),
    ),
    "not-a-list": (e.ListFn(e.Ref("s"), ListFold.LEN), e.Zip(POINT, (("x", e.Ref("i")),))),
    "not-a-struct": (e.StructGet(e.Ref("i"), "x"),),
    "unknown-struct-field": (e.StructGet(e.Ref("p"), "y"),),
    "struct-fields": (e.MakeStruct(POINT, ()),),
    "not-a-dict": (e.DictFn(e.Ref("l"), e.DictLen()),),
    "not-a-string": (
        e.StringFn(e.Ref("i"), StringUnary.LEN),
        e.StringFn(e.Ref("s"), e.Concat(e.Ref("i"))),
    ),
    "not-a-datetime": (e.DateTimeFn(e.Ref("day"), e.Part(TimeUnit.YEAR, "UTC")),),
    "bad-unit": (
        e.DateTimeFn(e.Ref("t"), e.SinceEpoch(TimeUnit.MONTH)),
        e.FromEpoch(e.Ref("i"), TimeUnit.DAY),
    ),
    "unknown-timezone": (
        e.DateTimeFn(e.Ref("t"), e.Part(TimeUnit.YEAR, "Mars/Olympus")),
        e.StringFn(e.Ref("s"), e.Strptime("%Y", "+05:30")),
        e.DatetimeLiteral(2024, 1, 1, 0, 0, 0, 0, "Nope"),
    ),
    "bad-pattern": (
        e.DateTimeFn(e.Ref("t"), e.Strftime("%Q", "UTC")),
        e.StringFn(e.Ref("s"), e.Strptime("%Q", "UTC")),
    ),
    "bad-json-path": (e.StringFn(e.Ref("s"), e.JsonExtract("a.b")),),
    "unsupported-parse": (e.StringFn(e.Ref("s"), e.JsonDecode(Map(Int()))),),
    "bad-literal": (
        lit("1.5", Int()),
        lit("null", Int()),
        lit('"x"', Timestamp()),
        e.DatetimeLiteral(2021, 2, 29, 0, 0, 0, 0, "UTC"),
        e.DatetimeLiteral(2020, 3, 8, 2, 30, 0, 0, "America/New_York"),
    ),
    "bad-precision": (e.MathFn(e.Ref("f"), e.Round(-1)),),
    "now-missing": (e.Now(),),
    "case-empty": (e.Case((), ONE),),
}


@pytest.mark.parametrize(
    ("code", "expr"), [(code, expr) for code, exprs in REFUSED.items() for expr in exprs], ids=str
)
def test_an_ill_typed_expression_is_rejected_with_its_rule_and_a_remedy(
    code: str, expr: e.Expr
) -> None:
    with pytest.raises(InvalidExpression) as caught:
        Compiler(NameScope(SCHEMA), None).term(expr)
    assert caught.value.rule == code
    assert str(caught.value).endswith(f"[{code}]")
    assert re.search(r"\. [A-Z]", caught.value.text), "the second sentence names a remedy"


@pytest.mark.parametrize(
    ("left", "right", "meet"),
    [
        (Int(), Float(), Float()),
        (Optional(Int()), Float(), Optional(Float())),
        (Null(), Str(), Optional(Str())),
        (Null(), Null(), Null()),
        (Between(Int(), 0, 1), Int(), Int()),
        (Regex("a"), Str(), Str()),
        (List(Int()), List(Between(Int(), 0, 1)), List(Int())),
        (List(Int()), List(Float()), None),
        (Decimal(1), Decimal(2), None),
        (Bool(), Int(), None),
    ],
)
def test_the_common_type_is_the_least_type_both_convert_to(
    left: Dtype, right: Dtype, meet: Dtype | None
) -> None:
    assert common_type(left, right) == meet


@pytest.mark.parametrize(
    ("dtype", "target", "expected"),
    [
        (Int(), Float(), True),
        (Float(), Int(), False),
        (Int(), Optional(Float()), True),
        (Optional(Int()), Int(), False),
        (Null(), Optional(POINT), True),
        (Null(), Int(), False),
        (Str(), Regex("a"), True),
        (POINT, Struct("Other", (Field("x", Optional(Float())),)), True),
        (POINT, Struct("Other", (Field("z", Int()),)), False),
        (List(Int()), List(Float()), False),
    ],
)
def test_a_type_is_assignable_only_without_loss(
    dtype: Dtype, target: Dtype, expected: bool
) -> None:
    assert is_assignable(dtype, target) is expected


def test_null_propagates_unless_the_function_removes_it() -> None:
    total = e.Binary(BinaryOp.ADD, e.Ref("i"), e.Ref("oi"))
    assert infer(total, SCHEMA) == Optional(Int())
    assert infer(e.FillNull(total, lit("0.5", Float())), SCHEMA) == Float()
    assert infer(e.IsNull(total), SCHEMA) == Bool()
    assert infer(e.ListFn(e.Ref("l"), ListFold.SUM), SCHEMA) == Int()
    assert infer(e.ListFn(e.Ref("ol"), ListFold.SUM), SCHEMA) == Optional(Int())
    assert infer(e.ListFn(e.Ref("l"), ListFold.MAX), SCHEMA) == Optional(Int())


def test_references_are_columns_and_not_lambda_variables() -> None:
    longest = e.ListFn(e.Ref("l"), e.ListMap("x", e.Binary(BinaryOp.MUL, e.Var("x"), ONE)))
    chosen = e.Case((e.WhenThen(e.IsNull(e.Ref("oi")), e.Repeat(e.Ref("i"), ONE)),), longest)
    assert references(chosen) == {"l", "oi", "i"}
    assert not uses_now(chosen)
    assert uses_now(e.DateTimeFn(e.Now(), e.Since(e.Ref("t"), TimeUnit.DAY)))
    assert references(e.MakeStruct(POINT, (("x", e.Ref("i")),))) == {"i"}
