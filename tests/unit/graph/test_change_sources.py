"""Which changes of tables are read, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.blueprints.streams import is_scheduled, is_stream, stream_of
from fennel_core.graph.passes.streams import check_stream, reads
from fennel_core.wire.connectors import (
    DEFAULT_EVERY_US,
    Cdc,
    Login,
    MySQL,
    MySQLChanges,
    MySQLTable,
    NamedReference,
    PlainSecret,
    Postgres,
    PostgresChanges,
    PostgresTable,
    SecretRef,
)
from tests.support.commit_graphs import graph
from tests.support.ingest_world import source

DB = Postgres("shop", "db", 5432, "shop", None, Login(PlainSecret("reader"), PlainSecret("")))
CHANGES = PostgresChanges(DB, "orders")
MYSQL = MySQL("shop", "db", 3306, "shop", None, Login(PlainSecret("reader"), PlainSecret("")))
OF_MYSQL = MySQLChanges(MYSQL, "orders")


def problems(**changes: object) -> list[str]:
    dataset = graph("connectors").datasets[0]
    given = {"table": CHANGES, "cdc": Cdc.DEBEZIUM, "every_us": DEFAULT_EVERY_US} | changes
    of = source(dataset.name, **given)
    return [f"{each.code}: {each.text}" for each in check_stream(dataset, of)]


def test_changes_are_read_as_they_come() -> None:
    assert reads(CHANGES)
    assert problems() == []
    assert problems(every_us=None) == []
    assert problems(table=replace(CHANGES, db=NamedReference("shop", "postgres"))) == []


def test_changes_and_rows_of_a_table_are_two_streams() -> None:
    rows = PostgresTable(DB, "orders", None)
    assert is_stream(CHANGES)
    assert not is_scheduled(CHANGES)
    assert is_scheduled(rows)
    assert stream_of(CHANGES).kind == "postgres-changes"
    assert stream_of(CHANGES).name != stream_of(rows).name


def test_changes_of_mysql_are_a_stream_of_their_own() -> None:
    assert reads(OF_MYSQL)
    assert problems(table=OF_MYSQL) == []
    rows = MySQLTable(MYSQL, "orders")
    assert is_stream(OF_MYSQL)
    assert not is_scheduled(OF_MYSQL)
    assert stream_of(OF_MYSQL).kind == "mysql-changes"
    assert stream_of(OF_MYSQL).name != stream_of(rows).name
    assert stream_of(OF_MYSQL).title == "changes of MySQL table `orders`"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cursor": "updated_at"}, "`cursor`, which has no effect: changes have an order"),
        ({"every_us": 60_000_000}, "`every`, which has no effect"),
        ({"timestamp_field": "other"}, "`timestamp_field`"),
        ({"table": OF_MYSQL, "cursor": "at"}, "changes of MySQL table `orders` with `cursor`"),
        (
            {"table": replace(CHANGES, db=replace(DB, host="a,b"))},
            "connector-not-served: Dataset",
        ),
        (
            {
                "table": replace(
                    CHANGES,
                    db=replace(DB, login=Login(PlainSecret("a"), SecretRef("arn", None, ()))),
                )
            },
            "refers to a secret of another store",
        ),
    ],
)
def test_what_has_no_effect_is_refused(changes: dict[str, object], text: str) -> None:
    (problem,) = problems(**changes)
    assert text in problem
