"""The OpenAPI description of the whole API, served at `/api/v1/openapi.json`.

FastAPI describes the definition server's routes, but not their bodies, which are read as bytes, and
not the calls that the query and ingest servers respond to. `describe` adds both, the bearer token,
and the error response that all calls share. A test compares the paths with `docs/api.md`.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from fennel_core.definition.routes import API

Schema = dict[str, Any]
TITLE: Final = "Fennel"
VERSION: Final = "1"
ERROR_HEADER: Final = "X-Fennel-Error-Code"

_TEXT: Final[Schema] = {"type": "string"}
_NAME: Final[Schema] = {"type": "string", "minLength": 1}
_OBJECT: Final[Schema] = {"type": "object"}
_BOOLEAN: Final[Schema] = {"type": "boolean"}


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    """Return the schema of an object without other fields."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": sorted(required),
        "additionalProperties": False,
    }


_DATA: Final[Schema] = {
    "description": "Columns, or one object per row, or the JSON text of either.",
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": "array", "items": {}}},
        _list_of(_OBJECT),
        _TEXT,
    ],
}
_BODIES: Final[dict[tuple[str, str], Schema]] = {
    ("post", f"{API}/query"): _object(
        {"inputs": _list_of(_TEXT), "outputs": _list_of(_TEXT), "data": _DATA},
        {"log": {"type": "boolean", "enum": [False]}, "workflow": _TEXT},
    ),
    ("post", f"{API}/log"): _object({"webhook": _TEXT, "endpoint": _TEXT, "data": _DATA}),
    ("post", f"{API}/dataset/{{name}}/lookup"): _object(
        {"keys": _list_of(_OBJECT)},
        {"fields": _list_of(_TEXT), "timestamps": _list_of({})},
    ),
    ("post", f"{API}/dataset/{{name}}/erase"): _object({"erase_keys": _list_of(_OBJECT)}),
    ("post", f"{API}/barrier"): _object(
        {}, {"timeout_s": {"type": "number", "minimum": 0, "maximum": 3600}}
    ),
    ("post", f"{API}/init"): _object({}, {"clone_from": _NAME}),
    ("post", f"{API}/secret/{{name}}"): _object({"value": _TEXT}),
    ("patch", f"{API}/secret/{{name}}"): _object({"value": _TEXT}),
    ("post", f"{API}/workspaces"): _object({"name": _NAME}),
    ("post", f"{API}/operations/purge"): _object(
        {"workspace": _NAME, "assets": _list_of(_NAME)}, {"allow_data_loss": _BOOLEAN}
    ),
}
_COMMIT: Final = f"{API}/commit"
_DATASET: Final[Schema] = {"name": "name", "in": "path", "required": True, "schema": _NAME}
_COUNT: Final[Schema] = {
    "name": "n",
    "in": "query",
    "required": False,
    "schema": {"type": "integer", "minimum": 1},
}
_OTHER_SERVERS: Final[dict[tuple[str, str], tuple[str, list[Schema]]]] = {
    ("post", f"{API}/query"): ("Compute features.", []),
    ("post", f"{API}/log"): ("Write rows to a webhook's endpoint, all of them or none.", []),
    ("post", f"{API}/dataset/{{name}}/lookup"): ("Look up rows of a dataset by key.", [_DATASET]),
    ("get", f"{API}/dataset/{{name}}/inspect"): (
        "Return the last rows of a dataset.",
        [_DATASET, _COUNT],
    ),
    ("post", f"{API}/dataset/{{name}}/erase"): ("Erase keys of a dataset.", [_DATASET]),
    ("post", f"{API}/barrier"): ("Wait until every acknowledged row is visible.", []),
    ("get", "/status"): ("Slots, job partitions and served commits.", []),
    ("get", "/healthz"): ("200 while the process responds.", []),
    ("get", "/readyz"): ("200 when the process can do its work, else 503.", []),
    ("get", "/metrics"): ("Prometheus metrics.", []),
}
"""Calls that FastAPI does not know: summary and parameters."""
_BRANCH: Final[Schema] = {
    "name": "X-FENNEL-BRANCH",
    "in": "header",
    "required": False,
    "schema": _NAME,
}
_ERROR: Final[Schema] = {
    "description": "The reason and the next action.",
    "headers": {ERROR_HEADER: {"schema": _TEXT, "description": "Stable code of the error."}},
    "content": {"text/plain": {"schema": _TEXT}},
}


def describe(app: FastAPI) -> Schema:
    """Return the description of all servers' calls; FastAPI's own part is read from `app`."""
    described = get_openapi(title=TITLE, version=VERSION, routes=app.routes)
    paths: dict[str, dict[str, Any]] = {
        path.replace(":path}", "}"): operations for path, operations in described["paths"].items()
    }
    for (method, path), (summary, parameters) in _OTHER_SERVERS.items():
        paths.setdefault(path, {})[method] = {"summary": summary, "parameters": parameters}
    for (method, path), schema in _BODIES.items():
        paths[path][method]["requestBody"] = _json_body(schema)
    paths[_COMMIT]["post"]["requestBody"] = {
        "required": True,
        "description": "The client's SyncRequest.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
    for path, operations in paths.items():
        for operation in operations.values():
            _complete(path, operation)
    return described | {
        "paths": dict(sorted(paths.items())),
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _json_body(schema: Schema) -> Schema:
    return {
        "required": bool(schema["required"]),
        "content": {"application/json": {"schema": schema}},
    }


def _complete(path: str, operation: Schema) -> None:
    """Give the operation the parameters and responses that every call has."""
    given = [
        parameter
        for parameter in operation.get("parameters", [])
        if parameter["name"].lower() not in {"authorization", "x-fennel-branch"}
    ]
    operation["parameters"] = given + ([_BRANCH] if path.startswith(f"{API}/") else [])
    operation["responses"] = {"200": {"description": "Success."}, "default": _ERROR}
