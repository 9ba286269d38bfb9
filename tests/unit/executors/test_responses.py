"""What a process of user code sends is parsed without trust."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fennel_core.executors.calls import EachRowCall, ExtractCall, FilterCall, TransformCall
from fennel_core.executors.errors import UserCodeFailed
from fennel_core.executors.internal_errors import ArrowRefused, ResponseMalformed
from fennel_core.executors.programs_format import join_collected, split_collected
from fennel_core.executors.responses import names_of, parse_header, secret_use, text_of
from fennel_core.executors.results import failures_of, read_result
from fennel_core.vocab.dtypes import Field, Int, Optional
from fennel_core.wire.pycode import PyCode

CODE = PyCode("f", "", "", "", "", (), ())
A = Field("a", Int())


def batch(*rows: int | None, name: str = "__row") -> bytes:
    column = pa.array(rows, pa.int64())
    value: bytes = pa.record_batch([column], names=[name]).serialize().to_pybytes()
    return value


@pytest.mark.parametrize(
    "received", [b"", b"\xff", b"[]", b"1", b"{}", b'{"op": 1}', b"[" * 100_000, b'{"op": "x"']
)
def test_a_header_that_is_no_object_with_an_operation_is_malformed(received: bytes) -> None:
    with pytest.raises(ResponseMalformed):
        parse_header(received)


def test_texts_are_texts_of_a_bounded_length_that_can_be_sent_on() -> None:
    assert text_of({}, "message") == ""
    assert len(text_of({"message": "x" * 1_000_000}, "message")) == 20_000
    assert text_of({"message": "\ud800"}, "message") == "?"
    for wrong in (1, None, [], {}):
        with pytest.raises(ResponseMalformed):
            text_of({"message": wrong}, "message")


def test_names_are_a_list_of_texts() -> None:
    assert names_of({"fields": ["a", "b"]}, "fields") == ("a", "b")
    for wrong in (None, "ab", [1], ["a"] * 1_001):
        with pytest.raises(ResponseMalformed):
            names_of({"fields": wrong}, "fields")


def test_code_declares_the_secrets_that_it_names() -> None:
    text = 'from fennel.lib import secrets\na = secrets.get("salt")\nb = {"x": "pepper"}\n'
    use = secret_use(text)
    assert use.covers("salt")
    assert use.covers("pepper")
    assert not use.covers("saltpepper")
    assert not secret_use("def broken(:").covers("")


@pytest.mark.parametrize(
    "text", ["secrets.get(name)", "column.apply(secrets.get)", "fennel.lib.secrets.get(*names)"]
)
def test_code_that_computes_names_declares_every_secret_of_its_workspace(text: str) -> None:
    assert secret_use(text).covers("salt")
    assert not secret_use(text.replace("secrets", "cache")).covers("salt")


@pytest.mark.parametrize("rows", [(0, 2), (), (2, 1, 0)])
def test_a_filter_returns_rows_of_its_input(rows: tuple[int, ...]) -> None:
    result = read_result(FilterCall(CODE, "D.p", (A,)), batch(*rows), 3)
    assert result.column("__row").to_pylist() == list(rows)


@pytest.mark.parametrize("rows", [(-1,), (3,), (0, 0), (None,), (0, 1, 2, 0)])
def test_rows_that_are_not_of_the_input_are_refused(rows: tuple[int | None, ...]) -> None:
    with pytest.raises(ArrowRefused):
        read_result(FilterCall(CODE, "D.p", (A,)), batch(*rows), 3)
    with pytest.raises(ArrowRefused):
        read_result(TransformCall(CODE, "D.p", (A,), ()), batch(*rows), 3)


def test_an_extractor_returns_a_value_for_each_row() -> None:
    plain = ExtractCall(CODE, "F", "e", (A,), (A,), ())
    optional = ExtractCall(CODE, "F", "e", (A,), (Field("a", Optional(Int())),), ())
    assert read_result(plain, batch(1, 2, name="a"), 2).num_rows == 2
    assert read_result(optional, batch(1, None, name="a"), 2).num_rows == 2
    for rows in ((1,), (1, 2, 3)):
        with pytest.raises(ArrowRefused):
            read_result(plain, batch(*rows, name="a"), 2)
    with pytest.raises(ArrowRefused, match="not optional"):
        read_result(plain, batch(1, None, name="a"), 2)


EACH = EachRowCall(FilterCall(CODE, "D.p", (A,)))


def failures(*rows: tuple[int | None, str | None, str | None, str | None]) -> bytes:
    types = (pa.int64(), pa.string(), pa.string(), pa.string())
    arrays = [pa.array([row[n] for row in rows], dtype) for n, dtype in enumerate(types)]
    names = ["__row", "reason", "message", "trace"]
    value: bytes = pa.record_batch(arrays, names=names).serialize().to_pybytes()
    return value


def test_failures_of_single_rows_are_those_of_calls_with_the_row() -> None:
    received = failures((0, "raised", "no", "Traceback"), (2, "invalid", "x" * 100_000, ""))
    (_, raised), (row, invalid) = failures_of(EACH, read_result(EACH, received, 3))
    assert isinstance(raised, UserCodeFailed)
    assert "filter function" in str(raised)
    assert raised.traceback == "Traceback"
    assert row == 2
    assert len(str(invalid)) < 21_000


@pytest.mark.parametrize(
    "rows",
    [
        [(3, "raised", "", "")],
        [(-1, "raised", "", "")],
        [(None, "raised", "", "")],
        [(0, "raised", "", ""), (0, "raised", "", "")],
        [(0, "busy", "", "")],
        [(0, "crashed", "", "")],
        [(0, None, "", "")],
        [(0, "raised", None, "")],
        [(0, "raised", "", None)],
    ],
)
def test_failures_that_no_row_can_have_are_refused(
    rows: list[tuple[int | None, str | None, str | None, str | None]],
) -> None:
    with pytest.raises(ArrowRefused):
        read_result(EACH, failures(*rows), 3)


def test_a_collected_project_is_split_as_it_was_joined() -> None:
    assert split_collected(join_collected("printed ü", b"request")) == ("printed ü", b"request")
