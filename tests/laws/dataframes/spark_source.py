"""A data source for tests of Spark: one keyed dataset in memory, read as those of the platform."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from fennel_core.dataframes.datasource import FilteringDataSource, OpenedRead
from fennel_core.dataframes.planning import ReadPlan, read_of
from fennel_core.dataframes.read_request import ReadRequest
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Field, Optional
from fennel_core.vocab.schema import Schema
from tests.laws.dataframes.stores import topic_of
from tests.support.histories import Change, History

SCHEMA = Schema(
    (Field("name", dtypes.Str()), Field("day", dtypes.Date())),
    (
        Field("score", Optional(dtypes.Float())),
        Field("price", dtypes.Decimal(2)),
        Field("member", Optional(dtypes.Bool())),
        Field("visits", dtypes.Int()),
    ),
    "at",
)
COMMENTS = {"name": "The name in the passport.", "score": "Higher is better."}
DAYS = [date(2026, 1, day) for day in (1, 2)]


def _row(number: int) -> dict[str, Any]:
    return {
        "name": ["ada", "Åse", "bob"][number % 3],
        "day": DAYS[number % 2],
        "score": [None, 0.5, -1.0, float("nan")][number % 4],
        "price": Decimal(number % 5) / 4,
        "member": [True, False, None][number % 3],
        "visits": number,
        "at": number * 1_000_000,
        "__tombstone": False,
        "__pos": b"\x01" + number.to_bytes(13, "big"),
    }


VERSIONS = [_row(number) for number in range(40)]
VERSIONS_OF_KEY = {(row["name"], row["day"]): row for row in VERSIONS}


def rows() -> list[tuple[Any, ...]]:
    """Return the dataset: the last version of each key."""
    return [
        tuple(
            datetime.fromtimestamp(row["at"] // 1_000_000, UTC) if name == "at" else row[name]
            for name in SCHEMA.names
        )
        for row in VERSIONS_OF_KEY.values()
    ]


class MemoryDataSource(FilteringDataSource):
    """`spark.read.format("memory")`."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def opened(self, request: ReadRequest) -> OpenedRead:
        batches = [VERSIONS[begin : begin + 8] for begin in range(0, 40, 8)]
        history = History([[Change(0, 1, row) for row in batch] for batch in batches])
        store, topic = topic_of(history, SCHEMA, SCHEMA.key_names, [1, 2])
        read = read_of(SCHEMA, None, request, ())
        return OpenedRead(ReadPlan(read, topic, COMMENTS), store)
