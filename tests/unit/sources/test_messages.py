"""Messages become rows, in one call or one by one, with the same outcome."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.admission.payload import parse_log_body
from fennel_core.sources.messages import MESSAGE_BYTES, MessageBatch, decode_messages, raw_body
from tests.support.source_world import batch

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
texts = st.one_of(
    st.none(),
    st.binary(max_size=8),
    values.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"", b"{}", b"{},{}", b" {} ", b'{"a":NaN}', b'{"a":"\\ud800"}', b"[" * 5000]),
    st.sampled_from([b'{"a":1e400}', b'{"a":NaN,"b":-1e400}', b'{"a":1%s}' % (b"0" * 400)]),
    st.integers(300, 1200).map(lambda deep: b'{"a":%s%s}' % (b"[" * deep, b"]" * deep)),
)


@settings(deadline=None)
@given(st.lists(texts, max_size=6))
def test_each_message_is_a_row_or_unreadable_wherever_it_stands(messages: list) -> None:
    together = decode_messages(messages)
    alone = [decode_messages([message]) for message in messages]
    rows = [decoded.rows[0] for decoded in alone if decoded.rows]
    assert repr(together.rows) == repr(rows)
    assert list(together.numbers) == [n for n, decoded in enumerate(alone) if decoded.rows]
    unreadable = sorted(n for each in together.unreadable for n in each.numbers)
    assert unreadable == [n for n, decoded in enumerate(alone) if not decoded.rows]


@settings(deadline=None)
@given(st.lists(texts, max_size=6))
def test_the_raw_request_of_a_batch_has_its_rows(messages: list) -> None:
    decoded = decode_messages(messages)
    assert list(decoded.texts) == [messages[number] for number in decoded.numbers]
    request, payload = parse_log_body(raw_body("kafka", 'a"b', decoded.texts), 100)
    assert (request.webhook, request.endpoint, len(payload)) == ("kafka", 'a"b', len(decoded.rows))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (None, "has no value"),
        (b"", "not JSON"),
        (b"{},{}", "not JSON"),
        (b"1", "not an object"),
        (b"\xff", "not UTF-8"),
        (b'{"a":"\\ud800"}', "not JSON"),
        (b'{"a":1e400}', "out of range"),
        (b'{"a":%s%s}' % (b"[" * 950, b"]" * 950), "nested too deeply"),
    ],
)
def test_why_a_message_is_no_row(message: bytes | None, reason: str) -> None:
    (unreadable,) = decode_messages([b"{}", message]).unreadable
    assert unreadable.numbers == [1]
    assert reason in unreadable.reason


def test_parts_of_objects_never_become_rows_together() -> None:
    messages = [b'{"a": 1', b'"b": 2}', b"{}, {}"]
    assert [sorted(each.numbers) for each in decode_messages(messages).unreadable] == [[0, 1, 2]]


def test_a_message_that_no_record_can_hold_is_unreadable() -> None:
    large = b'{"a": "' + b"x" * MESSAGE_BYTES + b'"}'
    (unreadable,) = decode_messages([large, b"{}"]).unreadable
    assert unreadable.numbers == [0]
    assert "more than 8 MiB" in unreadable.reason


def test_rows_with_fields_of_their_own_are_several_tables() -> None:
    decoded = decode_messages([b'{"f%d": 1, "same": 2}' % n for n in range(5)])
    assert [len(decoded.rows[part]) for part in decoded.tables(cells=6)] == [2, 2, 1]
    assert [len(decoded.rows[part]) for part in decoded.tables(cells=1)] == [1] * 5
    assert [len(decoded.rows[part]) for part in decoded.tables()] == [5]
    assert list(decode_messages([b"1"]).tables()) == []


def test_a_batch_is_cut_by_rows_and_by_size() -> None:
    messages = batch([b"123456"] * 5, first=10)
    assert [len(part) for part in messages.parts(rows=2)] == [2, 2, 1]
    assert [list(part.offsets) for part in messages.parts(size_bytes=12)] == [
        [10, 11],
        [12, 13],
        [14],
    ]
    assert [len(part) for part in messages.parts(size_bytes=1)] == [1] * 5
    assert list(messages.since(12).offsets) == [12, 13, 14]
    assert messages.since(0) is messages
    assert len(messages.since(99)) == 0


def test_offsets_must_ascend() -> None:
    with pytest.raises(AssertionError):
        MessageBatch(np.array([2, 1]), [b"{}", b"{}"])
