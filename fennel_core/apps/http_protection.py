"""What every HTTP server of the platform refuses before its application sees the request.

One middleware around each application, and one set of limits for the protocol below it
(`http_protocol.py`):

- `Host` must be a name of this server, which defeats DNS rebinding (`settings/hosts.py`); a
  development token needs a host of this machine.
- `Origin`, which browsers send with requests of web pages, must be the server's own address: no
  page of another origin may call the API, with or without a preflight. Browsers send none with a
  GET of a page's image, script or frame; what they say of its page in `Sec-Fetch-Site` decides.
- Requests under way, and the bytes of large bodies that they may hold, are bounded for the process.
  Beyond that a request is refused with status 503 and `Retry-After`; nothing waits in a queue
  without a bound, because all that waits behind is a request under way.

Health checks are exempt from the bounds: a busy server is not a dead one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from fennel_core.connections.api_errors import (
    DevelopmentTokenHost,
    HostNotAllowed,
    OriginNotAllowed,
    ServerBusy,
)
from fennel_core.settings.hosts import DEV_PREFIX, HostRules, host_rules
from fennel_core.settings.model import MIB, Settings
from fennel_core.telemetry.errors import send_error, wants_json
from fennel_core.telemetry.health import PATHS
from fennel_core.telemetry.metrics import counter
from fennel_core.vocab.errors import ApiError

SMALL_BODY_BYTES: Final = 64 * 1024
"""Bodies up to this size are bounded by the number of requests and not counted."""
KNOWN_HOSTS: Final = 1000
"""Results of the check of `Host` that are cached."""
SECURITY_HEADERS: Final = (
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)
"""Of every response; `no-store` because responses hold users' data."""
NO_PAGES: Final = (("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),)
"""Of servers without pages."""
ONLY_TLS: Final = (("strict-transport-security", "max-age=31536000"),)
REFUSED: Final = counter(
    "fennel_requests_refused_counter",
    "Requests that were refused before they were read, by the code of the error.",
    ("code",),
    exact_name=True,
)
OTHER_SITES: Final = frozenset({b"cross-site", b"same-site"})
"""Values of `Sec-Fetch-Site` of pages of another origin. Browsers send it to loopback and with TLS.
"""
_DEV_BEARER: Final = f"bearer {DEV_PREFIX}".encode()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The certificate chain and the private key, both PEM."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Protection:
    """The limits of one server; `has_pages`: it serves pages to browsers."""

    hosts: HostRules = field(default_factory=HostRules)
    requests: int = 1000
    bodies_bytes: int = 512 * MIB
    connections: int = 10_000
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    body_limit_bytes: int = 10 * MIB
    has_pages: bool = False
    tls: TlsFiles | None = None

    @property
    def response_headers(self) -> list[tuple[str, str]]:
        """The headers of every response."""
        return [
            *SECURITY_HEADERS,
            *(() if self.has_pages else NO_PAGES),
            *(() if self.tls is None else ONLY_TLS),
        ]


def protection_of(settings: Settings, service: str, *, public: bool = False) -> Protection:
    """Return the limits of a server. `public`: users call it, so TLS applies to it."""
    tls = None
    if public and settings.tls_certificate is not None:
        assert settings.tls_key is not None, "the settings require both"
        tls = TlsFiles(settings.tls_certificate, settings.tls_key)
    return Protection(
        host_rules(settings, service, public=public),
        settings.requests_at_once,
        settings.bodies_bytes,
        settings.connections,
        settings.header_timeout_s,
        settings.body_timeout_s,
        settings.body_limit_bytes,
        has_pages=service == "definition",
        tls=tls,
    )


@dataclass(slots=True)
class _RequestHeaders:
    """The headers that the middleware reads. `hosts`: how many `Host` headers there are."""

    host: bytes = b""
    hosts: int = 0
    origin: bytes | None = None
    site: bytes = b""
    mode: bytes = b""
    destination: bytes = b""
    authorization: bytes = b""
    length: bytes | None = None
    is_chunked: bool = False
    accept: bytes = b""


class ProtectedApplication:
    """The middleware. Use from one event loop."""

    def __init__(self, app: ASGIApp, protection: Protection) -> None:
        self._app = app
        self._protection = protection
        self._under_way = 0
        self._bodies_bytes = 0
        self._known_hosts: dict[bytes, tuple[bool, bool]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _read(scope)
        held_bytes = _large_body_bytes(headers, self._protection.body_limit_bytes)
        refusal = self._refusal(scope, headers, held_bytes)
        if refusal is not None:
            REFUSED.labels(refusal.code).inc()
            await send_error(send, refusal, as_json=wants_json(headers.accept.decode("latin-1")))
            return
        self._under_way += 1
        self._bodies_bytes += held_bytes
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1
            self._bodies_bytes -= held_bytes

    def _refusal(self, scope: Scope, headers: _RequestHeaders, held_bytes: int) -> ApiError | None:
        host = headers.host.decode("latin-1")
        # HTTP/1.0 knows no `Host`; browsers always send one.
        if headers.hosts > 1 or (headers.hosts == 1 and not self._verdict(headers.host)[0]):
            return HostNotAllowed(host)
        if headers.origin is not None and not _is_own(headers.origin, headers.host):
            return OriginNotAllowed(f"`{headers.origin.decode('latin-1')}`")
        if headers.site in OTHER_SITES and not _is_link(headers):
            return OriginNotAllowed("another site")
        if headers.authorization[: len(_DEV_BEARER)].lower() == _DEV_BEARER and (
            headers.hosts != 1 or not self._verdict(headers.host)[1]
        ):
            return DevelopmentTokenHost(host)
        if scope["path"] in PATHS:
            return None
        limits = self._protection
        if self._under_way >= limits.requests:
            return ServerBusy(f"{limits.requests} requests (FENNEL_REQUESTS_AT_ONCE)")
        if held_bytes and self._bodies_bytes + held_bytes > limits.bodies_bytes:
            return ServerBusy(f"{limits.bodies_bytes} bytes of bodies (FENNEL_BODIES_BYTES)")
        return None

    def _verdict(self, host: bytes) -> tuple[bool, bool]:
        """Return whether the host is allowed, and whether development tokens are with it."""
        known = self._known_hosts.get(host)
        if known is None:
            rules, text = self._protection.hosts, host.decode("latin-1")
            known = rules.allows(text), rules.allows_development_tokens(text)
            if len(self._known_hosts) >= KNOWN_HOSTS:
                self._known_hosts.clear()
            self._known_hosts[host] = known
        return known


def _read(scope: Scope) -> _RequestHeaders:
    found = _RequestHeaders()
    for name, value in scope["headers"]:
        match name:
            case b"host":
                found.host = value
                found.hosts += 1
            case b"authorization":
                found.authorization = value
            case b"content-length":
                found.length = value
            case b"origin":
                found.origin = value
            case b"sec-fetch-site":
                found.site = value
            case b"sec-fetch-mode":
                found.mode = value
            case b"sec-fetch-dest":
                found.destination = value
            case b"accept":
                found.accept = value
            case b"transfer-encoding":
                found.is_chunked = True
    return found


def _large_body_bytes(headers: _RequestHeaders, limit_bytes: int) -> int:
    """Return how many bytes the body may hold; 0 for a small one.

    The application refuses lengths that are malformed or beyond its limit.
    """
    if headers.is_chunked:
        return limit_bytes
    if headers.length is None or not headers.length.isdigit():
        return 0
    length = min(int(headers.length), limit_bytes)
    return length if length > SMALL_BODY_BYTES else 0


def _is_link(headers: _RequestHeaders) -> bool:
    """Return whether a person follows a link: the response replaces the page that has it."""
    return headers.mode == b"navigate" and headers.destination == b"document"


def _is_own(origin: bytes, host: bytes) -> bool:
    """Return whether a request comes from a page of the address that it is sent to.

    The scheme is not compared: a proxy may end TLS before this server.
    """
    scheme, separator, authority = origin.partition(b"://")
    return bool(separator) and scheme in {b"http", b"https"} and authority.lower() == host.lower()
