"""What tables looked like in a binary log, and which statements end the reading."""

from __future__ import annotations

import pytest

from fennel_core.connections.external_binlog import NotedSchema
from fennel_core.connections.external_changes import ChangesLost
from fennel_core.sources.binlog_schema import (
    TABLES,
    DatabaseSchema,
    SchemaChange,
    Statement,
    after_statement,
    history_of,
    noted_schema,
    packed,
    unpacked,
)

NOTED = NotedSchema("t", 2, "CREATE TABLE `t` (…)", "SET …", "CREATE DATABASE …")
BEGUN = noted_schema(NOTED)


def table(columns: int) -> dict[str, object]:
    names = [{"name": f"c{n}"} for n in range(columns)]
    return {"columns": names, "defaultCharsetName": "utf8mb4"}


def altered(name: str, columns: int = 3, type_: str = "ALTER") -> SchemaChange:
    return SchemaChange(type_, f'"shop"."{name}"', None if type_ == "DROP" else table(columns))


def after(schema: DatabaseSchema, text: str, *changes: SchemaChange) -> DatabaseSchema:
    return after_statement(schema, Statement(text, changes, "shop"), "shop", "t")


def names(schema: DatabaseSchema) -> list[str]:
    return [each.name for each in schema.tables]


def test_the_history_begins_with_the_table_as_it_was_seen() -> None:
    assert list(history_of(BEGUN, "shop")) == [
        ("", "SET …", []),
        ("shop", "CREATE DATABASE …", []),
        ("shop", "CREATE TABLE `t` (…)", []),
    ]
    assert unpacked(packed(BEGUN)) == BEGUN


def test_behind_a_statement_the_history_is_what_the_engine_said() -> None:
    schema = after(BEGUN, "ALTER TABLE t ADD COLUMN c INT", altered("t"))
    *_, last = history_of(unpacked(packed(schema)), "shop")
    assert last == ("shop", "", [{"type": "CREATE", "id": '"shop"."t"', "table": table(3)}])


def test_tables_are_swapped_by_their_names() -> None:
    schema = after(BEGUN, "CREATE TABLE _t_new LIKE t", altered("_t_new", 2, "CREATE"))
    schema = after(schema, "ALTER TABLE _t_new ADD COLUMN q INT", altered("_t_new"))
    schema = after(schema, "RENAME TABLE t TO _t_old", altered("_t_old", 2))
    schema = after(schema, "RENAME TABLE `_t_new` TO `t`", altered("t"))
    assert names(schema) == ["t", "_t_old"]
    schema = after(schema, "DROP TABLE _t_old", altered("_t_old", type_="DROP"))
    assert [(each.name, each.columns) for each in schema.tables] == [("t", 3)]


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t RENAME TO u",
        "alter online table `shop`.`t` rename u",
        "/* a comment */ RENAME TABLE IF EXISTS t TO u",
        "/*!50000 ALTER */ TABLE t RENAME u",
    ],
)
def test_a_table_that_has_another_name_is_not_known_by_the_old_one(text: str) -> None:
    assert names(after(BEGUN, text, altered("u", 2))) == ["u"]


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("DROP TABLE t", [altered("t", type_="DROP")], "was dropped or replaced"),
        ("CREATE TABLE t (id INT)", [altered("t", 1, "CREATE")], "was dropped or replaced"),
        ("DROP DATABASE shop", [], "database `shop` was dropped"),
        ("CREATE OR REPLACE TABLE t (id INT)", [], "may have changed table `t`"),
        ("CREATE /*!OR REPLACE*/ TABLE t (id INT)", [], "may have changed table `t`"),
        ("SET STATEMENT a=1 FOR CREATE OR REPLACE TABLE t (id INT)", [], "may have changed"),
        ("RENAME TABLE before TO t", [], "may have changed table `t`"),
        ("ALTER TABLE x RENAME t", [], "may have changed table `t`"),
        ("ALTER TABLE t CHANGE a b INT, CHANGE b a INT", [altered("t", 1)], "lost a column"),
    ],
)
def test_a_table_that_is_another_one_ends_the_reading(
    text: str, changes: list[SchemaChange], words: str
) -> None:
    with pytest.raises(ChangesLost, match=words) as lost:
        after(BEGUN, text, *changes)
    assert "source rewind NAME --to earliest" in str(lost.value)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE UNIQUE INDEX i ON t (a)",
        "DROP INDEX i ON t",
        "CREATE OR REPLACE ALGORITHM=MERGE VIEW v AS SELECT * FROM t",
        "CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 1",
        "CREATE PROCEDURE p() BEGIN CREATE TABLE t (i INT); END",
        "CREATE TABLE IF NOT EXISTS t (id INT)",
        "GRANT SELECT ON t TO someone",
        "OPTIMIZE TABLE t",
        "CREATE TABLE other (i INT)",
        "ALTER TABLE t_other ADD COLUMN i INT -- beside t",
    ],
)
def test_statements_that_leave_the_columns_alone_are_passed_over(text: str) -> None:
    assert after(BEGUN, text) == BEGUN


