"""Run whole programs: the definitions of a project, and programs that the platform generates from
them (executor environment).

A program runs in a process that ends afterwards. It may print; what it prints is returned or
reported with its error. Modules of a project are imported from the platform, which reads them where
the project is; the process itself reads no files of users. The defined objects are every dataset
and featureset that is an attribute of the named modules, or of a submodule that loading them
imported. The client's own function serializes the request, so it is byte for byte what
`Client.commit` sends.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import ModuleType
from typing import Any, Final, Protocol

from fennel.datasets import Dataset
from fennel.featuresets import Featureset
from fennel.internal_lib.to_proto import to_sync_request_proto

from fennel_core.executors.code_cache import USER_FILE, message_of, trace_of
from fennel_core.executors.internal_errors import (
    CodeLoadFailed,
    DefinitionsInvalid,
    ResultInvalid,
)
from fennel_core.executors.programs_format import join_collected

PRINTED_CHARS: Final = 64_000
"""Length of the reported end of a program's output."""


class RequestChannel(Protocol):
    """The part of `worker.CallChannel` that programs use."""

    def request(
        self, header: dict[str, Any], payload: bytes = b""
    ) -> tuple[dict[str, Any], bytes]: ...


@contextmanager
def _printed() -> Iterator[io.StringIO]:
    """Collect the output of the code in the block, and report it with an error of the code."""
    out = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(out):
            yield out
    except DefinitionsInvalid as wrong:
        raise ResultInvalid(str(wrong)) from wrong
    except MemoryError:
        raise
    # Outermost handler of user code, which may raise anything.
    except BaseException as error:
        trace = out.getvalue()[-PRINTED_CHARS:] + trace_of(error, "")
        raise CodeLoadFailed(message_of(error), trace) from error


def run_program(_: RequestChannel, header: dict[str, Any]) -> bytes:
    """Execute the text of a program; return what it prints."""
    with _printed() as out:
        code = compile(header["text"], USER_FILE, "exec", dont_inherit=True)
        exec(code, {"__name__": "program"})  # noqa: S102  # running user code is what this process is for
    return out.getvalue().encode()


def collect(channel: RequestChannel, header: dict[str, Any]) -> bytes:
    """Import the modules of a project; return their output and the request that commits them."""
    names: list[str] = header["modules"]
    with _printed() as out:
        place = sys.meta_path.index(importlib.machinery.PathFinder)
        sys.meta_path.insert(place, ProjectFinder(channel))
        modules = [importlib.import_module(name) for name in names]
        objects = defined(modules, (Dataset, Featureset))
        request = to_sync_request_proto(objects, header["message"], header["env"] or None)
        body: bytes = request.SerializeToString()
    return join_collected(out.getvalue()[-PRINTED_CHARS:], body)


class ProjectFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the modules of a project through the platform."""

    def __init__(self, channel: RequestChannel) -> None:
        self._channel = channel
        self._texts: dict[str, str] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's specification, None if the project has no such module."""
        del path, target  # The platform knows where the project's modules are.
        reply, _ = self._channel.request({"op": "module", "name": fullname})
        if reply["file"] is None:
            return None
        self._texts[fullname] = reply["text"]
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=reply["file"], is_package=reply["package"]
        )
        spec.has_location = reply["text"] != "" or not reply["package"]
        return spec

    def is_package(self, fullname: str) -> bool:
        """Return whether the module has submodules."""
        found = sys.modules[fullname].__spec__
        return found is not None and found.submodule_search_locations is not None

    def get_source(self, fullname: str) -> str:
        """Return the module's text, with which `inspect` finds the source of functions."""
        return self._texts[fullname]

    def get_code(self, fullname: str) -> Any:
        """Return the module's compiled code."""
        spec = sys.modules[fullname].__spec__
        file = USER_FILE if spec is None or spec.origin is None else spec.origin
        return compile(self._texts[fullname], file, "exec", dont_inherit=True)


def defined(modules: Sequence[ModuleType], kinds: tuple[type, ...]) -> list[Any]:
    """Return the instances of `kinds` in the modules and their imported submodules, each once."""
    inside = [
        each
        for name, each in sorted(sys.modules.items())
        if each is not None and any(name.startswith(f"{top.__name__}.") for top in modules)
    ]
    found: dict[str, Any] = {}
    for source in (*modules, *inside):
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
            f"{', '.join(each.__name__ for each in modules)} defines no dataset and no "
            "featureset; name the module or file that does"
        )
    return list(found.values())


PROGRAMS: Final[dict[str, Callable[[RequestChannel, dict[str, Any]], bytes]]] = {
    "program": run_program,
    "collect": collect,
}
"""Programs by kind of call. Their process is replaced afterwards."""
