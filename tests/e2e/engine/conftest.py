"""Fixtures of the slot's tests: a database of its own for each."""

from tests.support.postgres import database, empty_database, postgres_server

__all__ = ["database", "empty_database", "postgres_server"]