UNKNOWN = "does not know what"
CHARSET = "does not follow a character set of table `t`"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ALTER TABLE t CHARACTER SET latin1", CHARSET),
        ("ALTER TABLE t ENGINE=InnoDB DEFAULT CHARSET=latin1", CHARSET),
        ("ALTER TABLE t COLLATE = 'latin1_swedish_ci', ADD c TEXT", CHARSET),
        ("ALTER TABLE t ADD c VARCHAR(9) DEFAULT 'x' COLLATE latin1_bin", CHARSET),
        ("ALTER TABLE t ADD COLUMN IF NOT EXISTS C1 INT FIRST", "may have been there"),
        ("ALTER TABLE t ADD IF NOT EXISTS (c INT, c1 INT)", "may have been there"),
        ("ALTER TABLE x RENAME t", UNKNOWN),
        ("SET STATEMENT a=1 FOR ALTER TABLE x RENAME t", UNKNOWN),
        ("RENAME TABLE other.x TO t", UNKNOWN),
    ],
)
def test_a_table_of_which_the_engine_says_what_is_not_so_ends_the_reading(
    text: str, words: str
) -> None:
    schema = after(BEGUN, "ALTER TABLE t ADD COLUMN c INT", altered("t"))
    with pytest.raises(ChangesLost, match=words):
        after(schema, text, altered("t", 4))


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, ADD d TEXT",
        "ALTER TABLE t DEFAULT CHARSET=utf8",
        "ALTER TABLE t ADD d VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin DEFAULT ''",
        "ALTER TABLE t ADD d VARCHAR(9) COLLATE 'utf8mb4_unicode_ci'",
        "ALTER TABLE t ADD d VARCHAR(9) DEFAULT '' COLLATE uca1400_ai_ci",
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS d INT",
        "CREATE INDEX i ON t (c1)",
    ],
)
def test_a_table_of_which_the_engine_says_what_is_so_is_known(text: str) -> None:
    schema = after(BEGUN, "ALTER TABLE t ADD COLUMN c INT", altered("t"))
    assert after(schema, text, altered("t", 4)).tables[0].columns == 4


def test_a_column_that_is_there_and_stays_as_it_was_is_no_other_one() -> None:
    text = "ALTER TABLE t ADD COLUMN IF NOT EXISTS c1 INT"
    schema = after(BEGUN, "ALTER TABLE t ADD COLUMN c INT", altered("t"))
    assert after(schema, text, altered("t")) == schema
    begun = noted_schema(NotedSchema("t", 1, "CREATE TABLE `t` (\n  `c1` int", "", ""))
    with pytest.raises(ChangesLost, match="may have been there"):
        after(begun, text, altered("t"))


@pytest.mark.parametrize(
    "statements",
    [
        [("CREATE OR REPLACE TABLE x (i INT)", None)],
        [("CREATE TABLE IF NOT EXISTS x LIKE t", "CREATE")],
        [("ALTER TABLE x COLLATE latin1_bin", "ALTER")],
        [("ALTER TABLE x CHANGE a b INT, CHANGE b a INT", "ALTER")],
    ],
)
def test_another_table_that_may_be_other_than_the_engine_says_is_forgotten(
    statements: list[tuple[str, str | None]],
) -> None:
    schema = after(BEGUN, "CREATE TABLE x (a INT, b INT)", altered("x", 2, "CREATE"))
    assert names(schema) == ["t", "x"]
    for text, type_ in statements:
        schema = after(schema, text, *([] if type_ is None else [altered("x", 1, type_)]))
    assert names(schema) == ["t"]
    for text, name in (
        ("CREATE TABLE y LIKE x", altered("y", 2, "CREATE")),
        ("ALTER TABLE x ADD COLUMN c INT", altered("x", 3)),
        ("RENAME TABLE x TO z", altered("z", 3)),
    ):
        schema = after(schema, text, name)
        assert names(schema) == ["t"]
    with pytest.raises(ChangesLost, match=UNKNOWN):
        after(after(schema, "RENAME TABLE t TO o", altered("o", 2)), "RENAME TABLE z TO t", MADE)


MADE = altered("t")


def test_tables_have_the_character_set_of_their_database() -> None:
    def made(schema: DatabaseSchema, text: str) -> list[str]:
        return names(after(schema, text, altered("x", 2, "CREATE")))

    schema = after(BEGUN, "ALTER DATABASE shop COLLATE latin1_bin")
    assert schema.database == "CREATE DATABASE `shop` CHARSET latin1"
    # The engine says utf8mb4.
    assert made(schema, "CREATE TABLE x (a TEXT, b INT)") == ["t"]
    assert made(schema, "CREATE TABLE x (a TEXT, b INT) DEFAULT CHARSET=utf8mb4") == ["t", "x"]
    assert made(schema, "CREATE TABLE x (a TEXT, b INT) COLLATE=latin1_bin") == ["t"]
    assert after(schema, "ALTER DATABASE shop READ ONLY = 1") == schema


def test_statements_of_other_databases_count_if_they_may_be_about_ours() -> None:
    def other(text: str, *changes: SchemaChange) -> DatabaseSchema:
        return after_statement(BEGUN, Statement(text, changes, "other"), "shop", "t")

    for text in (
        "CREATE TABLE t (i INET6)",
        "ALTER TABLE shops.t ADD i INET6",
        "DROP DATABASE `shop-2`",
        "GRANT SELECT ON shop.t TO someone",
    ):
        assert other(text) == BEGUN
    there = SchemaChange("CREATE", '"other"."x"', table(1))
    assert other("CREATE TABLE x LIKE shop.t", there) == BEGUN
    with pytest.raises(ChangesLost, match="may have changed table `t`"):
        other("ALTER TABLE shop.t ADD i INET6")


def test_a_column_may_be_dropped() -> None:
    schema = after(BEGUN, "ALTER TABLE t DROP COLUMN a", altered("t", 1))
    assert schema.tables[0].columns == 1


def test_the_oldest_of_many_tables_are_forgotten() -> None:
    schema = BEGUN
    for n in range(TABLES + 5):
        schema = after(schema, f"CREATE TABLE x{n} (i INT)", altered(f"x{n}", 1, "CREATE"))
    assert names(schema) == ["t", *(f"x{n}" for n in range(5, TABLES + 5))]
    with pytest.raises(ChangesLost, match="may have changed table `t`"):
        after(schema, "RENAME TABLE x0 TO t")
