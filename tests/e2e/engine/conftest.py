"""Fixtures of the tests with real slots: each has its own database and topics."""

from tests.e2e.engine.slot_bench import bench
from tests.support.postgres import database, empty_database, postgres_server

__all__ = ["bench", "database", "empty_database", "postgres_server"]
