"""The complete list of deviations from the client's evaluator, with reasons.

Each entry recognises its cases by the shape of the expression and of the difference. The law fails
for a difference that no entry covers, and for an entry that no case needs any more.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass

from fennel_core.expressions.references import references
from fennel_core.vocab.dtypes import List, Optional, Struct
from fennel_core.wire.expr import (
    Binary,
    BinaryOp,
    Expr,
    FromEpoch,
    JsonDecode,
    JsonExtract,
    ListFn,
    ListFold,
    MathFn,
    MathUnary,
    Round,
    StringFn,
    StringUnary,
    Strptime,
    Unary,
    UnaryOp,
    Zip,
)
from fennel_core.wire.expr import (
    Case as CaseExpr,
)
from tests.laws.expressions.comparison import FAILED, Case, Difference

Test = Callable[[Case, Difference], bool]

BREAKDOWN = re.compile(
    r"cannot get ref \w+ from|operation not supported for dtype|entered unreachable code"
    r"|cannot compare string with numeric"
    r"|invalid series dtype|expected type: Bytes|expected (between|oneof) type"
    r"|error parsing Regex|not yet implemented"
)
"""Internal errors of the client's evaluator.

For example a narrow or unsigned int where it needs 64 bits, or a type that it cannot repeat.
"""


@dataclass(frozen=True)
class Deviation:
    name: str
    why: str
    covers: Test


def nodes(node: object) -> Iterator[object]:
    yield node
    if isinstance(node, tuple):
        for item in node:
            yield from nodes(item)
    elif is_dataclass(node):
        for part in fields(node):
            yield from nodes(getattr(node, part.name))


def has(expr: Expr, found: Callable[[object], bool]) -> bool:
    return any(found(node) for node in nodes(expr))


def rounds_an_int(node: object) -> bool:
    return isinstance(node, MathFn) and (
        node.op in (MathUnary.ABS, MathUnary.CEIL, MathUnary.FLOOR) or node.op == Round(0)
    )


def divides_a_constant(node: object) -> bool:
    return (
        isinstance(node, Binary)
        and node.op in (BinaryOp.FLOOR_DIV, BinaryOp.MOD)
        and not references(node.left)
    )


def parses_a_container(node: object) -> bool:
    match node:
        case StringFn(_, JsonDecode(Optional(of))):
            return isinstance(of, Struct)
        case StringFn(_, JsonDecode(of)):
            return isinstance(of, List | Struct)
        case _:
            return False


def is_a_length(node: object) -> bool:
    return isinstance(node, StringFn | ListFn) and node.op in (StringUnary.LEN, ListFold.LEN)


def subtracts_or_chooses(node: object) -> bool:
    """Return whether the width of an int is visible: in a difference, or a case of two types."""
    return isinstance(node, CaseExpr) or (isinstance(node, Binary) and node.op is BinaryOp.SUB)


def negates_a_division(node: object) -> bool:
    match node:
        case Unary(UnaryOp.NOT, Binary() as comparison):
            return has(
                comparison, lambda inner: isinstance(inner, Binary) and inner.op is BinaryOp.DIV
            )
        case _:
            return False


def only(
    difference: Difference, *, ours_failed: bool | None = None, theirs_failed: bool | None = None
) -> bool:
    """Return whether all differing rows are of this kind."""
    return bool(difference.rows) and all(
        (ours_failed is None or (ours == FAILED) == ours_failed)
        and (theirs_failed is None or (theirs == FAILED) == theirs_failed)
        for _, ours, theirs in difference.rows
    )


DEVIATIONS = (
    Deviation(
        "permissive types",
        "a regex is a str and a bounded int is comparable with a bounded float; the "
        "client's compiler rejects both",
        lambda case, d: case.frame == "others" and d.type_difference.startswith("we accept"),
    ),
    Deviation(
        "no internal errors",
        "the client's evaluator fails on a well-typed expression; ours returns a value",
        lambda case, d: (
            only(d, ours_failed=False)
            and all(BREAKDOWN.search(getattr(theirs, "reason", "")) for _, _, theirs in d.rows)
        ),
    ),
    Deviation(
        "exact ints",
        "abs, ceil, floor and round keep an int an int; the client's go through a "
        "float and lose digits beyond 2^53",
        lambda case, d: has(case.expr, rounds_an_int) and only(d, ours_failed=False),
    ),
    Deviation(
        "division by a constant zero",
        "a constant divided by zero is null like any int; the client's library folds it to 0",
        lambda case, d: has(case.expr, divides_a_constant),
    ),
    Deviation(
        "strict containers",
        "str.parse reads only lists as lists and objects as structs; the client's "
        "reads others as a list of one, or a struct of nulls",
        lambda case, d: (
            has(case.expr, parses_a_container)
            and all(ours in (FAILED, None) for _, ours, _ in d.rows)
        ),
    ),
    Deviation(
        "structural equality",
        "lists and structs with equal parts are equal, nulls included",
        lambda case, d: (
            bool(re.match(r"col\('(lob|loi|p)'\) [=!]= ", case.source))
            and all(ours is ("==" in case.source) for _, ours, _ in d.rows)
        ),
    ),
    Deviation(
        "constant bodies",
        "a map to a constant is a list of that constant; the client's evaluator fails",
        lambda case, d: case.source == "col('li').list.map('x', lit(7))",
    ),
    Deviation(
        "empty zips",
        "zipped empty lists are an empty list (as in the client's own tests); "
        "its evaluator makes one struct of nulls",
        lambda case, d: (
            has(case.expr, lambda n: isinstance(n, Zip))
            and all(ours == [] for _, ours, _ in d.rows)
        ),
    ),
    Deviation(
        "signed lengths",
        "a length is an int; the client's is an unsigned 32-bit one, so that a "
        "difference of two lengths wraps around",
        lambda case, d: has(case.expr, is_a_length) and has(case.expr, subtracts_or_chooses),
    ),
    Deviation(
        "negated comparisons",
        "`~(a <= b)` compares what `a <= b` compares; the client's library turns it "
        "into `a > b` and divides ints as ints inside",
        lambda case, d: has(case.expr, negates_a_division),
    ),
    Deviation(
        "calendar range",
        "from_epoch beyond the years 1 to 9999 fails; the client's wraps around",
        lambda case, d: (
            has(case.expr, lambda n: isinstance(n, FromEpoch)) and only(d, ours_failed=True)
        ),
    ),
    Deviation(
        "branches not taken",
        "a row fails only in the branch it takes; the client's evaluates all branches for all rows",
        lambda case, d: (
            has(case.expr, lambda n: isinstance(n, CaseExpr))
            and only(d, ours_failed=False, theirs_failed=True)
        ),
    ),
    Deviation(
        "strict dates",
        "text must have the separators of its pattern; an older fast path of the "
        "client's library skips them",
        lambda case, d: (
            has(case.expr, lambda n: isinstance(n, Strptime) and n.format == "%Y%m%d")
            and only(d, ours_failed=True)
        ),
    ),
    Deviation(
        "exponents of JSON",
        "a float that json_extract writes as `1e+20` is `1e20` there",
        lambda case, d: (
            has(case.expr, lambda n: isinstance(n, JsonExtract))
            and all(a.replace("e+", "e") == b for _, a, b in d.rows)
        ),
    ),
    Deviation(
        "no wall clock",
        "now() without a time is rejected; the client's evaluator reads the clock",
        lambda case, d: "[now-missing]" in d.type_difference,
    ),
    Deviation(
        "null dicts",
        "a null dict is null and has no length; the client's is empty",
        lambda case, d: case.source in ("col('om').isnull()", "col('om').dict.len()"),
    ),
)
