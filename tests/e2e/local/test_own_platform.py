"""A platform that a test started ends with the process of the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fennel_core.apps.local.file_layout import ROOT
from fennel_core.apps.local.processes import is_running
from tests.support.polling import eventually_sync

PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.support.own_platform import OwnPlatform
OwnPlatform(Path(sys.argv[1])).run("up", "--only", "s3")
print(Path(sys.argv[1], "pids", "s3").read_text(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_platform_of_a_test_run_that_is_killed_stops(tmp_path: Path) -> None:
    killed = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    pid = json.loads(killed.stdout)["pid"]
    eventually_sync(lambda: not is_running(pid), within_s=60, what="S3 is stopped")
