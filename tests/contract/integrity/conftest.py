"""Integrity checks over a real Postgres and S3."""

from tests.support.postgres import database, empty_database, postgres_server
from tests.support.s3 import s3_server

__all__ = ["database", "empty_database", "postgres_server", "s3_server"]
