# ruff: noqa: UP006, UP045  the client reads these annotations in their older spelling
"""The frames on which the law is checked, with the edge values of every type.

This module runs in the client's environment.
"""

from datetime import date, datetime, timezone
from decimal import Decimal as PyDecimal
from typing import Dict, List, Optional  # noqa: UP035  # as users write them

from fennel.dtypes.dtypes import Decimal, between, oneof, regex, struct


@struct
class P:
    x: int


@struct
class PF:
    x: float


@struct
class PO:
    x: Optional[int]


@struct
class Q:
    x: int
    y: Optional[str]


@struct
class N:
    p: P
    xs: List[int]


UTC = timezone.utc  # noqa: UP017  # as users write it
INF, NAN = float("inf"), float("nan")

SCHEMAS = {
    "numbers": {
        "i": int,
        "j": int,
        "oi": Optional[int],
        "f": float,
        "g": float,
        "of": Optional[float],
    },
    "logic": {"p": bool, "q": bool, "op": Optional[bool], "oq": Optional[bool]},
    "text": {"s": str, "t": str, "os": Optional[str]},
    "json": {"s": str},
    "times": {
        "d": datetime,
        "e": datetime,
        "od": Optional[datetime],
        "i": int,
        "oi": Optional[int],
        "now": datetime,
    },
    "stamps": {"s": str},
    "lists": {
        "li": List[int],
        "loi": List[Optional[int]],
        "oli": Optional[List[int]],
        "lf": List[float],
        "ls": List[str],
        "lb": List[bool],
        "lob": List[Optional[bool]],
        "lp": List[P],
        "ll": List[List[int]],
        "i": int,
        "oi": Optional[int],
        "s": str,
    },
    "records": {
        "p": P,
        "q": Q,
        "m": Dict[str, int],
        "mf": Dict[str, float],
        "ms": Dict[str, str],
        "i": int,
        "oi": Optional[int],
        "s": str,
        "b": bool,
    },
    "mixed": {
        "i": int,
        "j": int,
        "oi": Optional[int],
        "f": float,
        "g": float,
        "of": Optional[float],
        "p": bool,
        "q": bool,
        "op": Optional[bool],
        "s": str,
        "t": str,
        "os": Optional[str],
        "d": datetime,
        "e": datetime,
        "od": Optional[datetime],
        "li": List[int],
        "loi": List[Optional[int]],
        "lf": List[float],
        "ls": List[str],
    },
    "absent": {"op": Optional[P], "om": Optional[Dict[str, int]], "i": int, "b": bool},
    "others": {
        "dec": Decimal[2],
        "day": date,
        "raw": bytes,
        "bi": between(int, 0, 100),
        "bf": between(float, 0, 1),
        "os": oneof(str, ["a", "b"]),
        "oi": oneof(int, [1, 2]),
        "rg": regex(".*"),
        "i": int,
        "b": bool,
    },
}


def at(*parts):
    return datetime(*parts, tzinfo=UTC)


