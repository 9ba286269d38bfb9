"""Migrations have the numbers 1, 2, … without gaps: a server that finds others does not start."""

from fennel_core.connections import migrate


def test_the_numbers_of_migrations_have_no_gaps() -> None:
    assert [each.number for each in migrate.read()] == list(range(1, len(migrate.read()) + 1))
