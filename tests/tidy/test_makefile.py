"""Every target of the Makefile has a help text, and CI uses the same targets."""

import re
import subprocess

from tests.tidy.tree import ROOT

DOCUMENTED = {
    "help",
    "env",
    "jars",
    "demo",
    "up",
    "down",
    "status",
    "logs",
    "lint",
    "test",
    "conformance",
    "compose-test",
    "clean",
}


def test_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    shown = subprocess.run(
        ["make", "-s", "help"],  # noqa: S607  # found on the PATH, as by its users
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    listed = set(re.findall(r"^  make ([\w-]+) +\S", shown, re.M))
    targets = set(re.findall(r"^([\w-]+):", text, re.M))
    phony = set(" ".join(re.findall(r"^\.PHONY: (.*)$", text, re.M)).split())
    assert listed == targets
    assert targets == phony
    assert targets >= DOCUMENTED


def test_ci_runs_make_test() -> None:
    assert "make --no-print-directory test" in (ROOT / ".ci" / "run").read_text()
