"""Read definitions from a module or path, as the bytes that a client would have sent.

This serves commits that start in Airflow's form. Definitions are users' code, so they run in the
executors, confined like any other code of their workspace, in a process that ends afterwards. It
reads no files: the modules that the code imports are read here, from the project's folder, when it
asks for them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from fennel_core.executors.calls import CollectCall
from fennel_core.executors.client import Callbacks, Executors, ModuleText
from fennel_core.executors.errors import (
    CallFailed,
    CodeImportFailed,
    ExecutorTimeout,
    UserCodeFailed,
)
from fennel_core.executors.internal_errors import DefinitionsNotLoaded, LookupRefused
from fennel_core.executors.launch import PACKAGE_ROOT
from fennel_core.executors.programs_format import split_collected
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import WorkspaceId

TIME_LIMIT_SECONDS: Final = 120.0
"""A large project with its libraries loads in seconds; beyond this limit it waits for something."""
SHOWN_ROOT: Final = PurePosixPath("/project")
"""The folder of a project in tracebacks. It must not exist where the code runs: Python would read
the text of a module from there, and is not allowed to.
"""
MODULE_BYTES: Final = 4 << 20
"""Largest file of a module."""


@dataclass(frozen=True, slots=True)
class Project:
    """Where the modules of a project are, and which of them define it."""

    root: Path
    modules: tuple[str, ...]

    def read(self, name: str) -> ModuleText | None:
        """Return the module `name`, None if the project has none; raises `LookupRefused`."""
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        place = self.root.joinpath(*parts)
        for file, is_package in ((place / "__init__.py", True), (place.with_suffix(".py"), False)):
            if file.is_file():
                shown = SHOWN_ROOT / file.relative_to(self.root)
                return ModuleText(str(shown), self._text(file, name), is_package)
        # A folder without the file is a package without code.
        shown = SHOWN_ROOT.joinpath(*parts)
        return ModuleText(str(shown), "", True) if place.is_dir() else None

    def _text(self, file: Path, name: str) -> str:
        if not file.resolve().is_relative_to(self.root.resolve()):
            raise LookupRefused(f"the module `{name}` is outside of the project {self.root}")
        if file.stat().st_size > MODULE_BYTES:
            raise LookupRefused(f"the module `{name}` has more than {MODULE_BYTES} bytes")
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as unreadable:
            raise LookupRefused(f"{file} cannot be read: {unreadable}") from unreadable


def project_of(definitions: str, folder: Path) -> Project:
    """Return the project of a module name, a `.py` file, or a folder; raises
    `DefinitionsNotLoaded`.

    A folder is a package if it has an `__init__.py`, else all its files define the project.
    """
    path = folder / definitions
    if not (path.suffix == ".py" or os.sep in definitions or path.is_dir()):
        return Project(folder, (definitions,))
    path = path.resolve()
    if not path.exists():
        raise DefinitionsNotLoaded(
            f"no file or folder {definitions}; relative paths start at {folder}"
        )
    if path.is_file() or (path / "__init__.py").exists():
        return Project(path.parent, (path.stem if path.is_file() else path.name,))
    files = sorted(path.glob("*.py"))
    if not files:
        raise DefinitionsNotLoaded(f"the folder {definitions} has no Python files")
    return Project(path, tuple(file.stem for file in files))


async def read(
    settings: Settings,
    definitions: str,
    *,
    workspace: WorkspaceId,
    env: str | None,
    message: str,
    folder: Path = PACKAGE_ROOT,
    limit_s: float = TIME_LIMIT_SECONDS,
) -> tuple[bytes, str]:
    """Load `definitions` and return the SyncRequest's bytes and the output of the code.

    `definitions` is a module name, or a path relative to `folder`. Raises `DefinitionsNotLoaded`
    when the code raises, defines nothing, defines a name twice, or exceeds `limit_s`.
    """
    project = project_of(definitions, folder)

    async def module(name: str) -> ModuleText | None:
        return project.read(name)

    call = CollectCall(project.modules, env or "", message, definitions)
    limit_ms = int(limit_s * 1000)
    async with Executors(settings.executors_socket, time_limit_ms=limit_ms) as executors:
        try:
            answer = await executors.run_program(
                call,
                callbacks=Callbacks(workspace=workspace, module=module),
                timeout_ms=limit_ms,
            )
            output, body = split_collected(answer)
        except UserCodeFailed as invalid:
            raise DefinitionsNotLoaded(invalid.message) from invalid
        except CodeImportFailed as raised:
            raise DefinitionsNotLoaded(raised.traceback.strip() or str(raised)) from raised
        except ExecutorTimeout as late:
            raise DefinitionsNotLoaded(
                f"{definitions}: loading exceeded {limit_s:g} s and was stopped"
            ) from late
        except CallFailed as failed:
            raise DefinitionsNotLoaded(f"{definitions}: {failed}") from failed
    return body, output.strip()
