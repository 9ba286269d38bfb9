"""Joins at the edges of what schemas allow."""

import pytest

from fennel_core.operators.build import build
from fennel_core.operators.spec import JoinSpec, with_validity
from fennel_core.vocab.dtypes import Field, Int, Str, Struct, Timestamp
from fennel_core.vocab.schema import Schema
from tests.support.histories import Change, History, integral, run

WINDOW = Field("w", Struct("Window", (Field("begin", Timestamp()), Field("end", Timestamp()))))
RIGHT = Schema((Field("k", Int()), WINDOW), (), "ts")
EVENTS = Schema((), (Field("id", Str()), Field("k", Int()), WINDOW), "t")
TABLE = Schema((Field("id", Str()),), (Field("k", Int()), WINDOW), "t")


def _window(begin):
    return {"begin": begin, "end": begin + 10}


@pytest.mark.parametrize("left", [EVENTS, with_validity(TABLE)])
def test_a_right_side_without_values_still_decides_what_an_inner_join_keeps(left):
    output = TABLE if left is not EVENTS else EVENTS
    step = build(JoinSpec(left, RIGHT, ("k", "w"), (), True, None, 0, output))
    row = {
        "id": "a",
        "k": 1,
        "w": _window(0),
        "t": 7,
        "__tombstone": False,
        "__pos": b"\x01" * 14,
        "__valid_to": None,
    }
    alone = {**row, "id": "b", "w": _window(10), "__pos": b"\x02" * 14}
    right = {"k": 1, "w": _window(0), "ts": 5, "__tombstone": False, "__pos": b"\x03" * 14}
    for batches in (
        [[Change(0, 1, row), Change(0, 1, alone)], [Change(1, 1, right)]],
        [[Change(1, 1, right)], [Change(0, 1, row)]],
    ):
        _, emitted = run(step, History(batches), left, RIGHT)
        assert [found["id"] for found in integral(emitted)] == ["a"]
