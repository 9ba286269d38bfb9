"""Parse what a worker sends: the headers of its requests and responses.

User code can send anything in the worker's name. Every value is checked for its type and its
length, so that a malformed message fails the call it belongs to and nothing else.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class SecretUse:
    """The secrets that a module declares to use: those that its text names, or any.

    `texts`: its text literals. `computed`: it hands `secrets.get` something else than a literal, or
    hands the function on, so the names are known only when it runs.
    """

    texts: frozenset[str] = frozenset()
    computed: bool = False

    def covers(self, name: str) -> bool:
        """Return whether the module may read the secret `name` of its workspace."""
        return self.computed or name in self.texts


@lru_cache(maxsize=4096)
def secret_use(code: str) -> SecretUse:
    """Return which secrets the text of a module declares to use."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return SecretUse()
    nodes = list(ast.walk(tree))
    texts = frozenset(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    literal_calls = {
        id(node.func)
        for node in nodes
        if isinstance(node, ast.Call)
        and [type(each) for each in node.args] == [ast.Constant]
        and not node.keywords
    }
    computed = any(_is_secrets_get(node) and id(node) not in literal_calls for node in nodes)
    return SecretUse(texts, computed)


def _is_secrets_get(node: ast.AST) -> bool:
    """Return whether this is `secrets.get`, also behind a module: `fennel.lib.secrets.get`."""
    if not isinstance(node, ast.Attribute) or node.attr != "get":
        return False
    owner = node.value
    return (isinstance(owner, ast.Name) and owner.id == "secrets") or (
        isinstance(owner, ast.Attribute) and owner.attr == "secrets"
    )
