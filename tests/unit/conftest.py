"""Unit tests run without the platform's environment variables."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are their defaults."""
    for name in [
        name
        for name in os.environ
        if name.startswith("FENNEL_") and not name.startswith("FENNEL_TEST_")
    ]:
        monkeypatch.delenv(name)
