"""A whole platform of its own, beside any other: own data folder, own ports, no Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from fennel_core.apps.local.file_layout import ROOT
from tests.support.ports import free_ports

PORTS: Final = (
    "QUERY",
    "DEFINITION",
    "INGEST",
    "ENGINE",
    "HISTORY",
    "SOURCES",
    "POSTGRES",
    "KAFKA",
    "KAFKA_CONTROLLER",
    "S3",
    "AIRFLOW",
)
KEPT: Final = ("FENNEL_EXECUTOR_PYTHON",)
"""The only setting that such a platform takes from the environment."""
LIMIT_S: Final = 300.0
GUARD_ENDS_WITHIN_S: Final = 30.0
CLI: Final = (sys.executable, "-m", "fennel_core.apps.cli")


class OwnPlatform:
    """A platform in the folder `data`, controlled through the command line."""

    def __init__(self, data: Path, **settings: str) -> None:
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.data = data
        self._guard: subprocess.Popen[bytes] | None = None
        self.settings = {
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            **{f"FENNEL_{name}_PORT": str(port) for name, port in ports.items()},
            "FENNEL_DATA_DIR": str(data),
            "FENNEL_ORCHESTRATOR": "inline",
            **settings,
        }

    def run(self, *words: str, **settings: str) -> str:
        """Run `fennel-core` and return its output; AssertionError if it fails.

        `settings`: of this command only.
        What was started and not stopped is stopped when this process ends, whatever way it ends.
        """
        if words[0] == "up" and self._guard is None:
            self._guard = self._start_guard()
        done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [*CLI, *words],
            env=self._environment() | settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            cwd=ROOT,
        )
        assert done.returncode == 0, f"fennel-core {' '.join(words)}:\n{done.stdout}{done.stderr}"
        if words[0] == "down" and self._guard is not None:
            self._guard.communicate(b"stopped\n", GUARD_ENDS_WITHIN_S)
            self._guard = None
        return done.stdout

    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FENNEL_")}
        path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
        return inherited | self.settings | {"PYTHONPATH": path}

    def _start_guard(self) -> subprocess.Popen[bytes]:
        """Start a process that stops the platform when this one ends: its input ends then, too."""
        return subprocess.Popen(  # noqa: S603  # a fixed script
            ["/bin/sh", "-c", 'read -r _ || exec "$@"', "guard", *CLI, "down"],
            env=self._environment(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def value(self, name: str) -> str:
        """Return a setting of the running platform, with those that it has derived."""
        lines = (self.data / "env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)[f"FENNEL_{name}"]

    @property
    def url(self) -> str:
        """The address of the API."""
        return f"http://127.0.0.1:{self.settings['FENNEL_QUERY_PORT']}"
