"""An HTTP endpoint of a user's own, and what became of a request to it.

What a status means decides what becomes of rows, so it is one function (`outcome_of`):

    2xx                                      accepted
    408, 409, 423, 424, 425, 429, 5xx        tried again, not before `Retry-After`
    400, 413, 422                            refused: these rows will never be accepted
    any other, such as 401, 404, 410, 3xx    the endpoint is not set up: nothing is sent until it is

An endpoint that lacks rights or a path would refuse every row, so that is no property of a row.
Redirects are not followed, no proxy, cookie or credential of the environment is used, and what is
read of a response is bounded. Values of headers, which may be secrets, are in no text.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import ClassVar, Final

import httpx

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.external_kafka import OpenSecret, secret_text
from fennel_core.connections.http_addresses import AllowedHosts, HttpOrigin, Resolve, resolved
from fennel_core.connections.stored_connectors import required
from fennel_core.connections.timed_sockets import TimedSockets, TimedTransport
from fennel_core.wire.connectors import Http, HttpPath, PlainSecret

CONNECT_S: Final = 5.0
REQUEST_S: Final = 30.0
"""How long a request may take as a whole."""
RESPONSE_BYTES: Final = 64 * 1024
"""What is read of a response; more closes the connection."""
SHOWN_CHARS: Final = 300
"""What a reason has of a response."""
SECRET_CHARS: Final = 4
"""Shorter words of headers are no secrets, and would make reasons unreadable."""
RESOLVED_S: Final = 30.0
"""How long addresses are used that a name resolved to."""
LONGEST_PAUSE_S: Final = 3600.0
"""The longest `Retry-After` that is kept: a receiver cannot stop a sink for ever."""
RETRIED: Final = frozenset({408, 409, 423, 424, 425, 429})
REFUSED: Final = frozenset({400, 413, 422})
"""What is about the rows of a request; any other status says nothing about them."""
IDEMPOTENCY_KEY: Final = "Idempotency-Key"


class HttpEndpointUnusable(ConnectionsError):
    """An endpoint cannot be reached, is busy, or refuses whatever is sent. Nothing is lost.

    `retry_after_s`: how long the endpoint asks to wait.
    """

    code: ClassVar[str] = "sink-unreachable"

    def __init__(self, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Accepted:
    """The endpoint has the rows."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The endpoint will never accept these rows."""

    reason: str


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Another attempt may succeed, not before `after_s` seconds."""

    reason: str
    after_s: float


@dataclass(frozen=True, slots=True)
class NotSetUp:
    """The endpoint refuses whatever is sent, until it or the connector is changed."""

    reason: str


Outcome = Accepted | Refused | TryAgain | NotSetUp


def outcome_of(status: int, retry_after: str | None, shown: str, now_s: float) -> Outcome:
    """Return what a response means for the rows of its request.

    `shown`: what a reason may have of its body; `now_s`: of the clock, since 1970.
    """
    said = f"status {status}" + (f": {shown}" if shown else "")
    if status in range(200, 300):
        return Accepted()
    if status in RETRIED or status >= 500:
        return TryAgain(f"it responds with {said}", _pause_s(retry_after, now_s))
    if status in range(300, 400):
        return NotSetUp(f"it responds with {said}; redirects are not followed: give its own URL")
    if status in REFUSED:
        return Refused(f"it responds with {said}")
    return NotSetUp(f"it responds with {said}; check the endpoint and the headers")


def _pause_s(retry_after: str | None, now_s: float) -> float:
    """Return the seconds of `Retry-After`, a number or a date; 0 for none or another text."""
    if retry_after is None:
        return 0.0
    text = retry_after.strip()
    try:
        pause_s = int(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - now_s
    except (ValueError, OverflowError):
        return 0.0
    return float(min(max(0.0, pause_s), LONGEST_PAUSE_S))


@dataclass(frozen=True, slots=True)
class ExternalHttp:
    """An endpoint with opened credentials. `title`: connector and path, as people name it."""

    title: str
    url: str
    health: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    ca_cert: str = field(repr=False)

    @property
    def origin(self) -> HttpOrigin:
        return HttpOrigin.of(self.url)


def http_url(connector: Http, path: str) -> str:
    """Return the URL of a path of a connector, whose host is plain text."""
    assert isinstance(connector.host, PlainSecret), "validation requires a host"
    return f"{connector.host.value.rstrip('/')}/{path.lstrip('/')}"


def opened_http(table: HttpPath, title: str, open_secret: OpenSecret) -> ExternalHttp:
    """Return the endpoint of a definition. Raises `SecretUnreadable`."""
    db = required(Http, table.db)
    return ExternalHttp(
        title,
        http_url(db, table.endpoint),
        http_url(db, db.healthz),
        tuple((name, secret_text(value, open_secret)) for name, value in table.headers),
        secret_text(db.ca_cert, open_secret),
    )


class HttpEndpoint:
    """Sends requests to one endpoint, over connections that it keeps; use from any thread.

    Every method blocks. Raises `HttpAddressRefused`, and `HttpEndpointUnusable` where it says so.
    """

    def __init__(
        self,
        external: ExternalHttp,
        allowed: AllowedHosts,
        *,
        connections: int = 1,
        resolve: Resolve = resolved,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises HttpEndpointUnusable for a certificate that is none."""
        self._external, self._allowed, self._resolve = external, allowed, resolve
        self._clock = clock
        self._addresses: list[str] = []
        self._lock = threading.Lock()
        self._resolved_s = float("-inf")
        self._secrets = _shown_secrets(external.headers)
        self._sockets = TimedSockets()
        self._transport = TimedTransport(_context(external), self._sockets, connections)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def send(self, body: bytes, key: str) -> Outcome:
        """Post `body`, JSON, under an idempotency key, and return what became of it."""
        own = {"Content-Type": "application/json", IDEMPOTENCY_KEY: key}
        return self._request("POST", self._external.url, body, own)

    def check(self) -> None:
        """Return if the endpoint's health check succeeds. Raises HttpEndpointUnusable."""
        match self._request("GET", self._external.health, b"", {}):
            case Accepted():
                return
            case TryAgain(reason) | NotSetUp(reason) | Refused(reason):
                raise HttpEndpointUnusable(
                    f"{self._external.title}: the health check `{self._external.health}` fails: "
                    f"{reason}"
                )

    def _request(self, method: str, url: str, body: bytes, own: Mapping[str, str]) -> Outcome:
        """Send one request. What was sent and got no response may have been accepted."""
        origin = self._external.origin
        try:
            address = self._address(origin)
            request = httpx.Request(
                method,
                httpx.URL(url).copy_with(host=address),
                headers=[
                    ("Host", origin.authority),
                    ("Accept-Encoding", "identity"),
                    ("User-Agent", "fennel-core"),
                    *self._external.headers,
                    *own.items(),
                ],
                content=body or None,
                extensions={
                    "sni_hostname": origin.host,
                    "timeout": httpx.Timeout(REQUEST_S / 2, connect=CONNECT_S).as_dict(),
                },
            )
            with self._sockets.within(REQUEST_S):
                return self._outcome(self._transport.handle_request(request))
        except OSError as failed:
            return TryAgain(f"`{origin.host}` has no address: {failed}", 0.0)
        except httpx.LocalProtocolError:
            # Its text may have a header.
            return NotSetUp("a header has characters that cannot be sent, as the end of a line")
        except (UnicodeEncodeError, httpx.InvalidURL):
            return NotSetUp("its URL or a header has characters that cannot be sent")
        except httpx.ProtocolError as failed:
            return TryAgain(type(failed).__name__, 0.0)
        except (httpx.TransportError, ssl.SSLError) as failed:
            self._move_on_from(address)
            return TryAgain(f"{type(failed).__name__}: {self._without_secrets(str(failed))}", 0.0)

    def _outcome(self, response: httpx.Response) -> Outcome:
        content, end = b"", ""
        try:
            assert isinstance(response.stream, httpx.SyncByteStream), "the transport is synchronous"
            for chunk in response.stream:
                content += chunk
                if len(content) > RESPONSE_BYTES:
                    break
        except httpx.TransportError:
            end = " (the response was cut off)"  # its status has arrived, and counts
        finally:
            response.close()
        # Before it is cut, or the rest of a value would not be recognized.
        text = self._without_secrets(content.decode(errors="replace"))
        text = (_without_begin_of(self._secrets, text) if end else text) + end
        shown = " ".join(text[: 4 * SHOWN_CHARS].split())[:SHOWN_CHARS]
        retry_after = response.headers.get("Retry-After")
        return outcome_of(response.status_code, retry_after, shown, self._clock())

    def _without_secrets(self, text: str) -> str:
        """Return a text without the values of headers, which an endpoint may send back."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _move_on_from(self, address: str) -> None:
        """Let the next request try another address; requests that failed together do it once."""
        with self._lock:
            if self._addresses[:1] == [address]:
                self._addresses = [*self._addresses[1:], address]

    def _address(self, origin: HttpOrigin) -> str:
        """Return an address to connect to; another one after a failure, if there are several."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._resolved_s > RESOLVED_S:
                last, found = self._addresses, self._allowed.addresses(origin, self._resolve)
                # Addresses that are known keep their order, so one that failed stays behind.
                self._addresses = [a for a in last if a in found]
                self._addresses += [a for a in found if a not in last]
                self._resolved_s = now_s
            return self._addresses[0]


def _shown_secrets(headers: Sequence[tuple[str, str]]) -> list[str]:
    """Return what of the headers is in no text: values and their words, the longest first."""
    words = {word for _, value in headers for word in (value, *value.split())}
    return sorted((w for w in words if len(w) >= SECRET_CHARS), key=len, reverse=True)


def _without_begin_of(secrets: Sequence[str], text: str) -> str:
    """Return a text that was cut off without the begin of a secret at its end."""
    for each in secrets:
        for size in range(len(each) - 1, SECRET_CHARS - 1, -1):
            if text.endswith(each[:size]):
                return f"{text[:-size]}***"
    return text


def _context(external: ExternalHttp) -> ssl.SSLContext:
    """Return a context that verifies; with the connector's certificate, no other one is trusted."""
    try:
        return ssl.create_default_context(cadata=external.ca_cert or None)
    except (ssl.SSLError, ValueError) as wrong:
        raise HttpEndpointUnusable(
            f"{external.title}: `ca_cert` is no certificate in PEM format ({wrong})"
        ) from wrong
