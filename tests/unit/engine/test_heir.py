"""A slot's lock on one machine: who gets it knows that all earlier lives are dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from fennel_core.engine.heir import Succession

HOLD = """
import sys, time
from pathlib import Path
from fennel_core.engine.heir import Succession
with Succession(Path(sys.argv[1]), "e-0") as held:
    print(held.family, held.heir, flush=True)
    time.sleep(60)
"""


def test_a_slot_is_the_heir_of_a_killed_process_and_of_no_living_one(tmp_path: Path) -> None:
    lock = tmp_path / "run" / "e-0.lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    family, heir = process.stdout.readline().split()
    assert heir == "True"
    with Succession(lock, "e-0") as while_it_lives:
        assert (while_it_lives.family, while_it_lives.heir) == (family, False)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with Succession(lock, "e-0") as after:
        assert (after.family, after.heir) == (family, True)


def test_the_same_slot_number_with_other_files_is_another_family(tmp_path: Path) -> None:
    with (
        Succession(tmp_path / "a" / "e-0.lock", "e-0") as here,
        Succession(tmp_path / "b" / "e-0.lock", "e-0") as there,
    ):
        assert here.family != there.family
        assert (here.heir, there.heir) == (True, True)
