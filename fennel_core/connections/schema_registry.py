"""A schema registry of the user's own that speaks Confluent's protocol: schemas by their id.

What became of a request decides what becomes of messages, so two outcomes must never be confused.
`SchemaUnknown`: the registry itself says that it has no such schema; the message is at fault.
`SchemaRegistryUnusable`: anything else that is no schema, a wrong path or a proxy's error page
included; nothing is known about the message, and it is read again later.

A schema never changes under its id, so callers keep what they have read. The address is the user's:
no redirect is followed, no proxy or credential of the environment is used, what is read is bounded,
and an error text has nothing of the response but its status.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NoReturn, Protocol
from urllib.parse import quote

import httpx
import msgspec

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.external_kafka import OpenSecret, secret_text
from fennel_core.wire.connectors import BasicAuth, SchemaRegistry, TokenAuth

DEADLINE_S: Final = 10.0
"""How long one schema may take, with all attempts: a commit waits for it."""
ATTEMPT_S: Final = 4.0
PAUSES_S: Final = (0.1, 0.3, 1.0)
"""Pauses between attempts."""
RESPONSE_BYTES: Final = 4 * 1024 * 1024
REFERENCES: Final = 64
"""Schemas that one schema may refer to, directly or not."""
RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
NOT_FOUND: Final = frozenset({40401, 40402, 40403})
"""Confluent's codes for a subject, a version and a schema that do not exist."""


class SchemaRegistryUnusable(ConnectionsError):
    """A registry cannot be reached, refuses the credentials, or responds with something else.

    The text names the address and what to check. A retry helps if the registry was down.
    """

    code: ClassVar[str] = "schema-registry-unreachable"


class SchemaUnknown(ConnectionsError):
    """The registry says that it has no such schema."""

    code: ClassVar[str] = "schema-unknown"


