"""Values of a real Postgres arrive in a page as they are; a page that breaks off is an error."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from fennel_core.connections import external_postgres
from fennel_core.connections.external_postgres import ExternalPostgres, ExternalPostgresUnusable
from fennel_core.sources.table_databases import ArrowQuery, PostgresDatabase
from fennel_core.sources.table_reads import OWN
from fennel_core.wire.arrow_json import json_columns
from tests.support.postgres import make_cluster, running
from tests.support.table_reader import Connection, external, owner, shop

__all__ = ["owner", "shop"]

VALUES = {
    "smallint": ("-32768", -32768),
    "integer": ("2147483647", 2**31 - 1),
    "bigint": ("-9223372036854775808", -(2**63)),
    "boolean": ("true", True),
    "double precision": ("0.1", 0.1),
    "real": ("0.1", 0.1),
    "numeric(30, 10)": ("12345678901234567890.0123456789", "12345678901234567890.0123456789"),
    "text": ("''", ""),
    "varchar(3)": ("'é€𝄞'", "é€𝄞"),
    "date": ("'2024-02-29'", "2024-02-29"),
    "timestamptz": ("'2024-02-29 12:00:00.123456+02'", "2024-02-29T10:00:00.123456+00:00"),
    "timestamp": ("'0001-01-01 00:00:00'", "0001-01-01T00:00:00.000000+00:00"),
    "uuid": ("'00000000-0000-0000-0000-00000000000a'", "00000000-0000-0000-0000-00000000000a"),
    "jsonb": ("""'{"a": [1]}'""", '{"a": [1]}'),
    "bigint[]": ("'{1,NULL,3}'", [1, None, 3]),
    "smallint[]": ("'[5:6]={7,8}'", [7, 8]),
    "text[]": ("""'{a,NULL,"b,c",""}'""", ["a", None, "b,c", ""]),
    "real[]": ("'{0.1,NaN}'", [0.1, None]),
    "numeric[]": ("'{12345678901234567890.123}'", ["12345678901234567890.123"]),
    "interval": ("'1 day 2 hours'", "1 day 02:00:00"),
    "money": ("12.5", "$12.50"),
    "boolean[]": ("'{true,NULL}'", [True, None]),
    "date[]": ("'{}'", []),
}
FAILING = "SELECT g, repeat('x', 1000) AS t, 1 / (200000 - g) AS q FROM large"


def page(shop: ExternalPostgres, table: str) -> Iterator[pa.RecordBatch]:
    """Yield the first page of a table, as a task reads it."""
    database = PostgresDatabase(shop)
    with database.connect() as connection:
        read = database.begun(connection, table, "id", 0)
    reading = database.reading(database.page_query(read, None, 1000))
    assert isinstance(reading, ArrowQuery)
    return reading.batches()


def carried(shop: ExternalPostgres, table: str) -> dict[str, list[Any]]:
    """Return the columns of a table as a raw request has them."""
    rows = pa.Table.from_batches(page(shop, table)).combine_chunks().to_batches()[0]
    return json_columns(rows.drop_columns(list(OWN)))


def make_values(owner: Connection) -> None:
    """Make a table with a column for each type: a row of values, and one of nulls."""
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(f"c{n}"), sql.SQL(kind))  # type: ignore[arg-type]  # a constant of this module
        for n, kind in enumerate(VALUES)
    ]
    values = [sql.SQL(text) for text, _ in VALUES.values()]  # type: ignore[arg-type]  # as above
    owner.execute(
        sql.SQL("CREATE TABLE kinds (id bigint PRIMARY KEY, {})").format(
            sql.SQL(", ").join(columns)
        )
    )
    owner.execute(sql.SQL("INSERT INTO kinds VALUES (1, {})").format(sql.SQL(", ").join(values)))
    owner.execute("INSERT INTO kinds VALUES (2)")


def test_a_page_has_the_values_of_each_type(shop: ExternalPostgres, owner: Connection) -> None:
    make_values(owner)
    found = carried(shop, "kinds")
    assert found.pop("id") == [1, 2]
    expected = [[value, None] for _, value in VALUES.values()]
    assert dict(zip(VALUES, found.values(), strict=True)) == dict(
        zip(VALUES, expected, strict=True)
    )


def test_what_is_no_time_or_number_is_null(shop: ExternalPostgres, owner: Connection) -> None:
    owner.execute(
        "CREATE TABLE kinds AS SELECT 1::bigint AS id, 'infinity'::date AS day, "
        "'-infinity'::timestamptz AS at, 'NaN'::numeric AS price, 'NaN'::real AS weight"
    )
    assert carried(shop, "kinds") == {
        "id": [1],
        "day": [None],
        "at": [None],
        "price": [None],
        "weight": [None],
    }


def test_settings_of_a_database_change_no_values(shop: ExternalPostgres, owner: Connection) -> None:
    """Those of a user have the same rank: below what a connection asks for."""
    make_values(owner)
    expected = carried(shop, "kinds")
    settings = {
        "datestyle": "SQL, DMY",
        "intervalstyle": "sql_standard",
        "extra_float_digits": "-15",
        "lc_monetary": "C.utf8",
        "quote_all_identifiers": "on",
        "timezone": "Asia/Tokyo",
    }
    for name, value in settings.items():
        owner.execute(
            sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                sql.Identifier(shop.database), sql.Identifier(name), sql.Literal(value)
            )
        )
    assert carried(shop, "kinds") == expected


def test_text_of_another_encoding_is_read(shop: ExternalPostgres, owner: Connection) -> None:
    name = sql.Identifier("latin")
    owner.execute(
        sql.SQL("CREATE DATABASE {} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'").format(name)
    )
    latin = replace(shop, database="latin")
    try:
        with psycopg.connect(
            host=shop.host, port=shop.port, dbname="latin", user=shop.user, autocommit=True
        ) as connection:
            connection.execute("CREATE TABLE names (id bigint PRIMARY KEY, name text)")
            connection.execute("INSERT INTO names VALUES (1, chr(233))")
        assert carried(latin, "names")["name"] == ["é"]
    finally:
        owner.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def test_an_array_of_several_dimensions_is_refused_by_name(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE grids (id bigint PRIMARY KEY, grid integer[])")
    owner.execute("INSERT INTO grids VALUES (1, '{1,2}'), (2, '{{1,2},{3,4}}')")
    with pytest.raises(ExternalPostgresUnusable, match="column grid has an array of several dim"):
        list(page(shop, "grids"))


def test_a_page_that_breaks_off_is_an_error_and_no_end(
    shop: ExternalPostgres, owner: Connection
) -> None:
    """Rows that have arrived are rows; that others are missing must not look like their end."""
    owner.execute("CREATE TABLE large AS SELECT g FROM generate_series(1, 200000) g")
    seen: list[pa.RecordBatch] = []
    with pytest.raises(ExternalPostgresUnusable, match="division by zero"):
        seen.extend(shop.batches(FAILING, 1 << 20))
    assert 0 < sum(batch.num_rows for batch in seen) < 200_000

    batches = ArrowQuery(shop, "SELECT g, repeat('x', 1000) AS t FROM large").batches()
    assert next(batches).num_rows
    owner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE query ILIKE 'copy%' AND datname = current_database()"
    )
    with pytest.raises(ExternalPostgresUnusable, match=r"terminating|closed the connection"):
        seen.extend(batches)


def test_a_server_that_does_not_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own limit of a statement needs a process that runs, and its kernel is alive."""
    monkeypatch.setattr(external_postgres, "CONNECT_S", 1)
    make_cluster(tmp_path / "data")
    with (
        running(tmp_path / "data") as dsn,  # of this test, as it is stopped
        pytest.raises(ExternalPostgresUnusable, match="the server does not answer"),
        external(dsn).connect(100) as connection,
        stopped(connection.info.backend_pid),
    ):
        connection.execute("SELECT 1")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the process of a connection meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("rows", [1, 10, 10_000])
def test_batches_have_at_most_so_many_rows_and_bytes(
    shop: ExternalPostgres, owner: Connection, rows: int
) -> None:
    owner.execute("CREATE TABLE large AS SELECT g FROM generate_series(1, 1000) g")
    query = ArrowQuery(shop, "SELECT g, repeat('x', 100) AS t FROM large ORDER BY g")
    found = list(query.batches(rows, 20_000))
    assert max(batch.num_rows for batch in found) <= rows
    assert max(batch.nbytes for batch in found) <= 22_000
    assert pa.Table.from_batches(found).column("g").to_pylist() == list(range(1, 1001))
    assert len(found) <= 1000 // min(rows, 130) + 10, "no batch is smaller than it has to be"
