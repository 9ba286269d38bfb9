"""What a real Debezium delivers of a real Postgres: of which tables, which values, and how long."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from psycopg import sql

from fennel_core.admission.changes import PLACEHOLDERS
from fennel_core.connections.change_engine import ChangeEngine, ChangeEngineFailed
from fennel_core.connections.external_changes import MARKED_ARRAYS, SENT, PostgresLog
from fennel_core.connections.external_postgres import ExternalPostgres
from fennel_core.settings.model import Settings
from fennel_core.sources.change_cursor import ChangeCursor, ChangePlace
from fennel_core.sources.changes import LoggedSource
from fennel_core.sources.positions import SourcePosition
from tests.support.change_log import ROOT, Connection, engine, logging_server, owner, shop

__all__ = ["engine", "logging_server", "owner", "shop"]


@pytest.fixture
def small_engine() -> Iterator[ChangeEngine]:
    found = ChangeEngine(Settings(jars_dir=ROOT / ".fennel" / "jars", change_engine_mib=256))
    yield found
    found.close()


def source_of(shop: ExternalPostgres, name: str, limit: float | None = None) -> LoggedSource:
    log = PostgresLog(shop, name, f"fennel_{uuid.uuid4().hex}")
    return LoggedSource(shop, log, log.describe(), log._base, limit)


def begun_place(source: LoggedSource) -> ChangePlace:
    return source.begin(SourcePosition(0, source.table.table.origin)).at


def streamed(place: ChangePlace) -> ChangePlace:
    """Return the place of changes without a first read."""
    cursor = place.cursor
    return ChangePlace.at(ChangeCursor(cursor.slot, cursor.publication, cursor.lsn))


def rows_until(
    engine: ChangeEngine, source: LoggedSource, place: ChangePlace, count: int
) -> list[dict[str, Any]]:
    """Return the first rows that are delivered; those of a first read as a whole."""
    task = source.started(engine, f"{source.base}-{uuid.uuid4().hex}", place)
    found, ended, until_s = list[bytes](), False, time.monotonic() + 30
    while not ended and (place.is_first or len(found) < count) and time.monotonic() < until_s:
        place, read = source.reading.read(place, task.take())
        found += read.lines
        ended = read.ended
    task.stop()
    return [json.loads(line)["after"] for line in found]


def test_tables_whose_names_differ_in_case_are_two(
    shop: ExternalPostgres, owner: Connection, engine: ChangeEngine
) -> None:
    insert = sql.SQL("INSERT INTO {0} SELECT count(*), {1} FROM {0}")
    for name in ("users", "Users"):
        owner.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY, name text)'.encode())
        owner.execute(insert.format(sql.Identifier(name), name))
    owner.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    sources = {name: source_of(shop, name) for name in ("users", "Users")}
    places = {name: begun_place(source) for name, source in sources.items()}
    for name in (*sources, *reversed(sources)):
        owner.execute(insert.format(sql.Identifier(name), name))
    for name, source in sources.items():
        for place in (places[name], streamed(places[name])):
            rows = rows_until(engine, source, place, 2)
            assert {row["name"] for row in rows} == {name}


VALUES = {
    "smallint": "-5",
    "integer": "7",
    "bigint": "9223372036854775807",
    "numeric": "1.50",
    "real": "1.1",
    "double precision": "0.1234567890123",
    "money": "$1,234.56",
    "oid": "4294967295",
    "text": "a",
    "character varying": "a",
    "character": "a",
    "boolean": "t",
    "uuid": "11111111-1111-1111-1111-111111111111",
    "json": '{"a": 1.0}',
    "jsonb": '{"a": 1.0}',
    "inet": "10.0.0.1/24",
    "cidr": "10.0.0.0/24",
    "macaddr": "08:00:2b:01:02:03",
    "macaddr8": "08:00:2b:01:02:03:04:05",
    "tsvector": "'a':1",
    "date": "1500-01-01",
    "timestamp with time zone": "1969-12-31 23:59:59.999999+00",
    "timestamp without time zone": "1890-01-01 02:30:00.123456",
    "interval": "1 year 2 mons 3 days 04:05:06",
    "time with time zone": "12:34:56+02",
    "time without time zone": "12:34:56",
    "int4range": "[1,5)",
    "int8range": "[1,5)",
    "numrange": "[1.5,2)",
    "daterange": "[2024-01-01,2024-01-05)",
    "tsrange": '["2024-01-01 00:00:00",)',
    "tstzrange": '["2024-01-01 00:00:00+00",)',
}
STYLES = (
    *("intervalstyle = 'sql_standard'", "datestyle = 'German, DMY'", "extra_float_digits = -5"),
    *("timezone = 'America/New_York'", "bytea_output = 'escape'"),
)
EXTENSIONS = {"citext", "ltree", "hstore", "xml"}
"""Types that the server of the tests does not have."""


def test_values_of_each_type_are_sent_by_both_reads_alike(
    shop: ExternalPostgres, owner: Connection, engine: ChangeEngine
) -> None:
    assert VALUES.keys() | EXTENSIONS == SENT
    for setting in STYLES:
        owner.execute(f"ALTER DATABASE {shop.database} SET {setting}".encode())
    columns = ", ".join(f'"{type_}" {type_}' for type_ in VALUES)
    owner.execute(f"CREATE TABLE users (id int PRIMARY KEY, {columns})".encode())
    source = source_of(shop, "users")
    place = begun_place(source)
    marks = ", ".join(f"%s::text::{type_}" for type_ in VALUES)
    owner.execute(f"INSERT INTO users VALUES (1, {marks})".encode(), [*VALUES.values()])  # noqa: S608  # types of ours
    [first] = rows_until(engine, source, place, 1)
    [change] = rows_until(engine, source, streamed(place), 1)
    assert first == change
    assert first.keys() == {"id", *VALUES}
    assert None not in first.values()
    assert first["interval"] == "P1Y2M3DT4H5M6S"
    assert first["double precision"] == 0.1234567890123


def test_large_unchanged_values_that_are_not_marked_are_refused_by_a_commit(
    shop: ExternalPostgres, owner: Connection, engine: ChangeEngine
) -> None:
    arrays = {
        "integer[]": "1", "bigint[]": "1", "text[]": "'a'", "character varying[]": "'a'",
        "json[]": "'{}'", "jsonb[]": "'{}'", "uuid[]": "gen_random_uuid()", "smallint[]": "1",
        "numeric[]": "1.5", "real[]": "1.5", "double precision[]": "1.5", "boolean[]": "true",
    }  # fmt: skip
    columns = ", ".join(f'"{type_}" {type_} STORAGE EXTERNAL' for type_ in arrays)
    owner.execute(f"CREATE TABLE users (id int PRIMARY KEY, age int, {columns})".encode())
    values = ", ".join(f"array_fill({v}::{t[:-2]}, ARRAY[9000])" for t, v in arrays.items())
    owner.execute(f"INSERT INTO users SELECT 1, 1, {values}".encode())
    source = source_of(shop, "users")
    place = streamed(begun_place(source))
    owner.execute("UPDATE users SET age = 2")
    [row] = rows_until(engine, source, place, 1)
    marked = {type_ for type_ in arrays if row[type_] in PLACEHOLDERS}
    assert marked == MARKED_ARRAYS
    assert {type_ for type_ in arrays if row[type_] is None} == arrays.keys() - marked


def filled(shop: ExternalPostgres, owner: Connection, rows: int) -> None:
    owner.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    insert = "INSERT INTO users SELECT n, repeat('x', 500) FROM generate_series(1, %s) n"
    owner.execute(insert, (rows,))


def test_a_reader_with_a_limit_takes_no_more_than_a_step(
    shop: ExternalPostgres, owner: Connection, engine: ChangeEngine
) -> None:
    filled(shop, owner, 50)
    source = source_of(shop, "users", limit=2)
    task, found = source.started(engine, f"{source.base}-0", begun_place(source)), list[str]()
    while len(found) < 50:
        found += (taken := task.take())
        assert len(taken) <= 4
    task.stop()


def test_changes_that_are_not_taken_for_long_are_kept(
    shop: ExternalPostgres, owner: Connection, engine: ChangeEngine
) -> None:
    owner.execute(f"ALTER DATABASE {shop.database} SET wal_sender_timeout = '500ms'".encode())
    filled(shop, owner, 0)
    source = source_of(shop, "users")
    place = streamed(begun_place(source))
    insert = "INSERT INTO users SELECT n, repeat('x', 500) FROM generate_series(1, 60000) n"
    owner.execute(insert)
    task, found = source.started(engine, f"{source.base}-0", place), list[str]()
    while not found:
        found += task.take()
    time.sleep(3)  # the server waits for a sign of its reader
    while len(found) < 60_000:  # more than the engine and the connection hold
        found += task.take()
    task.stop()


def test_large_rows_end_no_engine(
    shop: ExternalPostgres, owner: Connection, small_engine: ChangeEngine
) -> None:
    owner.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    insert = (
        "INSERT INTO users SELECT n, repeat(md5(n::text), %s) FROM generate_series(%s::int, %s) n"
    )
    owner.execute(insert, (10, 1, 200))
    owner.execute(insert, (20_000, 201, 240))
    source = source_of(shop, "users")
    assert len(rows_until(small_engine, source, begun_place(source), 240)) == 240
    owner.execute("TRUNCATE users")
    owner.execute(insert, (1_500_000, 1, 3))
    with pytest.raises(ChangeEngineFailed):
        rows_until(small_engine, source, begun_place(source), 3)
    assert small_engine.is_running()


def test_tasks_that_have_ended_leave_no_threads(
    shop: ExternalPostgres, owner: Connection, small_engine: ChangeEngine
) -> None:
    filled(shop, owner, 10)
    source = source_of(shop, "users")
    place = begun_place(source)

    def threads() -> int:
        return psutil.Process(small_engine._process.pid).num_threads()

    for _ in range(3):
        rows_until(small_engine, source, place, 10)
    before = threads()
    for _ in range(10):
        rows_until(small_engine, source, place, 10)
    assert threads() < before + 5
