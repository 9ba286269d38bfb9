"""Fixtures of the tests with real slots: each has its own database and topics."""

from tests.e2e.engine.slot_bench import bench

__all__ = ["bench"]
