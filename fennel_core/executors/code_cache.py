"""Load user code, cached by the hash of its text (executor environment).

The text is a module that re-creates the dataset or featureset class and ends in the function to
call. It is executed once per process. The client's classes find the marker `__fennel_gen_code__`
through `sys.modules`, so an extractor's module is registered as `Featureset.extractor` before it
runs. A failed load is not cached: a later commit may provide what was missing. The key is a digest
of the text, which is checked: no text runs under the key of another one.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from fennel_core.executors.internal_errors import CodeLoadFailed

CACHED = 512
"""Functions that one process caches; the least recently used one is evicted."""
USER_FILE = "<string>"
"""File name of executed text. The client's class decorators expect text without a file."""


class CodeCache:
    """The loaded functions of one process."""

    def __init__(self) -> None:
        self._functions: OrderedDict[str, tuple[Callable[..., Any], str]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._functions

    def function(self, key: str) -> Callable[..., Any]:
        """Return the function loaded under `key`."""
        self._functions.move_to_end(key)
        return self._functions[key][0]

    def load(self, key: str, text: str, entry: str, module: str | None) -> None:
        """Execute `text` and cache its function `entry`; raises `CodeLoadFailed`."""
        if key != code_key(text, entry, module):
            raise CodeLoadFailed("its text does not have the digest that the call names", "")
        created = types.ModuleType(module or entry)
        if module is not None:
            sys.modules[module] = created
        try:
            # dont_inherit: the `from __future__` of this file must not apply to user code.
            module_code = compile(text, USER_FILE, "exec", dont_inherit=True)
            exec(module_code, created.__dict__)  # noqa: S102 - running user code is what this process is for
        # Outermost handler of user code, which may raise anything.
        except BaseException as error:
            raise CodeLoadFailed(message_of(error), trace_of(error, text)) from error
        if entry not in created.__dict__:
            raise CodeLoadFailed(f"the code does not define `{entry}`", "")
        self._functions[key] = (created.__dict__[entry], text)
        while len(self._functions) > CACHED:
            self._functions.popitem(last=False)

    def trace(self, key: str, error: BaseException) -> str:
        """Return the traceback of an error that the function `key` raised."""
        return trace_of(error, self._functions[key][1] if key in self._functions else "")


def code_key(text: str, entry: str, module: str | None) -> str:
    """Return the key of code: a digest of its text, entry point and module name."""
    return hashlib.sha256("\0".join((text, entry, module or "")).encode()).hexdigest()


def message_of(error: BaseException) -> str:
    """What a person sees of an error: its text, or its class where it has none."""
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001  # the text of an error is a method of user code, too
        return type(error).__name__


def trace_of(error: BaseException, text: str) -> str:
    """Return a traceback that starts at user code, with its source lines."""
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
