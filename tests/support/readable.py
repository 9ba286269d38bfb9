"""Frozen values as text that can be read and diffed.

A value is one line if it fits, else one field per line.
"""

from dataclasses import fields, is_dataclass
from enum import Enum

from fennel_core.wire.entities import Metadata
from fennel_core.wire.pycode import PyCode

WIDTH = 120


def readable(value: object, indent: int = 0) -> str:
    """Render `value`.

    User code is cut to its entry point and its own text, metadata to its non-default fields.
    """
    flat = _flat(value)
    if len(flat) + indent <= WIDTH and "\n" not in flat:
        return flat
    inner, pad = " " * (indent + 2), " " * indent
    if isinstance(value, PyCode):
        code = "\n".join(f"{inner}| {line}" for line in value.core_code.rstrip().split("\n"))
        includes = [include.entry_point for include in value.includes]
        return (
            f"PyCode({value.entry_point}, includes={includes}, "
            f"refs={[name for name, _ in value.ref_includes]}\n{code}\n{pad})"
        )
    if isinstance(value, tuple):
        return (
            "(\n" + "".join(f"{inner}{readable(item, indent + 2)}\n" for item in value) + f"{pad})"
        )
    if is_dataclass(value):
        parts = "".join(
            f"{inner}{name}={readable(item, indent + 2)}\n" for name, item in _set_fields(value)
        )
        return f"{type(value).__name__}(\n{parts}{pad})"
    return flat


def _set_fields(value: object) -> list[tuple[str, object]]:
    pairs = [(f.name, getattr(value, f.name)) for f in fields(value)]
    return [
        (name, item)
        for name, item in pairs
        if item is not None and item is not False and item != () and item != ""
    ]


def _flat(value: object) -> str:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PyCode):
        return "\n"  # never fits one line
    if isinstance(value, Metadata) and not _set_fields(value):
        return "–"
    if isinstance(value, tuple):
        return "(" + ", ".join(_flat(item) for item in value) + ")"
    if is_dataclass(value):
        return (
            f"{type(value).__name__}("
            + ", ".join(f"{name}={_flat(item)}" for name, item in _set_fields(value))
            + ")"
        )
    return repr(value)
