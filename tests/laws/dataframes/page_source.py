"""The data source of docs/dataframes.md: its datasets, in memory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fennel_core.dataframes.datasource import FilteringDataSource, OpenedRead
from fennel_core.dataframes.planning import ReadPlan, read_of
from fennel_core.dataframes.read_request import ReadRequest
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Field
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.laws.dataframes.stores import topic_of
from tests.support.histories import Change, History

WEEK_US = 7 * 86_400 * 1_000_000
USER_ID = Field("user_id", dtypes.Int())
USERS = Schema((USER_ID,), (Field("country", dtypes.Str()),), "at")
ORDERS = Schema((), (USER_ID, Field("amount", dtypes.Float())), "at")
SPEND = AggregateSpec(
    ORDERS,
    ("user_id",),
    (
        wire.Count("orders", wire.Forever(), None, False, False, False),
        wire.Sum("spent_7d", wire.Sliding(WEEK_US), "amount"),
    ),
    None,
    True,
    Schema((USER_ID,), (Field("orders", dtypes.Int()), Field("spent_7d", dtypes.Float())), "at"),
)
COMMENTS = {"country": "Where the account was opened, ISO 3166."}


def _changes(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> History:
    changes = []
    for number, (*values, month, day) in enumerate(rows):
        at = int(datetime(2026, month, day, tzinfo=UTC).timestamp()) * 1_000_000
        row = dict(zip(names, values, strict=True))
        position = b"\x01" + number.to_bytes(13, "big")
        removed = {"__tombstone": None in values, "__pos": position}
        changes.append(Change(0, 1, {**row, "at": at, **removed}))
    return History([[change] for change in changes])


USER_ROWS = _changes(
    ("user_id", "country"),
    [(1, "FR", 1, 1), (3, "IT", 1, 20), (2, "FR", 2, 1), (3, None, 2, 20), (1, "DE", 3, 1)],
)
ORDER_ROWS = _changes(
    ("user_id", "amount"), [(1, 30.0, 2, 1), (2, 7.5, 2, 2), (1, 10.0, 3, 1), (1, 20.0, 3, 4)]
)


class PageDataSource(FilteringDataSource):
    """`spark.read.format("fennel")` without a platform."""

    def opened(self, request: ReadRequest) -> OpenedRead:
        history, schema, keys, aggregate = {
            "User": (USER_ROWS, USERS, USERS.key_names, None),
            "Order": (ORDER_ROWS, ORDERS, (), None),
            "UserSpend": (ORDER_ROWS, ORDERS, SPEND.keys, SPEND),
        }[request.dataset]
        store, topic = topic_of(history, schema, keys, [1, 1])
        read = read_of(schema, aggregate, request, ())
        return OpenedRead(ReadPlan(read, topic, COMMENTS), store)
