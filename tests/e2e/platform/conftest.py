"""Fixtures of the tests that use the platform as its clients do."""

from tests.support.workspaces import make, settings

__all__ = ["make", "settings"]
