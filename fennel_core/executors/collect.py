"""From a module of definitions to a commit's bytes: `python -m fennel_core.executors.collect`, run
in the client's environment.

Theory. Definitions are Python that only the client library understands, so they are run where it
lives, in a process that ends afterwards. What counts as defined is what a person would pass to
`commit`: every dataset and featureset that is an attribute of the module, or of one of its
submodules that loading it has imported. A script's `if __name__ == "__main__":` part is not run, so
a file that commits by itself can be given as it is. The request is made by the client's own
function: it is byte for byte what `Client.commit` sends.

Arguments: module name or path, environment ("" for none), message. The request is written to the
file descriptor given last; whatever the user's code prints goes to standard error. Exit code 3: the
definitions are wrong, and standard error ends with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

WRONG = 3


class DefinitionsInvalid(Exception):
    """The definitions cannot be committed as they are."""


def load(definitions: str) -> ModuleType:
    """Import a module by name, a `.py` file, or a folder (as a package, by its `__init__.py`, or as
    all the `.py` files in it).
    """
    path = Path(definitions)
    if not (path.suffix == ".py" or os.sep in definitions or path.is_dir()):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(definitions)
    path = path.resolve()
    if not path.exists():
        raise DefinitionsInvalid(
            f"there is no file or folder {definitions} (relative paths start at {os.getcwd()})"
        )
    if path.is_file() or (path / "__init__.py").exists():
        sys.path.insert(0, str(path.parent))
        return importlib.import_module(path.stem if path.is_file() else path.name)
    sys.path.insert(0, str(path))
    files = sorted(path.glob("*.py"))
    if not files:
        raise DefinitionsInvalid(f"the folder {definitions} holds no Python files")
    together = ModuleType("definitions")
    for file in files:
        setattr(together, file.stem, importlib.import_module(file.stem))
    return together


def defined(module: ModuleType, kinds: tuple[type, ...]) -> list[Any]:
    """Instances of `kinds` in the module and its imported submodules, each once, in the order of
    the modules' own names.
    """
    inside = [
        each
        for name, each in sorted(sys.modules.items())
        if name.startswith(f"{module.__name__}.") and each is not None
    ]
    gathered = (
        [each for each in vars(module).values() if isinstance(each, ModuleType)]
        if module.__name__ == "definitions"
        else []
    )
    found: dict[str, Any] = {}
    for place in (module, *inside, *gathered):
        for value in vars(place).values():
            if not isinstance(value, kinds):
                continue
            name = value._name  # type: ignore[attr-defined]  # the client's own name of a dataset or featureset
            if found.setdefault(name, value) is not value:
                raise DefinitionsInvalid(
                    f"`{name}` is defined twice (second time in {place.__name__}): a "
                    "name stands for one dataset or featureset"
                )
    if not found:
        raise DefinitionsInvalid(
            f"{module.__name__} defines no dataset and no featureset: give the "
            "module or file that holds them"
        )
    return list(found.values())


def request(definitions: str, env: str, message: str) -> bytes:
    """The serialized SyncRequest."""
    from fennel.datasets import Dataset
    from fennel.featuresets import Featureset
    from fennel.internal_lib.to_proto import to_sync_request_proto

    objects = defined(load(definitions), (Dataset, Featureset))
    made: bytes = to_sync_request_proto(objects, message, env or None).SerializeToString()
    return made


def main(arguments: list[str]) -> int:
    definitions, env, message, descriptor = arguments
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        body = request(definitions, env, message)
    except DefinitionsInvalid as wrong:
        print(wrong, file=sys.stderr)  # noqa: T201  # standard error is this program's answer
        return WRONG
    except Exception:  # noqa: BLE001  # the last line before the process ends: user code may raise anything
        traceback.print_exc()
        return WRONG
    with os.fdopen(int(descriptor), "wb") as out:
        out.write(body)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
