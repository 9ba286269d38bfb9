"""Findings of integrity checks in a real Postgres."""

from tests.support.postgres import database, empty_database, postgres_server

__all__ = ["database", "empty_database", "postgres_server"]
