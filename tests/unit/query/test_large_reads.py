"""Which bodies are large, decided without parsing most of those that are not."""

from __future__ import annotations

import pytest

from fennel_core.query.batch_thread import BYTES_IN_LOOP, ROWS_IN_LOOP
from fennel_core.query.large_reads import _is_large
from fennel_core.vocab.errors import ApiError

MANY = b"," * ROWS_IN_LOOP


@pytest.mark.parametrize(
    ("body", "rows", "large", "parsed"),
    [
        (b"x" * (BYTES_IN_LOOP + 1), 1, True, False),
        (MANY[1:], ROWS_IN_LOOP + 1, False, False),
        (MANY, ROWS_IN_LOOP, False, True),
        (MANY, ROWS_IN_LOOP + 1, True, True),
        (MANY, None, False, True),
    ],
)
def test_a_body_is_parsed_only_if_it_may_have_many_rows(
    body: bytes, rows: int | None, large: bool, parsed: bool
) -> None:
    calls = []

    def count() -> int:
        calls.append(1)
        if rows is None:
            raise ApiError(400, "bad-request", "no JSON")
        return rows

    assert (_is_large(body, count), bool(calls)) == (large, parsed)