class SchemaReference(msgspec.Struct, frozen=True):
    """A schema that another one imports under `name`."""

    name: str
    subject: str
    version: int


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema as it was registered: `type` is AVRO, PROTOBUF or JSON."""

    text: str = msgspec.field(name="schema")
    type: str = msgspec.field(name="schemaType", default="AVRO")
    references: tuple[SchemaReference, ...] = ()


class _Failure(msgspec.Struct):
    error_code: int = 0


class SchemaReader(Protocol):
    """Reads schemas. Raises `SchemaUnknown` and `SchemaRegistryUnusable`; blocks."""

    def by_id(self, number: int) -> RegisteredSchema: ...

    def version(self, subject: str, version: int) -> RegisteredSchema: ...


@dataclass(frozen=True, slots=True)
class Imported:
    """A schema and the name that others import it under."""

    name: str
    schema: RegisteredSchema


def imports_of(schema: RegisteredSchema, registry: SchemaReader) -> list[Imported]:
    """Return all schemas that `schema` refers to, each behind those that it refers to itself.

    Raises `SchemaUnknown`, also for more than `REFERENCES` or a cycle, and
    `SchemaRegistryUnusable`.
    """
    found: dict[str, Imported] = {}

    def visit(references: Sequence[SchemaReference], above: tuple[str, ...]) -> None:
        for each in references:
            if each.name in above or len(above) + len(found) > REFERENCES:
                raise SchemaUnknown("its references are a cycle or too many")
            if each.name not in found:
                read = registry.version(each.subject, each.version)
                visit(read.references, (*above, each.name))
                found[each.name] = Imported(each.name, read)

    visit(schema.references, ())
    return list(found.values())


_decode_schema = msgspec.json.Decoder(RegisteredSchema).decode
_decode_failure = msgspec.json.Decoder(_Failure).decode
_decode_types = msgspec.json.Decoder(list[str]).decode


class RegistryClient:
    """See `SchemaReader`. Keeps its connections; use from any thread."""

    def __init__(
        self,
        url: str,
        auth: tuple[str, str] | str | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`auth`: user and password, or a bearer token."""
        self._url, self._sleep, self._deadline_s = url.rstrip("/"), sleep, deadline_s
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        self._sendable = _is_sendable(auth)
        if not self._sendable:
            auth = None
        if isinstance(auth, str):
            headers["Authorization"] = f"Bearer {auth}"
        self._client = httpx.Client(
            auth=auth if isinstance(auth, tuple) else None,
            headers=headers,
            timeout=ATTEMPT_S,
            verify=ssl.create_default_context(),
            follow_redirects=False,
            trust_env=False,
        )

    @classmethod
    def of(cls, registry: SchemaRegistry, open_secret: OpenSecret) -> RegistryClient:
        """Return the client of a definition's registry. Raises `SecretUnreadable`."""
        match registry.auth:
            case None:
                return cls(registry.url)
            case BasicAuth(login):
                user, password = (secret_text(s, open_secret) for s in (login.user, login.password))
                return cls(registry.url, (user, password))
            case TokenAuth(token):
                return cls(registry.url, secret_text(token, open_secret))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def check(self, kind: str) -> None:
        """Return if the registry can be used and has schemas of `kind`.

        Raises `SchemaRegistryUnusable`.
        """
        try:
            types = _decode_types(self._get("/schemas/types"))
        except msgspec.MsgspecError as wrong:
            raise self._unusable("it does not respond as a schema registry does") from wrong
        except SchemaUnknown as unknown:
            raise self._unusable("it has no list of schema types") from unknown
        if kind not in types:
            raise self._unusable(f"it has no schemas of type {kind}")

    def by_id(self, number: int) -> RegisteredSchema:
        """Return the schema with this id; see `SchemaReader`."""
        return self._schema(f"/schemas/ids/{number}")

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """Return a version of a subject; see `SchemaReader`."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        # A subject that was deleted softly is still what a schema was registered with.
        return self._schema(f"{path}?deleted=true")

    def _schema(self, path: str) -> RegisteredSchema:
        try:
            return _decode_schema(self._get(path))
        except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
            raise self._unusable("a response of it is no schema") from wrong

    def _get(self, path: str) -> bytes:
        """Return the body of a successful response; tries again for at most the deadline."""
        if not self._sendable:
            raise self._unusable(
                "its credentials have characters that cannot be sent, such as the end of a line"
            )
        end_s = time.monotonic() + self._deadline_s
        pauses = iter(PAUSES_S)
        while True:
            try:
                status, body = self._attempt(path, end_s - time.monotonic())
            except httpx.ProtocolError as failed:
                reason = type(failed).__name__  # its text may have a header, with the secret
            except (httpx.RequestError, ssl.SSLError) as failed:
                reason = f"{type(failed).__name__}: {failed}"
            except (httpx.InvalidURL, UnicodeError) as wrong:  # no name of a host is so long
                raise self._unusable(f"its address is not valid ({wrong})") from wrong
            else:
                if status == httpx.codes.OK:
                    return body
                if status not in RETRIED:
                    self._refused(status, body)
                reason = f"it responds with status {status}"
            pause_s = next(pauses, None)
            if pause_s is None or time.monotonic() + pause_s >= end_s:
                raise self._unusable(reason)
            self._sleep(pause_s)

    def _attempt(self, path: str, left_s: float) -> tuple[int, bytes]:
        timeout = max(0.1, min(ATTEMPT_S, left_s))
        end_s = time.monotonic() + timeout
        with self._client.stream("GET", self._url + path, timeout=timeout) as response:
            body = bytearray()
            for part in response.iter_bytes():
                body += part
                if len(body) > RESPONSE_BYTES:
                    raise self._unusable(f"a response has more than {RESPONSE_BYTES} bytes")
                if time.monotonic() > end_s:
                    raise httpx.ReadTimeout("the response takes too long")
            return response.status_code, bytes(body)

    def _refused(self, status: int, body: bytes) -> NoReturn:
        if status == httpx.codes.NOT_FOUND:
            try:
                code = _decode_failure(body).error_code
            except (msgspec.MsgspecError, UnicodeDecodeError):
                code = 0
            if code in NOT_FOUND:
                raise SchemaUnknown(f"the schema registry at `{self._url}` does not have it")
            raise self._unusable("it has no such path; is it the registry's own address?")
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise self._unusable(f"it refuses the credentials (status {status})")
        raise self._unusable(f"it responds with status {status}")

    def _unusable(self, reason: str) -> SchemaRegistryUnusable:
        return SchemaRegistryUnusable(
            f"the schema registry at `{self._url}` cannot be used: {reason}; check its address "
            "and credentials"
        )


def _is_sendable(auth: tuple[str, str] | str | None) -> bool:
    """Return whether credentials have no control characters; a token is a header as it is."""
    match auth:
        case None:
            return True
        case str():
            return auth.isascii() and auth.isprintable()
        case (user, password):
            return not any(ord(each) < ord(" ") or each == "\x7f" for each in user + password)
