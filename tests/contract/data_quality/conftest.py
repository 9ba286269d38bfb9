"""Counts of expectations in a real Postgres."""

from tests.support.postgres import database, empty_database, postgres_server

__all__ = ["database", "empty_database", "postgres_server"]