FRAMES = {
    "numbers": {
        "i": [0, 7, -7, 5, 2**63 - 1, -(2**63), 3, -1, 25],
        "j": [2, 2, -2, -3, 2, -1, 0, 63, 10],
        "oi": [None, 1, 0, -5, 64, 2, None, 3, 2**53 + 1],
        "f": [0.0, -0.0, 2.5, -2.5, 1.0, 1e20, -1.15, 0.5, 2.675],
        "g": [0.0, 1.0, 2.0, -2.0, 0.1, 3.0, 0.0, -0.3, 1e-7],
        "of": [None, 1.5, 2.25, -3.5, INF, -INF, 0.0, None, 1e300],
    },
    "logic": {
        "p": [True, True, True, False, False, False],
        "q": [True, False, True, False, True, False],
        "op": [None, None, None, True, False, True],
        "oq": [None, True, False, None, None, False],
    },
    "text": {
        "s": ["", "aé", "ABC", "x,y,,z", "straße", "日本語 text", "a.b*c"],
        "t": ["", "é", "B", ",", "SS", "本", ".b*"],
        "os": [None, "a", "", "y", None, "t", "abc"],
    },
    "json": {
        "s": [
            "1",
            "1.5",
            "-0",
            "1e3",
            "1e400",
            "99999999999999999999",
            '"1"',
            '"a"',
            "true",
            "null",
            "[1]",
            "[1, 2.7]",
            "[1,null]",
            '{"x":1}',
            "{}",
            "",
            " 1 ",
            "NaN",
            '{"x":null}',
            '{"x":1,"y":"q","z":3}',
            '{"x":"1"}',
            "[]",
            '"2021-01-01"',
            '"2021-01-01T00:00:00Z"',
            '"2021-01-01T05:06:07.123456+05:30"',
            "1 2",
            '{"x":1}}',
            "01",
            '"a\\u00e9"',
            '{"x":1,"x":2}',
            '{"p":{"x":1},"xs":[1]}',
            '[{"x":1},{"x":2}]',
            "1609459200",
            "'a'",
            "[1,]",
            '["a",1,true]',
            "[[1],[2,3],[]]",
            '{"a":{"b":null,"c":"é"}}',
            '{"a":[{"b":1},{"b":2}]}',
            '{"a":"x\\"y"}',
            '{"a":null}',
            '{"a":1.50}',
            '{"b":2,"a":1e3}',
            '{"a":""}',
            "1e20",
            "1.5e-7",
            "100.0",
            "-1.9",
            "9223372036854775807",
            "9223372036854775808",
            '"2021-01-01T00:00:00"',
            '{"a":[1, 2]}',
            '{"A":true}',
        ]
    },
    "times": {
        "d": [
            at(1969, 12, 31, 23, 59, 59, 123456),
            at(2021, 1, 3, 4, 5, 6, 7890),
            at(2020, 2, 29),
            at(2021, 3, 14, 10),
            at(2024, 12, 30, 12, 30),
        ],
        "e": [
            at(1970, 1, 1),
            at(2020, 1, 3, 4, 5, 6),
            at(2020, 2, 29, 0, 0, 0, 1),
            at(2022, 3, 14, 10),
            at(1900, 1, 1),
        ],
        "od": [None, at(2021, 3, 14, 10), at(1900, 1, 1), at(2100, 6, 1, 1, 2, 3, 4), None],
        "i": [0, 25, -7, 1_700_000_000, -1],
        "oi": [None, 1, -1, 1_700_000_000_123, None],
        "now": [
            at(2024, 1, 1),
            at(2023, 5, 6, 7, 8, 9),
            at(2020, 1, 1),
            at(1999, 1, 1),
            at(2024, 1, 1, 0, 0, 0, 1),
        ],
    },
    "stamps": {
        "s": [
            "2021-01-01",
            "2021-02-30",
            "2021-1-1",
            "20210101",
            " 2021-01-01",
            "2021-01-01 ",
            "2021-01-01 00:01:00+0530",
            "2021-01-01 00:01:00+05:30",
            "2021-01-01 00:01:00Z",
            "2021-01-01T00:01:00.5+05:30",
            "2021-01-01 00:01:00.123456",
            "2021-01-01 00:01:00.123",
            "2021-01-01 00:01:00",
            "1609459200",
            "2021",
            "2021-01",
            "01/02/21",
            "01/02/70",
            "1/2/21",
            "Jan 02, 2021",
            "jan 2, 2021",
            "2021-033",
            "01:02",
            "2021-01-01 01:02 PM",
            "2021-01-01 01:02:03",
            "",
            "2021-01-01 UTC",
            "0001-01-01",
            "9999-12-31",
            "2020-03-08 02:30",
            "2020-11-01 01:30",
            "2020-07-01 00:00",
            "2021-01-01 24:00",
            "2021-01-01 23:59:60",
            "Friday 01 January 2021",
            "Monday 01 January 2021",
            "2021-W01-1",
            "2021-01-01%",
            "x",
        ]
    },
    "lists": {
        "li": [[], [1, 2, 3], [5], [-1, -1], [2**63 - 1, 1]],
        "loi": [[None], [1, None, 3], [], [2], [None, None]],
        "oli": [None, [1], [], [3, 4], None],
        "lf": [[1.5], [], [NAN, 2.0], [INF, -INF], [0.1, 0.2, 0.3]],
        "ls": [["a"], [], ["b", ""], ["1", "x"], ["a", "a", "b"]],
        "lb": [[], [True, False], [True], [False], [True, True]],
        "lob": [[None], [None, False], [None, True], [True], []],
        "lp": [[], [{"x": 1}], [{"x": 1}, {"x": 3}], [{"x": -1}], []],
        "ll": [[[1]], [[1, 2], [3]], [], [[]], [[], [4, 5]]],
        "i": [0, 1, 2, 3, 1],
        "oi": [None, 1, 2, None, 3],
        "s": ["a", "b", "", "1", "a"],
    },
    "records": {
        "p": [{"x": 1}, {"x": 2}, {"x": -3}],
        "q": [{"x": 1, "y": None}, {"x": 2, "y": "q"}, {"x": 1, "y": ""}],
        "m": [[], [("a", 1), ("b", 2)], [("b", 3)]],
        "mf": [[("a", 1.5)], [], [("b", NAN)]],
        "ms": [[("a", "x")], [], [("b", "")]],
        "i": [0, 1, 2],
        "oi": [None, 1, 5],
        "s": ["a", "b", "zz"],
        "b": [True, False, True],
    },
    "mixed": {
        "i": [0, 3, -7, 2, 5, 1],
        "j": [2, 0, -2, 3, 1, -1],
        "oi": [None, 1, 0, -5, 2, None],
        "f": [0.0, 2.5, -1.25, 1e10, 0.1, -3.0],
        "g": [1.0, 0.0, 2.0, -0.5, 0.3, 4.0],
        "of": [None, 1.5, INF, -3.5, None, 0.0],
        "p": [True, True, False, False, True, False],
        "q": [False, True, False, True, True, False],
        "op": [None, True, False, None, True, False],
        "s": ["", "abc", "a", "12", "Banana", "é a"],
        "t": ["a", "", "an", "2", "B", "x"],
        "os": [None, "a", "", "b a", None, "12"],
        "d": [
            at(1970, 1, 1),
            at(2020, 2, 29, 12),
            at(1969, 12, 31, 23, 59, 59),
            at(2021, 7, 4, 1, 2, 3, 4),
            at(2000, 1, 1),
            at(1900, 3, 1),
        ],
        "e": [
            at(2020, 1, 1),
            at(2020, 2, 28),
            at(1970, 1, 1),
            at(2020, 7, 4),
            at(2001, 1, 1),
            at(2100, 1, 1),
        ],
        "od": [
            None,
            at(2020, 2, 29),
            at(1950, 5, 5),
            None,
            at(2000, 1, 1),
            at(2038, 1, 19, 3, 14, 8),
        ],
        "li": [[], [1, 2, 3], [5], [-1, 4], [0, 0, 2], [7]],
        "loi": [[None], [1, None, 3], [], [2], [None, 0], [3, 4]],
        "lf": [[], [0.5, 2.0], [-1.5], [0.1, 0.2, 0.3], [INF], [0.0]],
        "ls": [[], ["a", "b"], [""], ["banana", "a"], ["x"], ["12", "", "z"]],
    },
    "absent": {
        "op": [
            {"x": None},
            {"x": 2},
            {"x": None},
            {"x": 0},
        ],  # how the client itself hands a null struct to its evaluator
        "om": [None, [], [("a", 1)], [("b", 2)]],
        "i": [1, 2, 3, 4],
        "b": [True, False, True, False],
    },
    "others": {
        "dec": [PyDecimal("1.25"), PyDecimal("-1.50"), PyDecimal("0.00")],
        "day": [date(2020, 1, 1), date(1969, 12, 31), date(2024, 2, 29)],
        "raw": [b"a", b"", b"\xff"],
        "bi": [1, 50, 100],
        "bf": [0.0, 0.25, 1.0],
        "os": ["a", "b", "a"],
        "oi": [1, 2, 1],
        "rg": ["a", "", "x y"],
        "i": [1, 2, 3],
        "b": [True, False, True],
    },
}
