"""How Spark's driver is told to reach a database of MySQL or MariaDB."""

from __future__ import annotations

import pytest

from fennel_core.connections.external_mysql import ExternalMySQL


@pytest.mark.parametrize("name", ["shop", "a+b", "a%20b", "a?b", "a/b", "ä"])
def test_the_name_of_a_database_is_no_part_of_the_address(name: str) -> None:
    """The driver takes it as it is written there, and each query names it."""
    options = ExternalMySQL("shop", "db", 3306, name, "fennel", "").jdbc_options()
    assert options["url"] == "jdbc:mysql://db:3306/?permitMysqlScheme"
    assert name not in set(options.values())
