"""Tables that cannot be read, or not into their datasets, are found before a commit is accepted."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fennel_core.connections.external_postgres import ExternalColumn, ExternalTable
from fennel_core.definition import table_check
from fennel_core.definition.table_check import AddedTable, added_tables, fits, table_problems, unfit
from fennel_core.graph.entity_graph import Graph
from fennel_core.settings.model import Settings
from fennel_core.vocab import dtypes
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import (
    Constant,
    Login,
    MySQL,
    MySQLTable,
    PlainSecret,
    Postgres,
    PostgresTable,
)
from tests.support.ingest_world import KEYED, binding, catalog, source

WORKSPACE = WorkspaceId("w")
# No server listens on the port 1 of this machine.
NOWHERE = Postgres("shop", "127.0.0.1", 1, "shop", None, Login(PlainSecret("ann"), None))


def read(cursor: str = "at", db: Postgres = NOWHERE):
    return source(table=PostgresTable(db, "users", None), cursor=cursor)


def added(of=None) -> AddedTable:
    of = of or read()
    return AddedTable(of, of.table, KEYED, (of,))


def column(name: str, type_: str, category: str = "N") -> ExternalColumn:
    return ExternalColumn(name, type_, type_, category, False)


def table(*columns: ExternalColumn, rows: int = 0) -> ExternalTable:
    return ExternalTable("public", "users", "1/2/3", 3, 4, columns, rows, frozenset())


GOOD = (
    column("user", "text", "S"),
    column("age", "integer"),
    column("at", "timestamp with time zone", "D"),
)


async def test_a_database_that_does_not_respond_is_named_with_its_dataset() -> None:
    (problem,) = await table_problems([added()], {}, WORKSPACE, None)
    assert (problem.code, problem.entity) == ("source-unreachable", "Users")
    assert "connector `shop`" in problem.text


async def test_databases_that_hang_keep_no_thread_that_commits_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    over = threading.Event()

    def hanging(*_: object) -> list[Problem]:
        asked.append(threading.current_thread().name)
        over.wait(30)
        return []

    monkeypatch.setattr(table_check, "_unreadable", hanging)
    monkeypatch.setattr("fennel_core.definition.external_checks.answers.__defaults__", (0.2,))
    other = replace(NOWHERE, name="bank")
    of = [added(), added(), added(read(db=other))]
    try:
        problems = await table_problems(of, {}, WORKSPACE, None)
        assert await asyncio.to_thread(lambda: True)
    finally:
        over.set()
    assert [problem.code for problem in problems] == ["source-unreachable"] * 3
    assert "table `users` of connector `bank` was not checked in" in problems[-1].text
    assert len(asked) == 2, "the tables of a database are asked one after the other"
    assert all(name.startswith("external-check") for name in asked)


async def test_sources_of_a_table_must_agree_on_address_and_cursor() -> None:
    other = catalog(replace(binding(), source=read("id")))
    problems = await table_problems([added()], {BranchName("main"): other}, WORKSPACE, None)
    assert [problem.code for problem in problems] == ["connector-redefined", "source-unreachable"]
    assert "by `at`, and in branch `main` at 127.0.0.1:1/shop by `id`" in problems[0].text
    beside = replace(added(), beside=(read(), read("id")))
    (first, _) = await table_problems([beside], {}, WORKSPACE, None)
    assert "in this commit" in first.text


async def test_parameters_that_are_not_used_are_refused() -> None:
    db = replace(NOWHERE, jdbc_params=PlainSecret("ssl=true"))
    (problem,) = await table_problems([added(read(db=db))], {}, WORKSPACE, None)
    assert "sslmode=disable" in problem.text
    assert "ssl=true" not in problem.text


MYSQL = MySQL("shop", "127.0.0.1", 1, "shop", None, Login(PlainSecret("ann"), PlainSecret("x")))


def of_mysql(db: MySQL = MYSQL):
    return source(table=MySQLTable(db, "users"), cursor="at")


async def test_a_table_of_mysql_needs_the_driver_and_its_own_parameters(tmp_path: Path) -> None:
    without = Settings(jars_dir=tmp_path)
    (problem,) = await table_problems([added(of_mysql())], {}, WORKSPACE, None, without)
    assert problem.code == "source-unreachable"
    assert "its operator runs `make jars-mysql`" in problem.text
    (problem,) = await table_problems([added(of_mysql())], {}, WORKSPACE, None)
    assert "connector `shop`: database `shop` at 127.0.0.1:1 cannot be read" in problem.text
    db = replace(MYSQL, jdbc_params=PlainSecret("sslmode=require"))
    (problem,) = await table_problems([added(of_mysql(db))], {}, WORKSPACE, None)
    assert "it uses sslMode=disable|trust|verify-full" in problem.text


@pytest.mark.parametrize("type_", ["timestamp without time zone", "bigint", "date"])
def test_only_a_time_with_a_zone_is_a_cursor_of_mysql(type_: str) -> None:
    assert list(unfit(table(*GOOD), of_mysql(), KEYED)) == []
    columns = (*GOOD[:2], ExternalColumn("at", "datetime(6)", type_, "D", True))
    found = next(unfit(table(*columns), of_mysql(), KEYED))
    assert found.startswith("MySQL table `public.users` has the cursor `at` of type datetime(6)")
    assert "use a TIMESTAMP that the server sets" in found


def test_only_tables_that_the_branch_does_not_have_are_checked() -> None:
    assert added_tables(Graph(sources=(read(),)), (read(),)) == []


def test_a_table_whose_columns_fit_has_no_problem() -> None:
    assert list(unfit(table(*GOOD), read(), KEYED)) == []


def test_a_large_table_needs_an_index_on_its_cursor() -> None:
    (found,) = unfit(table(*GOOD, rows=100_001), read(), KEYED)
    assert 'CREATE INDEX CONCURRENTLY ON "public"."users" ("at")' in found


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (GOOD[1:], "no column `user`"),
        (GOOD[:2], "no column `at`, which is its cursor"),
        ((*GOOD[:2], column("at", "text", "S")), "cursor `at` of type text"),
        ((GOOD[0], column("age", "boolean", "B"), GOOD[2]), "`age` of type boolean"),
        ((GOOD[0], column("age", "integer[]", "A"), GOOD[2]), r"`age` of type integer\[\]"),
        ((column("user", "bytea", "U"), *GOOD[1:]), "which is not served"),
        ((column("user", "bigint"), *GOOD[1:]), "`user` of type bigint"),
        ((*GOOD, column("__fennel_value", "integer")), "are the platform's"),
    ],
)
def test_what_does_not_fit_is_named(columns: tuple[ExternalColumn, ...], text: str) -> None:
    found = list(unfit(table(*columns), read(), KEYED))
    assert any(re.search(text, each) for each in found), found


def test_a_field_that_preproc_makes_needs_no_column_and_an_optional_one_may_be_missing() -> None:
    made = replace(read(), preproc=(("user", Constant("x", dtypes.Str())),))
    assert list(unfit(table(*GOOD[1:]), made, KEYED)) == []
    optional = Schema((), (dtypes.Field("note", dtypes.Optional(dtypes.Str())),), "at")
    assert list(unfit(table(GOOD[2]), read(), optional)) == []


def test_lists_come_from_arrays_and_json_is_text() -> None:
    listed, json = column("a", "bigint[]", "A"), column("a", "jsonb", "U")
    assert fits(listed, dtypes.List(dtypes.Int()))
    assert not fits(listed, dtypes.Str())
    assert fits(json, dtypes.Str())
    assert not fits(json, dtypes.Map(dtypes.Int()))
