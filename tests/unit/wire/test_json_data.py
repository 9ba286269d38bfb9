"""The forms of `data` in `log` and `query` bodies: columns, rows, and the JSON text of either."""

from __future__ import annotations

from typing import Any

import pytest

from fennel_core.wire.errors import MalformedData
from fennel_core.wire.json_data import json_table


@pytest.mark.parametrize(
    ("data", "by_row"),
    [
        ({"a": [1, 2], "b": ["x", None]}, False),
        ([{"a": 1, "b": "x"}, {"a": 2, "b": None}], True),
        ([{"b": "x", "a": 1}, {"a": 2}], True),
        ('{"a": [1, 2], "b": ["x", null]}', False),
        ('[{"a": 1, "b": "x"}, {"a": 2}]', True),
    ],
)
def test_every_form_becomes_the_same_columns(data: Any, by_row: bool) -> None:
    found = json_table(data)
    assert dict(found.columns) == {"a": [1, 2], "b": ["x", None]}
    assert (found.rows, found.by_row) == (2, by_row)


def test_text_may_hold_the_bare_tokens_that_pandas_writes() -> None:
    [value] = json_table('{"a": [Infinity]}').columns["a"]
    assert value == float("inf")


@pytest.mark.parametrize("data", [{}, [], "{}", "[]"])
def test_no_rows_are_no_rows(data: Any) -> None:
    assert json_table(data).rows == 0


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"a": [1], "b": [1, 2]}, "one length"),
        ("{", "not JSON"),
        ("[1]", "malformed"),
        ("3", "malformed"),
        ('["a"]', "malformed"),
        ('[{"a": "\\ud800"}]', "not JSON"),
    ],
)
def test_anything_else_is_malformed(data: Any, text: str) -> None:
    with pytest.raises(MalformedData, match=text):
        json_table(data)
