"""Real servers for these tests."""

__all__ = ["database", "empty_database", "postgres_server"]
