"""The layer contract can fail: a copy of the packages with one upward import is refused."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import PURE_PACKAGES, ROOT

CONTRACT = ROOT / ".importlinter"


def layers() -> list[list[str]]:
    """Return the contract's layers, top first, each with its packages."""
    parser = configparser.ConfigParser()
    parser.read(CONTRACT)
    lines = parser["importlinter:contract:layers"]["layers"].split("\n")
    return [re.findall(r"\w+", line) for line in lines if line.strip()]


def lint(folder: Path, importer: str, imported: str) -> subprocess.CompletedProcess[str]:
    """Run the contract over empty packages, one of which imports another."""
    for package in (package for layer in layers() for package in layer):
        (folder / "fennel_core" / package).mkdir(parents=True)
        (folder / "fennel_core" / package / "__init__.py").touch()
    (folder / "fennel_core" / "__init__.py").touch()
    (folder / "fennel_core" / importer / "__init__.py").write_text(
        f"import fennel_core.{imported}\n"
    )
    shutil.copy(CONTRACT, folder)
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    return subprocess.run(  # noqa: S603  # a program of this test, and no shell
        command,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_package_is_in_one_layer() -> None:
    named = [package for layer in layers() for package in layer]
    assert sorted(named) == sorted(set(named))
    packages = {path.parent.name for path in (ROOT / "fennel_core").glob("*/__init__.py")}
    assert packages <= set(named)
    assert set(PURE_PACKAGES) <= set(named)


def test_an_import_downwards_is_kept(tmp_path: Path) -> None:
    done = lint(tmp_path, "apps", "vocab")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("importer", "imported"),
    [("vocab", "apps"), ("graph", "blueprints"), ("hangar", "bank"), ("engine", "query")],
)
def test_an_import_upwards_or_sideways_is_refused(
    tmp_path: Path, importer: str, imported: str
) -> None:
    done = lint(tmp_path, importer, imported)
    assert done.returncode == 1
    assert f"fennel_core.{importer} is not allowed to import fennel_core.{imported}" in done.stdout
