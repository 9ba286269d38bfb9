"""Places in a binary log, and the queries of the first read."""

from __future__ import annotations

import pytest

from fennel_core.connections.change_engine import ChangeEngineFailed
from fennel_core.connections.external_binlog import (
    MARIADB,
    BinlogTable,
    TextKey,
    first_read,
    holds,
    losses,
    newest_rows,
    server_id,
)
from fennel_core.connections.external_changes import ChangesLost, KeyColumn
from fennel_core.connections.external_postgres import ExternalColumn, ExternalTable

COLUMNS = tuple(ExternalColumn(n, "int", "bigint", "N", not_null=True) for n in ("a`b", "id", "v"))
ORDERS = BinlogTable(
    ExternalTable("shop", "t", "o", 0, 0, COLUMNS, 0, frozenset(), "id"),
    (KeyColumn("a`b", "varchar"), KeyColumn("id", "bigint")),
    (TextKey("latin1", "latin1_swedish_ci"), None),
    MARIADB,
)


@pytest.mark.parametrize(
    ("gtids", "others", "expected"),
    [
        ("0-1-5", "0-1-5", True),
        ("0-1-4", "0-1-5", False),
        ("0-2-6", "0-1-5", True),
        ("5-77-3,0-1-9", "0-1-9", True),
        ("0-1-9", "5-77-3,0-1-9", False),
        ("0-1-5,0-1-6", "0-1-6", True),
        ("A:1-9", "a:1-9", True),
        ("a:1-5:7-9", "a:1-9", False),
        ("a:1-5,a:6-9", "a:2-8", True),
        ("a:1-5,\nb:1", "b:1,a:4", True),
        ("", "a:1", False),
        ("a:1", "", True),
    ],
)
def test_transactions_hold_others(gtids: str, others: str, expected: bool) -> None:
    assert holds(gtids, others) is expected


def test_the_first_read_goes_on_behind_a_key_by_the_index() -> None:
    assert first_read(ORDERS, None) == (
        "SELECT `a``b`, `id`, `v` FROM `shop`.`t` ORDER BY `a``b`, `id`"
    )
    text = "CONVERT(CONVERT(0xc3a927 USING utf8mb4) USING latin1) COLLATE latin1_swedish_ci"
    where = f"(`a``b` > {text}) OR (`a``b` = {text} AND `id` > -7)"
    assert f" WHERE {where} ORDER BY " in first_read(ORDERS, ("é'", "-7"))
    with pytest.raises(ValueError, match="invalid literal"):
        first_read(ORDERS, ("a", "1 OR 1"))


def test_the_newest_rows_have_the_highest_keys() -> None:
    assert newest_rows(ORDERS, 5).endswith("ORDER BY `a``b` DESC, `id` DESC LIMIT 5")


def test_ids_among_replicas_are_those_of_the_source() -> None:
    assert server_id("a") == server_id("a") != server_id("b")
    assert all(1_000_000_000 <= server_id(str(n)) < 2**32 for n in range(100))


def test_a_log_that_is_gone_is_a_loss() -> None:
    with pytest.raises(ChangesLost, match="--to earliest"), losses():
        raise ChangeEngineFailed("… but this is no longer available on the server.")
    with pytest.raises(ChangeEngineFailed, match="Access denied"), losses():
        raise ChangeEngineFailed("Access denied")
