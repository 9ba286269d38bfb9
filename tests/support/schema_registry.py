"""A schema registry with Confluent's protocol: in memory, over HTTP, and with faults."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from fennel_core.connections.schema_registry import (
    RegisteredSchema,
    SchemaReference,
    SchemaRegistryUnusable,
    SchemaUnknown,
)

UNAVAILABLE = 503


@dataclass
class MemoryRegistry:
    """Schemas by id and by subject and version; `away`: nothing can be asked."""

    schemas: list[RegisteredSchema] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    """Subjects that were deleted softly: over HTTP only `deleted=true` finds them."""
    away: bool = False
    reads: int = 0

    def add(
        self,
        text: object,
        kind: str = "AVRO",
        subject: str = "orders-value",
        references: tuple[SchemaReference, ...] = (),
    ) -> int:
        """Register a version of a subject; return its id."""
        written = text if isinstance(text, str) else json.dumps(text)
        schema = RegisteredSchema(written, kind, references)
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        self.subjects.setdefault(subject, []).append(number)
        return number

    def by_id(self, number: int) -> RegisteredSchema:
        self.reads += 1
        if self.away:
            raise SchemaRegistryUnusable("the registry is away")
        if not 1 <= number <= len(self.schemas):
            raise SchemaUnknown("the registry does not have it")
        return self.schemas[number - 1]

    def version(self, subject: str, version: int) -> RegisteredSchema:
        versions = self.subjects.get(subject, [])
        if not 1 <= version <= len(versions):
            raise SchemaUnknown("the registry does not have it")
        return self.by_id(versions[version - 1])


@dataclass
class HttpRegistry:
    """A `MemoryRegistry` over HTTP. `statuses`: of the next responses, which have no schema."""

    memory: MemoryRegistry
    url: str = ""
    auth: str | None = None
    statuses: list[int] = field(default_factory=list)
    body: bytes | None = None
    encoding: str | None = None
    """What its responses say about how they are compressed."""
    requests: list[str] = field(default_factory=list)

    def response(self, path: str, authorization: str | None) -> tuple[int, Any]:
        """Return status and body, as Confluent's registry does."""
        self.requests.append(path)
        if self.statuses:
            return self.statuses.pop(0), {"error_code": 50001, "message": "out of order"}
        if self.auth is not None and authorization != self.auth:
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        path, _, query = path.partition("?")
        parts = [unquote(part) for part in path.split("/")[1:]]
        try:
            match parts:
                case ["schemas", "types"]:
                    return 200, ["JSON", "PROTOBUF", "AVRO"]
                case ["schemas", "ids", number]:
                    return 200, _described(self.memory.by_id(int(number)))
                case ["subjects", subject, "versions", version]:
                    if subject in self.memory.deleted and query != "deleted=true":
                        return 404, {"error_code": 40401, "message": "not found"}
                    return 200, _described(self.memory.version(subject, int(version)))
        except SchemaUnknown:
            code = 40403 if parts[0] == "schemas" else 40402
            return 404, {"error_code": code, "message": "not found"}
        return 404, "<html>no such page</html>"


def basic(user: str, password: str) -> str:
    """Return the header of a user."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _described(schema: RegisteredSchema) -> dict[str, Any]:
    found: dict[str, Any] = {"schema": schema.text}
    if schema.type != "AVRO":
        found["schemaType"] = schema.type
    if schema.references:
        found["references"] = [
            {"name": r.name, "subject": r.subject, "version": r.version} for r in schema.references
        ]
    return found


@contextmanager
def http_registry(memory: MemoryRegistry | None = None) -> Iterator[HttpRegistry]:
    """Serve a registry on a port of its own."""
    registry = HttpRegistry(memory or MemoryRegistry())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, found = registry.response(self.path, self.headers.get("Authorization"))
            own = registry.body if status == 200 else None
            body = own if own is not None else json.dumps(found).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/schemas/types")
            if registry.encoding is not None:
                self.send_header("Content-Encoding", registry.encoding)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def framed(number: int, body: bytes) -> bytes:
    """Return a message with Confluent's header."""
    return b"\0" + number.to_bytes(4, "big") + body
