"""Queries never see a part of a new version: commits of chains of new jobs under load."""

from __future__ import annotations

import json
import os
import random
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fennel_core.settings.model import Settings

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform")]
SCRIPT = Path(__file__).with_name("growing_chain.py")
COMMITS = int(os.environ.get("COMMITS", "4"))
"""`make commits COMMITS=200` runs more."""
ROWS = int(os.environ.get("ROWS", "20000"))
USERS = 50
LONGEST_CHAIN = 4


@pytest.fixture
def workspace() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    settings = Settings()
    admin = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}
    deleted = httpx.delete(
        f"{settings.query_url}/api/v1/workspaces/{name}", headers=admin, timeout=120
    )
    assert deleted.status_code == 200


@pytest.mark.long
@pytest.mark.timeout(120 + 60 * COMMITS)
def test_every_answer_during_commits_is_complete(workspace: str) -> None:
    settings, rng = Settings(), random.Random(COMMITS)  # noqa: S311  # repeatable, and no secret
    lengths = [rng.randrange(2, LONGEST_CHAIN + 1) for _ in range(COMMITS)]
    plan = json.dumps({"rows": ROWS, "users": USERS, "lengths": [2, *lengths]})
    command = [str(settings.executor_python), str(SCRIPT), settings.query_url, f"dev-{workspace}"]
    done = subprocess.run(command, input=plan, capture_output=True, text=True, check=False)  # noqa: S603  # a program of this test, and no shell
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == [], result
    assert result["refused"] == [], result
    assert result["latest"] == [result["last"]] * 2, "the last version is served"
    assert result["answers"] > COMMITS, "queries ran during the commits"
