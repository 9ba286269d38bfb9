"""Changes of tables that cannot be read are found before a commit is accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fennel_core.connections.external_changes import KeyColumn, LoggedTable
from fennel_core.connections.external_postgres import ExternalColumn, ExternalTable
from fennel_core.definition import changes_check
from fennel_core.definition.changes_check import AddedChanges, changes_problems, unfit
from fennel_core.definition.external_uses import uses_of
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Int
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.wire.connectors import (
    Cdc,
    Constant,
    FromPayload,
    Login,
    MySQL,
    MySQLChanges,
    PlainSecret,
    Postgres,
    PostgresChanges,
)
from tests.support.ingest_world import KEYED, binding, catalog, source

WORKSPACE, LOGIN = WorkspaceId("w"), Login(PlainSecret("ann"), PlainSecret(""))
# No server listens on the port 1 of this machine.
NOWHERE = PostgresChanges(Postgres("shop", "127.0.0.1", 1, "shop", None, LOGIN), "users")
OF_MYSQL = MySQLChanges(MySQL("shop", "127.0.0.1", 1, "shop", None, LOGIN), "users")


def added(table: PostgresChanges | MySQLChanges = NOWHERE, **changes: object) -> AddedChanges:
    return AddedChanges(source(table=table, cdc=Cdc.DEBEZIUM, **changes), table, KEYED)


def column(name: str, type_: str, category: str) -> ExternalColumn:
    return ExternalColumn(name, type_, type_, category, False)


COLUMNS = (
    column("user", "text", "S"),
    column("age", "integer", "N"),
    column("at", "timestamp with time zone", "D"),
)
USERS = ExternalTable("public", "users", "1/2/3", 3, 4, COLUMNS, 0, frozenset())
TABLE = LoggedTable(USERS, (KeyColumn("user", "text"),), whole=False)


async def found(of: AddedChanges, settings: Settings | None = None, **others: object) -> list[str]:
    catalogs = {BranchName(name): each for name, each in others.items()}
    problems = await changes_problems([of], catalogs, WORKSPACE, None, settings)  # type: ignore[arg-type]  # catalogs
    return [f"{each.code}: {each.text}" for each in problems]


async def test_a_server_that_is_away_is_a_problem() -> None:
    (problem,) = await found(added())
    assert problem.startswith("source-unreachable: Dataset `Users`: connector `shop`")


async def test_branches_agree_on_the_address() -> None:
    elsewhere = replace(NOWHERE, db=replace(NOWHERE.db, port=2))
    of = source(table=elsewhere, cdc=Cdc.DEBEZIUM)
    problems = await found(added(), other=catalog(binding(of=of)))
    assert "connector-redefined" in problems[0]
    assert "`127.0.0.1:1/shop`, and in branch `other` to `127.0.0.1:2/shop`" in problems[0]


async def test_changes_of_mysql_need_jars_that_the_operator_installs(tmp_path: Path) -> None:
    (jars,) = await found(added(OF_MYSQL), Settings(jars_dir=tmp_path))
    assert "source-unreachable: Dataset `Users`: connector `shop`" in jars
    assert "its operator runs `make jars-mysql`" in jars


async def test_what_is_read_already_needs_no_other_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def described(*_: object, is_read: bool) -> LoggedTable:
        asked.append(is_read)
        return TABLE

    monkeypatch.setattr(changes_check, "_described", described)
    of, other = added(), source(table=replace(NOWHERE, table="others"), cdc=Cdc.DEBEZIUM)
    assert await found(of) == []
    assert await found(of, other=catalog(binding(of=other))) == []
    assert await found(of, other=catalog(binding(of=of.source))) == []
    assert await found(replace(of, is_read=True)) == []
    assert asked == [False, False, True, True]
    (again,) = uses_of(catalog(binding(of=of.source))).changes
    assert again.is_read


def test_a_table_whose_key_has_the_keys_of_the_dataset_fits() -> None:
    assert list(unfit(TABLE, added())) == []


def test_keys_that_a_delete_does_not_have_are_a_problem() -> None:
    other = replace(TABLE, key=(KeyColumn("id", "bigint"),))
    (text,) = unfit(other, added())
    assert "REPLICA IDENTITY FULL" in text
    assert list(unfit(replace(other, whole=True), added())) == []
    (computed,) = unfit(TABLE, added(preproc=(("user", Constant(1, Int())),)))
    assert "REPLICA IDENTITY FULL" in computed
    (renamed,) = unfit(TABLE, added(preproc=(("user", FromPayload("login")),)))
    assert "REPLICA IDENTITY FULL" in renamed


def test_a_generated_column_is_a_problem_unless_the_field_is_computed() -> None:
    generated = replace(TABLE, generated=frozenset({"age"}))
    (text,) = unfit(generated, added())
    assert "generated column `age`" in text
    assert list(unfit(generated, added(preproc=(("age", Constant(1, Int())),)))) == []


def with_column(type_: str, category: str) -> LoggedTable:
    columns = (COLUMNS[0], column("age", type_, category), COLUMNS[2])
    return replace(TABLE, table=replace(USERS, columns=columns))


def test_a_large_array_that_is_unchanged_would_be_null() -> None:
    for type_ in ("double precision[]", "numeric[]", "mood[]"):
        of = with_column(type_, "A")
        (text, _) = unfit(of, added())
        assert "would have null instead; run `ALTER TABLE public.users REPLICA" in text
        assert len(list(unfit(replace(of, whole=True), added()))) == 1, "no integer is an array"
        assert list(unfit(of, added(preproc=(("age", Constant(1, Int())),)))) == []
    assert len(list(unfit(with_column("integer[]", "A"), added()))) == 1


def test_a_column_whose_values_are_not_sent_is_a_problem() -> None:
    for type_, category in (("box", "G"), ("pg_lsn", "U"), ("bit varying", "V")):
        of = with_column(type_, category)
        assert "which changes do not have" in next(unfit(of, added()))
        renamed = added(preproc=(("age", FromPayload("user")),))
        assert list(unfit(of, renamed)) == []
    assert "which changes do not have" not in " ".join(unfit(with_column("mood", "E"), added()))
    assert list(unfit(with_column("shop.citext", "S"), added())) == []
