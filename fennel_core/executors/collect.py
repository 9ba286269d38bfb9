"""Turn a module of definitions into the bytes of a commit (client environment).

Run as `python -m fennel_core.executors.collect`. Definitions are Python that only the client
library understands, so they run in its environment, in a process that ends afterwards. The defined
objects are every dataset and featureset that is an attribute of the module, or of a submodule that
loading it imported. A script's `if __name__ == "__main__":` part is not run, so a file that commits
by itself can be passed as it is. The client's own function serializes the request, so it is byte
for byte what `Client.commit` sends.

Arguments: module name or path, environment ("" for none), message, file descriptor. The request is
written to the descriptor; output of the user's code goes to standard error. Exit code 3: the
definitions are invalid, and standard error ends with the reason.
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

from fennel_core.executors.internal_errors import DefinitionsInvalid

INVALID_EXIT_CODE = 3


def load(definitions: str) -> ModuleType:
    """Import a module by name, a `.py` file, or a folder.

    A folder is imported as a package if it has an `__init__.py`, else file by file.
    """
    path = Path(definitions)
    if not (path.suffix == ".py" or os.sep in definitions or path.is_dir()):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(definitions)
    path = path.resolve()
    if not path.exists():
        raise DefinitionsInvalid(
            f"no file or folder {definitions}; relative paths start at {os.getcwd()}"
        )
    if path.is_file() or (path / "__init__.py").exists():
        sys.path.insert(0, str(path.parent))
        return importlib.import_module(path.stem if path.is_file() else path.name)
    sys.path.insert(0, str(path))
    files = sorted(path.glob("*.py"))
    if not files:
        raise DefinitionsInvalid(f"the folder {definitions} has no Python files")
    together = ModuleType("definitions")
    for file in files:
        setattr(together, file.stem, importlib.import_module(file.stem))
    return together


def defined(module: ModuleType, kinds: tuple[type, ...]) -> list[Any]:
    """Return the instances of `kinds` in the module and its imported submodules, each once."""
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
    for source in (module, *inside, *gathered):
        for value in vars(source).values():
            if not isinstance(value, kinds):
                continue
            name = value._name  # type: ignore[attr-defined]  # the client's own name of a dataset or featureset
            if found.setdefault(name, value) is not value:
                raise DefinitionsInvalid(
                    f"`{name}` is defined twice, the second time in {source.__name__}; names of "
                    "datasets and featuresets are unique"
                )
    if not found:
        raise DefinitionsInvalid(
            f"{module.__name__} defines no dataset and no featureset; name the module or file "
            "that does"
        )
    return list(found.values())


def request(definitions: str, env: str, message: str) -> bytes:
    """Return the serialized SyncRequest."""
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
        print(wrong, file=sys.stderr)  # noqa: T201  # standard error is this program's output
        return INVALID_EXIT_CODE
    except Exception:  # noqa: BLE001  # outermost handler: user code may raise anything
        traceback.print_exc()
        return INVALID_EXIT_CODE
    with os.fdopen(int(descriptor), "wb") as out:
        out.write(body)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
