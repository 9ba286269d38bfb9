"""Changes of a database table, as Debezium writes them, and the table at their end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

SECOND_US = 10**6
START_US = 1_700_000_000 * SECOND_US
CLOCK_AHEAD_US = 3 * SECOND_US
"""Rows are stamped by a clock that is ahead of the database's."""
ROW_SCHEMA = [
    {"field": "user", "type": "string"},
    {"field": "age", "type": "int64"},
    {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
]
EVENT_SCHEMA = {
    "type": "struct",
    "fields": [
        {"field": "before", "type": "struct", "fields": ROW_SCHEMA},
        {"field": "after", "type": "struct", "fields": ROW_SCHEMA},
        {"field": "op", "type": "string"},
    ],
}


@dataclass(frozen=True)
class Change:
    """A row is put (`age`) or deleted (None). `whole`: `before` has every column."""

    user: str
    age: int | None
    wrapped: bool
    whole: bool


@st.composite
def changes(draw, max_size: int = 12) -> list[Change]:
    each = st.builds(
        Change,
        st.sampled_from("abc"),
        st.one_of(st.none(), st.integers(0, 9), st.integers(0, 9)),
        st.booleans(),
        st.booleans(),
    )
    return draw(st.lists(each, min_size=1, max_size=max_size))


def table_and_events(
    history: Sequence[Change], snapshot: int = 0
) -> tuple[dict[str, int], list[bytes | None]]:
    """Return the table after `history`, and the messages; `snapshot` changes were before it."""
    table: dict[str, dict] = {}
    events: list[bytes | None] = []
    for number, change in enumerate(history):
        made_us = START_US + number * SECOND_US
        if number == snapshot:
            events += [event("r", None, row, made_us) for row in table.values()]
        old = table.pop(change.user, None)
        if change.age is not None:
            at = made_us + CLOCK_AHEAD_US
            table[change.user] = {"user": change.user, "age": change.age, "at": at}
        if number < snapshot:
            continue
        before = old if old is None or change.whole else {"user": change.user, "age": 0, "at": 0}
        if change.age is not None:
            op = "c" if old is None else "u"
            events.append(event(op, before, table[change.user], made_us, wrapped=change.wrapped))
        elif old is not None:
            # Without the row's time a delete follows it if the database's clock does.
            made = made_us if change.whole else old["at"] + 1
            events.append(event("d", before, None, made, wrapped=change.wrapped))
            events.append(None)
    if snapshot >= len(history):
        end_us = START_US + len(history) * SECOND_US
        events += [event("r", None, row, end_us) for row in table.values()]
    return {user: row["age"] for user, row in table.items()}, events


def event(
    op: str, before: dict | None, after: dict | None, made_us: int, *, wrapped: bool = False
) -> bytes:
    payload = {
        "before": before,
        "after": after,
        "op": op,
        "source": {"ts_ms": made_us // 1000, "ts_us": made_us},
        "ts_ms": made_us // 1000 + 5,
    }
    return json.dumps({"schema": EVENT_SCHEMA, "payload": payload} if wrapped else payload).encode()
