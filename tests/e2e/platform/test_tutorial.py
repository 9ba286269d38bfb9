"""The code of docs/tutorial.md runs as printed, and prints what the page shows."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import uuid
from pathlib import Path

import aiohttp
import pytest

from fennel_core.settings.model import Settings
from tests.support.polling import eventually
from tests.support.tutorial import (
    TUTORIAL,
    printed_features,
    printed_past,
    printed_training_data,
    tutorial_files,
)

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform")]
RUN_S = 240.0


def run(settings: Settings, folder: Path, file: str) -> subprocess.CompletedProcess[str]:
    """Run a file with the Python of the client's environment, as the page says."""
    python = settings.executor_python.absolute()
    return subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [str(python), file],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )


def train(folder: Path) -> str:
    """Run train.py with the platform's Python; return what it prints."""
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
    return done.stdout + done.stderr


@pytest.mark.timeout(600)
async def test_the_tutorial_runs_and_prints_the_features_it_shows(tmp_path: Path) -> None:
    settings = Settings()
    workspace = f"tutorial-{uuid.uuid4().hex[:8]}"
    page = TUTORIAL.read_text()
    for name, code in tutorial_files(page).items():
        adapted = code.replace("http://127.0.0.1:7400", settings.query_url)
        adapted = adapted.replace(".fennel/env", str(settings.data_dir.absolute() / "env"))
        (tmp_path / name).write_text(adapted.replace("dev-tutorial", f"dev-{workspace}"))
    try:
        done = await asyncio.to_thread(run, settings, tmp_path, "run.py")
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"^assets: \d+ created, 0 kept", done.stdout, re.M), done.stdout
        words = [line.split() for line in done.stdout.splitlines()]
        assert words[-len(printed_features(page)) :] == printed_features(page), done.stdout
        past = await asyncio.to_thread(run, settings, tmp_path, "past.py")
        words = [line.split() for line in past.stdout.splitlines()]
        assert words[-len(printed_past(page)) :] == printed_past(page), past.stdout + past.stderr
        printed: list[str] = []

        async def training_data() -> bool:
            printed.append(await asyncio.to_thread(train, tmp_path))
            return set(printed_training_data(page)) <= set(printed[-1].splitlines())

        # The first attempt may be planned before the workspace has its query log.
        await eventually(training_data, within_s=120, what=lambda: printed[-1][-3000:])
    finally:
        token = settings.admin_token.get_secret_value()
        async with (
            aiohttp.ClientSession() as session,
            session.delete(
                f"{settings.query_url}/api/v1/workspaces/{workspace}",
                headers={"Authorization": f"Bearer {token}"},
            ) as response,
        ):
            await response.read()
