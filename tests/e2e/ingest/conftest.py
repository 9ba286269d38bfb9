"""Fixtures of ingest's tests over real processes."""

from tests.support.executors import executors_socket
from tests.support.postgres import database, empty_database, postgres_server

__all__ = ["database", "empty_database", "executors_socket", "postgres_server"]
