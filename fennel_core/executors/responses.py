"""Parse what a worker sends: the headers of its requests and responses.

User code can send anything in the worker's name. Every value is checked for its type and its
length, so that a malformed message fails the call it belongs to and nothing else.
"""

from __future__ import annotations

import ast
import json
from functools import lru_cache
from typing import Any, Final

from fennel_core.executors.internal_errors import ResponseMalformed

MOST_HEADER_BYTES: Final = 1 << 20
MOST_TEXT_CHARS: Final = 20_000
MOST_NAMES: Final = 1_000


def parse_header(received: bytes) -> dict[str, Any]:
    """Return the header of a request or response; raises `ResponseMalformed`."""
    try:
        header = json.loads(received)
    except (ValueError, RecursionError) as wrong:
        raise ResponseMalformed(f"its header is not JSON: {wrong}") from wrong
    if not isinstance(header, dict) or not isinstance(header.get("op"), str):
        raise ResponseMalformed("its header names no operation")
    return header


def text_of(header: dict[str, Any], name: str) -> str:
    """Return the text `name`, "" if there is none; raises `ResponseMalformed`."""
    value = header.get(name, "")
    if not isinstance(value, str):
        raise ResponseMalformed(f"its `{name}` is not a text")
    # Half of a surrogate pair cannot be sent on.
    return value[-MOST_TEXT_CHARS:].encode(errors="replace").decode()


def names_of(header: dict[str, Any], name: str) -> tuple[str, ...]:
    """Return the list of texts `name`; raises `ResponseMalformed`."""
    value = header.get(name)
    if not isinstance(value, list) or len(value) > MOST_NAMES:
        raise ResponseMalformed(f"its `{name}` is not a list of names")
    return tuple(text_of({name: each}, name) for each in value)


@lru_cache(maxsize=4096)
def texts_in(code: str) -> frozenset[str]:
    """Return the text literals of a module, among which are the secrets that it declares to use."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
