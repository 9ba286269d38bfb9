"""The audit of connector faults sees each way in which a sink can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import polars as pl
import pytest

from tests.chaos.connector_audit import ROW, audited, joined
from tests.chaos.connector_shop import CUSTOMERS, PATHS, rows_of

ORDERS = 300
NOW = datetime(2026, 1, 10, tzinfo=UTC)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    folder, rows = tmp_path_factory.mktemp("rows"), rows_of(1, ORDERS, NOW)
    rows.orders.write_parquet(folder / "orders.parquet")
    rows.customers.write_parquet(folder / "customers.parquet")
    return joined(folder)


def events_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the events of rows that were never corrected."""
    return rows.with_row_index("offset").select(
        *ROW,
        part=pl.lit(0),
        offset=pl.col("offset").cast(pl.Int64),
        op=pl.lit("c"),
        ts=pl.col("at").dt.epoch("us"),
        position=pl.col("oid").cast(pl.String),
        withdrawn_ts=pl.lit(None, pl.Int64),
        withdrawn_position=pl.lit(None, pl.String),
        retraction=pl.lit(value=False),
    )


def corrected(event: pl.DataFrame, tier: int) -> pl.DataFrame:
    """Return an event that replaces the row of another."""
    return event.with_columns(
        op=pl.lit("u"),
        offset=pl.lit(ORDERS, pl.Int64),
        withdrawn_ts="ts",
        withdrawn_position="position",
        tier=pl.lit(tier, pl.Int64),
    )


def test_each_order_is_joined_with_a_customer_of_its_time(expected: pl.DataFrame) -> None:
    rows = rows_of(1, ORDERS, NOW)
    assert expected["oid"].to_list() == list(range(ORDERS))
    assert set(rows.orders["path"]) == set(PATHS)
    for row in expected.to_dicts():
        own = rows.customers.filter(pl.col("uid") == row["uid"], pl.col("at") <= row["at"])
        assert own.sort("at")["tier"][-1] == row["tier"]
    times = pl.concat([rows.orders["at"], rows.customers["at"]])
    assert not times.is_duplicated().any()
    assert rows.customers[:CUSTOMERS]["uid"].to_list() == list(range(CUSTOMERS))


def test_sinks_that_say_the_rows_pass_also_with_corrections(expected: pl.DataFrame) -> None:
    events = events_of(expected)
    assert list(audited("topic", events, expected)) == []
    wrong = events.with_columns(pl.when(pl.col("oid") == 7).then(0).otherwise("tier").alias("tier"))
    again = corrected(events.filter(oid=7), expected["tier"][7])
    assert list(audited("topic", pl.concat([wrong, again]), expected)) == []


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (lambda e: pl.concat([e, e[:1]]), "more than once"),
        (
            lambda e: pl.concat([e, e[:1].with_columns(offset=pl.lit(ORDERS, pl.Int64))]),
            "too often",
        ),
        (lambda e: pl.concat([e, e[:1].with_columns(position=pl.lit("other"))]), "2 repeated"),
        (lambda e: e[1:], "1 missing"),
        (lambda e: pl.concat([e[1:], corrected(e[:1], 3)]), "too often|missing"),
        (lambda e: pl.concat([e, corrected(e[:1], -1)]), "1 that should not be"),
    ],
    ids=["written twice", "committed twice", "entered twice", "lost", "half lost", "stale"],
)
def test_each_fault_of_a_sink_is_named(
    expected: pl.DataFrame, broken: Callable[[pl.DataFrame], pl.DataFrame], text: str
) -> None:
    found = "\n".join(audited("topic", broken(events_of(expected)), expected))
    assert any(each in found for each in text.split("|")), found
