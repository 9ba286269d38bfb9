"""Seeds of the simulated engine that CI runs; `make sim WORLD=engine SEEDS=300` runs more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fennel_core.engine.supervisor import Supervisor
from tests.sim.engine.world import Broken, quiet, simulate

SEEDS = 16


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_it_comes_to_rest_and_equals_the_recompute(seed: int) -> None:
    world = simulate(seed)
    assert world.answered > 0, "the law of reads was checked on nothing"


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    call = [sys.executable, "-m", "tests.sim.run", "--first", "3", "--seeds", "1", "--story"]
    told = [
        subprocess.run(call, capture_output=True, check=True, text=True, env={**os.environ, "PYTHONHASHSEED": hashing}).stdout
        for hashing in "12"
    ]
    first, second = (story[: story.index("seeds hold")] for story in told)
    assert first == second


def test_a_slot_that_trusts_its_lease_for_ever_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "lease_is_live", lambda self: True)
    assert any("answers for" in str(broken) for broken in map(outcome, range(30)))


def outcome(seed: int) -> Broken | None:
    try:
        simulate(seed)
    except Broken as broken:
        return broken
    return None
