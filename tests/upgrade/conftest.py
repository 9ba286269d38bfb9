"""The unpacked fixtures of all released versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade import archive


@pytest.fixture(scope="module", params=archive.fixtures(), ids=archive.version_of)
def fixture_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the content of one fixture; tests do not change it."""
    folder = tmp_path_factory.mktemp("fixture")
    archive.unpack(request.param, folder)
    return folder
