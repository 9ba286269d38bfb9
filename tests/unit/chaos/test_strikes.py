"""Faults that find no process are made up for, as long as there is time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.services import Service
from tests.chaos.strikes import Kind, Strike, Striker

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
PLAN = [Strike(0.0, Kind.KAFKA, None, 0), Strike(0.0, Kind.S3, None, 0)]


class Platform(Striker):
    """A platform whose parts have a process again after so many looks for one."""

    def __init__(self, down: dict[Kind, int]) -> None:
        super().__init__(FileLayout(Path("/nowhere"), Path("/nowhere")), ())
        self.down, self.killed = down, list[subprocess.Popen[bytes]]()

    def _service_of(self, strike: Strike) -> Service:
        return cast(Service, SimpleNamespace(name=str(strike.kind)))

    def _pids_of(self, strike: Strike, service: Service) -> list[int]:
        assert service.name == strike.kind
        self.down[strike.kind] = self.down.get(strike.kind, 0) - 1
        if self.down[strike.kind] >= 0:
            return []
        self.killed.append(subprocess.Popen(SLEEP))  # noqa: S603  # a program of this test
        return [self.killed[-1].pid]

    async def _ready_again(self, strike: Strike, service: Service) -> None:
        """It is."""

    async def after(self, plan: Sequence[Strike], make_up_s: float) -> tuple[int, int, int]:
        await self.run(plan, make_up_s)
        assert {each.wait(30) for each in self.killed} <= {-9}
        return self.result.done, self.result.made_up, self.result.skipped


async def test_a_part_that_was_down_is_struck_later(capsys: pytest.CaptureFixture[str]) -> None:
    assert await Platform({Kind.S3: 3}).after(PLAN, 600.0) == (2, 1, 0)
    assert capsys.readouterr().out.count("1 faults found no process; they are made up for") == 3


async def test_a_part_that_stays_down_is_left_out_in_the_end() -> None:
    assert await Platform({Kind.S3: 3}).after(PLAN, 0.0) == (1, 0, 1)
