"""Read JSON request bodies and write JSON responses."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from fastapi import Request, Response

from fennel_core.connections.asgi import read_body
from fennel_core.definition.errors import JsonMalformed


async def json_body(request: Request, limit_bytes: int, fields: frozenset[str]) -> dict[str, Any]:
    """Return the body as a JSON object; an empty body is an empty object.

    A field that is not one of `fields` would have no effect, so it is refused by name. Raises
    JsonMalformed, and the errors of `connections.asgi.read_body`.
    """
    body = await read_body(request.scope, request.receive, limit_bytes)
    try:
        value = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as malformed:
        raise JsonMalformed(f"the request body is not valid JSON: {malformed}") from malformed
    if not isinstance(value, dict):
        raise JsonMalformed("the request body must be a JSON object")
    for name in value:
        if name not in fields:
            valid = ", ".join(sorted(fields))
            raise JsonMalformed(
                f"unknown field `{name}` in the request body; valid fields: {valid}"
            )
    return value


def object_body(
    properties: Mapping[str, object], required: Collection[str] | None = ()
) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads a JSON object with `json_body`.

    `required`: of its properties; None if the body may be absent.
    """
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = sorted(required)
    body: dict[str, Any] = {"content": {"application/json": {"schema": schema}}}
    return {"requestBody": body if required is None else {"required": True} | body}


def required_string(body: dict[str, Any], name: str) -> str:
    """Return the field `name` of a request body. Raises JsonMalformed."""
    value = body.get(name)
    if not isinstance(value, str):
        raise JsonMalformed(f"`{name}` is required in the request body and must be a string")
    return value


def optional_flag(body: dict[str, Any], name: str) -> bool:
    """Return the flag `name` of a request body; False without it. Raises JsonMalformed."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise JsonMalformed(f"`{name}` in the request body must be true or false")
    return value


def optional_number(body: dict[str, Any], name: str) -> float | None:
    """Return the number `name` of a request body, which may be null. Raises JsonMalformed."""
    value = body.get(name, ...)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise JsonMalformed(f"`{name}` is required in the request body: a number, or null for none")
    return float(value)


def json_response(value: Any) -> Response:
    """Return status 200 with a JSON body; the client requires exactly this content type."""
    return Response(msgspec.json.encode(value), headers={"content-type": "application/json"})
