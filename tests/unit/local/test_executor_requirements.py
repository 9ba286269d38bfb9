"""Packages of the installation for user code: resolved once, recorded, and compared at a start."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from fennel_core.apps.local.file_layout import ROOT, FileLayout
from fennel_core.apps.local.preflight import executor_requirements_problems
from fennel_core.settings.model import Settings

SCRIPT = "fennel_core/apps/local/prepare.sh"
LOCK = ".fennel/executor-requirements.lock"
PYTHON = """#!/bin/sh
case "$2" in *sysconfig*) mkdir -p "$(dirname "$0")/../lib"; echo "$(dirname "$0")/../lib" ;; esac
"""
UV = """#!/bin/bash
echo "$@" >> uv.log
[ "$1 $2" = "pip compile" ] || exit 0
for word in "$@"; do
  last=$word
  [ -f "$word" ] && grep -q impossible "$word" && { echo "no solution" >&2; exit 1; }
done
echo "resolved $RANDOM" > "$last"
"""


@dataclass
class Checkout:
    """A checkout with stand-ins for uv and both environments."""

    folder: Path

    def write(self, name: str, text: str, *, mode: int = 0o644) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def make_env(self, requirements: str = "") -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHON": str(self.folder / ".venv/bin/python"),
            "FENNEL_EXECUTOR_REQUIREMENTS": requirements,
        }
        return subprocess.run(  # noqa: S603  # a program of this test, and no shell
            ["/bin/bash", str(self.folder / SCRIPT), "env"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self, what: str) -> list[str]:
        """Return the calls of uv with these words, and forget them."""
        log = self.folder / "uv.log"
        found = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line for line in found if what in line]

    def problems(self, requirements: str = "") -> list[str]:
        settings = Settings().model_copy(
            update={"executor_requirements": Path(requirements) if requirements else None}
        )
        layout = FileLayout(root=self.folder, data=self.folder / "data")
        environment = self.folder / ".venv-executor"
        return list(executor_requirements_problems(settings, layout, environment))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path)
    made.write(SCRIPT, (ROOT / SCRIPT).read_text())
    for name in ("bootstrap.lock", "platform.lock", "executor.lock", "executor.in"):
        made.write(f"requirements/{name}", f"{name}\n")
    made.write(".fennel/tools/uv/bin/uv", UV, mode=0o755)
    stamp = hashlib.sha256(b"bootstrap.lock\n").hexdigest()
    made.write(".fennel/tools/uv/.made-from", stamp)
    for name in (".venv", ".venv-executor"):
        made.write(f"{name}/bin/python", PYTHON, mode=0o755)
    return made


def test_without_the_setting_the_pins_of_the_client_are_installed(checkout: Checkout) -> None:
    assert checkout.make_env().returncode == 0
    assert checkout.calls("pip compile") == []
    assert not (checkout.folder / LOCK).exists()
    assert checkout.problems() == []


def test_the_file_is_resolved_with_the_pins_once_and_its_lock_is_installed(
    checkout: Checkout,
) -> None:
    checkout.write("my.txt", "phonenumbers\n")
    done = checkout.make_env("my.txt")
    assert done.returncode == 0, done.stderr
    log = (checkout.folder / "uv.log").read_text()
    assert f"--require-hashes {LOCK}" in log
    (call,) = checkout.calls("pip compile")
    assert "-c requirements/executor.lock requirements/executor.in my.txt" in call
    lock = (checkout.folder / LOCK).read_text()
    assert checkout.make_env("my.txt").returncode == 0
    assert checkout.calls("pip") == []
    assert (checkout.folder / LOCK).read_text() == lock


@pytest.mark.parametrize("changed", ["my.txt", "requirements/executor.lock"])
def test_a_changed_file_or_pin_is_resolved_again(checkout: Checkout, changed: str) -> None:
    checkout.write("my.txt", "phonenumbers\n")
    assert checkout.make_env("my.txt").returncode == 0
    checkout.calls("pip")
    checkout.write(changed, "phonenumbers==9\n")
    assert checkout.make_env("my.txt").returncode == 0
    assert len(checkout.calls("pip compile")) == 1


def test_a_conflict_with_the_pins_is_an_error_and_installs_nothing(checkout: Checkout) -> None:
    checkout.write("my.txt", "impossible\n")
    done = checkout.make_env("my.txt")
    assert done.returncode == 1
    assert "no solution" in done.stderr
    assert "could not be resolved beside the client's" in done.stderr
    assert not (checkout.folder / LOCK).exists()
    assert [c for c in checkout.calls("sync") if ".venv-executor" in c] == []


@pytest.mark.parametrize("line", ["-r base.txt", " --constraint base.txt", "-e ."])
def test_a_file_that_includes_others_is_refused(checkout: Checkout, line: str) -> None:
    checkout.write("my.txt", f"phonenumbers\n{line}\n")
    done = checkout.make_env("my.txt")
    assert done.returncode == 1
    assert f"2:{line}" in done.stderr
    assert "includes other files" in done.stderr


def test_packages_of_the_installation_stay_when_the_setting_is_forgotten(
    checkout: Checkout,
) -> None:
    checkout.write("my.txt", "phonenumbers\n")
    assert checkout.make_env("my.txt").returncode == 0
    checkout.calls("pip")
    done = checkout.make_env()
    assert done.returncode == 1
    assert "FENNEL_EXECUTOR_REQUIREMENTS, which is not set" in done.stderr
    assert checkout.calls("pip") == []


def test_a_missing_file_is_an_error(checkout: Checkout) -> None:
    done = checkout.make_env("none.txt")
    assert done.returncode == 1
    assert "FENNEL_EXECUTOR_REQUIREMENTS=none.txt is not a file" in done.stderr


def test_a_start_is_refused_while_file_and_environment_differ(checkout: Checkout) -> None:
    checkout.write("my.txt", "phonenumbers\n")
    assert "is not installed yet" in checkout.problems("my.txt")[0]
    assert checkout.make_env("my.txt").returncode == 0
    assert checkout.problems("my.txt") == []
    checkout.write("my.txt", "phonenumbers==9\n")
    assert "has changed" in checkout.problems("my.txt")[0]
    assert "is unset" in checkout.problems()[0]
    (checkout.folder / "my.txt").unlink()
    assert "does not exist" in checkout.problems("my.txt")[0]
