"""The lock of a slot: the process that holds it can rely on the death of all earlier ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from fennel_core.engine.slot_lock import SlotLock

HOLD = """
import sys, time
from pathlib import Path
from fennel_core.engine.slot_lock import SlotLock
with SlotLock(Path(sys.argv[1]), "e-0") as held:
    print(held.id_prefix, held.predecessor_is_dead, flush=True)
    time.sleep(60)
"""


def test_only_a_killed_predecessor_is_dead(tmp_path: Path) -> None:
    lock = tmp_path / "run" / "e-0.lock"
    process = subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    id_prefix, predecessor_is_dead = process.stdout.readline().split()
    assert predecessor_is_dead == "True"
    with SlotLock(lock, "e-0") as while_it_lives:
        assert (while_it_lives.id_prefix, while_it_lives.predecessor_is_dead) == (id_prefix, False)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with SlotLock(lock, "e-0") as after:
        assert (after.id_prefix, after.predecessor_is_dead) == (id_prefix, True)


def test_the_same_slot_number_with_other_files_has_another_prefix(tmp_path: Path) -> None:
    with (
        SlotLock(tmp_path / "a" / "e-0.lock", "e-0") as here,
        SlotLock(tmp_path / "b" / "e-0.lock", "e-0") as there,
    ):
        assert here.id_prefix != there.id_prefix
        assert (here.predecessor_is_dead, there.predecessor_is_dead) == (True, True)
