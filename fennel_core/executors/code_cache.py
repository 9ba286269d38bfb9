"""Loading user code: text → a function, cached by the text's hash (executor environment).

Theory. The text is a module that re-creates the dataset or featureset class and ends in the
function to call. It is executed once per process; the client's classes find the marker
`__fennel_gen_code__` through `sys.modules`, so an extractor's module is registered under
`Featureset.extractor` before it runs. A failed load is not cached: the next commit may bring what
was missing.
"""

from __future__ import annotations

import sys
import traceback
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

CACHED = 512
"""Functions one process keeps; the least recently used one goes."""
USER_FILE = "<string>"
"""File name of executed text; the client's class decorators expect text that has no file."""


class CodeLoadFailed(Exception):
    """The module could not be executed; `trace` is its traceback."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


class CodeCache:
    """The functions of one process."""

    def __init__(self) -> None:
        self._functions: OrderedDict[str, tuple[Callable[..., Any], str]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._functions

    def function(self, key: str) -> Callable[..., Any]:
        """The function loaded under `key`."""
        self._functions.move_to_end(key)
        return self._functions[key][0]

    def load(self, key: str, text: str, entry: str, module: str | None) -> None:
        """Execute `text` and cache its function `entry`; raises `CodeLoadFailed`."""
        created = types.ModuleType(module or entry)
        if module is not None:
            sys.modules[module] = created
        try:
            module_code = compile(
                text, USER_FILE, "exec", dont_inherit=True
            )  # this file's `from __future__` is not user code's
            exec(module_code, created.__dict__)  # noqa: S102 - running user code is what this process is for
        except (Exception, SystemExit) as error:
            raise CodeLoadFailed(message_of(error), trace_of(error, text)) from error
        if entry not in created.__dict__:
            raise CodeLoadFailed(f"the code does not define `{entry}`", "")
        self._functions[key] = (created.__dict__[entry], text)
        while len(self._functions) > CACHED:
            self._functions.popitem(last=False)

    def trace(self, key: str, error: BaseException) -> str:
        """The traceback of an error that the function under `key` raised, with its own lines."""
        return trace_of(error, self._functions[key][1] if key in self._functions else "")


def message_of(error: BaseException) -> str:
    """What a person sees of an error: its text, or its class where it has none."""
    return str(error) or type(error).__name__


def trace_of(error: BaseException, text: str) -> str:
    """A traceback that starts where user code starts and shows its source lines."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(frames) if frame.filename == USER_FILE), 0)
    lines = text.splitlines()
    shown = [
        traceback.FrameSummary(f.filename, f.lineno, f.name, line=lines[f.lineno - 1])
        if f.filename == USER_FILE and f.lineno and f.lineno <= len(lines)
        else f
        for f in frames[first:]
    ]
    head = ["Traceback (most recent call last):\n"] if shown else []
    return "".join(
        [*head, *traceback.format_list(shown), *traceback.format_exception_only(type(error), error)]
    )
