"""Airflow's database is prepared when something is missing, and only then."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fennel_core.apps.errors import SetupFailed
from fennel_core.apps.local import airflow, postgres
from fennel_core.apps.local.file_layout import ROOT, FileLayout
from fennel_core.apps.local.platform_keys import ensure_keys
from fennel_core.settings.model import Settings


@dataclass
class RecordedAirflow:
    """Airflow's command line, which makes the pools of the imported file."""

    layout: FileLayout
    commands: list[list[str]] = field(default_factory=list)
    pools: dict[str, Any] = field(default_factory=dict)
    failing: str = ""

    def run(
        self, words: Sequence[str], *, stdout: Any, **_: Any
    ) -> subprocess.CompletedProcess[bytes]:
        command = list(words[3:5])
        self.commands.append(command)
        if command[0] == self.failing:
            os.write(stdout.fileno(), b"first line\nno such pool file\n")
            return subprocess.CompletedProcess(words, 1)
        if command == ["pools", "import"]:
            self.pools |= json.loads(Path(words[5]).read_text())
        return subprocess.CompletedProcess(words, 0)

    def migrate(self) -> list[list[str]]:
        """Run the setup step; return the commands that it ran."""
        self.commands.clear()
        airflow.migrate(Settings(), self.layout, ensure_keys(self.layout.secrets))
        return list(self.commands)


BOTH = [["db", "migrate"], ["pools", "import"]]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedAirflow:
    layout = FileLayout(root=ROOT, data=tmp_path)
    layout.make()
    double = RecordedAirflow(layout)
    monkeypatch.setattr(subprocess, "run", double.run)
    monkeypatch.setattr(postgres, "airflow_pools", lambda *_: frozenset(double.pools))
    return double


def test_the_first_start_migrates_and_makes_the_pools_and_the_next_does_nothing(
    recorded: RecordedAirflow,
) -> None:
    assert recorded.migrate() == BOTH
    assert recorded.pools == airflow.POOLS
    assert recorded.migrate() == []


def test_a_pool_that_is_missing_is_made_at_the_next_start(recorded: RecordedAirflow) -> None:
    recorded.migrate()
    del recorded.pools["fennel_long"]
    assert recorded.migrate() == BOTH
    assert recorded.pools == airflow.POOLS


def test_pools_of_another_size_are_made_again(
    recorded: RecordedAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.migrate()
    other = airflow.POOLS | {"fennel_long": {"slots": 1, "description": "smaller"}}
    monkeypatch.setattr(airflow, "POOLS", other)
    assert recorded.migrate() == BOTH
    assert recorded.pools == other


def test_a_start_without_pools_fails_with_airflows_last_line(recorded: RecordedAirflow) -> None:
    recorded.failing = "pools"
    with pytest.raises(SetupFailed, match=r"`airflow pools import` \(no such pool file\)"):
        recorded.migrate()
    recorded.failing = ""
    assert recorded.migrate() == BOTH, "a failed start leaves no stamp"
