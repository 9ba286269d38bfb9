"""Real servers for these tests."""

from tests.support.postgres import database, empty_database, postgres_server

__all__ = ["database", "empty_database", "postgres_server"]
