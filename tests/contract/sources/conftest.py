"""Fixtures of the sources' contract: a database of its own for each test."""

from tests.support.postgres import database, empty_database, postgres_server

__all__ = ["database", "empty_database", "postgres_server"]
