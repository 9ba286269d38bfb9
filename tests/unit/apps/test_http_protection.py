"""What a server refuses before its application sees a request, over real sockets."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from starlette.types import Receive, Scope, Send

from fennel_core.apps import http_protocol, tls
from fennel_core.apps.errors import SetupFailed
from fennel_core.apps.http_protection import Protection, TlsFiles
from fennel_core.apps.serve import serve_http
from fennel_core.connections.asgi import ClientDisconnected, read_body
from tests.support.polling import eventually

LIMIT = 200_000


@dataclass
class Recorder:
    """An application that records its requests and answers when it may."""

    requests: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append(scope["path"])
        try:
            body = await read_body(scope, receive, LIMIT)
        except ClientDisconnected:
            self.ended.append("disconnected")
            return
        if scope["path"] not in {"/healthz", "/quick"}:
            await self.may_answer.wait()
        length = str(len(body)).encode()
        headers = [(b"content-length", str(len(length)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": length})


@dataclass
class Served:
    port: int
    app: Recorder

    async def connect(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)

    async def send(self, request: bytes, context: ssl.SSLContext | None = None) -> bytes:
        """Return the whole response; the request asks for the end of the connection."""
        reader, writer = await self.connect(context)
        writer.write(request)
        async with asyncio.timeout(30):
            response = await reader.read()
        writer.close()
        return response

    async def get(self, *headers: str, path: str = "/quick") -> bytes:
        return await self.send(request("GET", path, *headers))


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    named = {header.partition(":")[0].lower() for header in headers}
    lines = [f"{method} {path} HTTP/1.1", *headers, "Connection: close"]
    if "host" not in named:
        lines.append("Host: localhost")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def serving(protection: Protection) -> AsyncIterator[Served]:
    app = Recorder()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        task = asyncio.create_task(
            serve_http(app, "", 0, protection=protection, grace_s=1, listener=listener)
        )

        async def listens() -> bool:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            return False

        try:
            await eventually(listens)
            yield Served(port, app)
        finally:
            app.may_answer.set()
            task.cancel()
            await asyncio.wait([task])


def status_of(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def headers_of(response: bytes) -> dict[str, str]:
    lines = response.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def code_of(response: bytes) -> tuple[int, str]:
    return status_of(response), headers_of(response).get("x-fennel-error-code", "")


async def test_a_page_with_a_rebinding_name_or_another_origin_reads_and_writes_nothing() -> None:
    """What a browser sends for such a page, for each kind of request that it can make."""
    rebinding = ("Host: evil.example:7400", "Origin: http://evil.example:7400")
    other_origin = ("Host: localhost:7400", "Origin: http://evil.example")
    token = "Authorization: Bearer dev-demo"  # noqa: S105  # a fixed value of a test. a development token
    async with serving(Protection()) as served:
        for headers, code in (
            (rebinding, "host-not-allowed"),
            (rebinding[:1], "host-not-allowed"),
            (other_origin, "origin-not-allowed"),
            (("Host: localhost:7400", "Origin: null"), "origin-not-allowed"),
            (("Host: localhost:7400", "Origin: http://localhost:9999"), "origin-not-allowed"),
            (("Host: localhost", "Host: evil.example"), "host-not-allowed"),
        ):
            for method in ("GET", "POST", "OPTIONS", "PUT", "DELETE"):
                sent = request(method, "/api/v1/commit", token, *headers, body=b"x")
                response = await served.send(sent)
                assert code_of(response) == (403, code), (headers, method)
                assert not any(
                    name.startswith("access-control-") for name in headers_of(response)
                ), "no preflight succeeds"
            for path in ("/healthz", "/metrics", "/status"):
                assert code_of(await served.get(*headers, path=path)) == (403, code)
        assert served.app.requests == []
        own = ("Host: localhost:7400", "Origin: http://localhost:7400", token)
        assert status_of(await served.get(*own)) == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_request_of_another_site_without_an_origin_is_refused(site: str) -> None:
    """What a browser sends for images, scripts, frames and `fetch` without CORS."""
    async with serving(Protection()) as served:
        for path in ("/quick", "/healthz", "/status"):
            fetched = (f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: no-cors")
            assert code_of(await served.get(*fetched, path=path)) == (403, "origin-not-allowed")
        framed = (f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe")
        assert code_of(await served.get(*framed)) == (403, "origin-not-allowed")
        assert served.app.requests == []
        followed = (*framed[:2], "Sec-Fetch-Dest: document")
        assert status_of(await served.get(*followed)) == 200, "a link, as of Airflow's page"
        for own in ("same-origin", "none"):
            headers = (f"Sec-Fetch-Site: {own}", "Sec-Fetch-Mode: no-cors")
            assert status_of(await served.get(*headers)) == 200


async def test_development_tokens_need_a_host_of_this_machine() -> None:
    token = "Authorization: bearer DEV-demo"  # noqa: S105  # a fixed value of a test. a development token
    async with serving(Protection()) as served:
        refused = await served.get(token, "Host: 10.0.0.1")
        assert code_of(refused) == (401, "development-token-host")
        without_host = b"GET /quick HTTP/1.0\r\nAuthorization: Bearer dev-demo\r\n\r\n"
        assert code_of(await served.send(without_host)) == (401, "development-token-host")
        assert status_of(await served.get("Authorization: Bearer other", "Host: 10.0.0.1")) == 200
        assert status_of(await served.get(token, "Host: 127.0.0.1:7400")) == 200


async def test_every_response_has_the_security_headers() -> None:
    async with serving(Protection()) as served:
        for response in (await served.get(), await served.get("Host: evil.example")):
            headers = headers_of(response)
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["cache-control"] == "no-store"
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert "strict-transport-security" not in headers


async def test_requests_beyond_the_bound_are_refused_with_a_time_to_retry() -> None:
    async with serving(Protection(requests=2)) as served:
        held = [asyncio.create_task(served.get(path="/slow")) for _ in range(2)]
        await eventually(lambda: len(served.app.requests) == 2)
        refused = await served.get()
        assert code_of(refused) == (503, "server-busy")
        assert headers_of(refused)["retry-after"] == "1"
        assert status_of(await served.get(path="/healthz")) == 200, "a busy server is alive"
        served.app.may_answer.set()
        assert [status_of(each) for each in await asyncio.gather(*held)] == [200, 200]
        assert status_of(await served.get()) == 200


async def test_bytes_of_large_bodies_are_bounded() -> None:
    large = b"x" * 100_000
    chunked = (
        b"POST /quick HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"Connection: close\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    )
    limits = Protection(bodies_bytes=250_000, body_limit_bytes=LIMIT)
    async with serving(limits) as served:
        assert status_of(await served.send(chunked)) == 200
        held = [
            asyncio.create_task(served.send(request("POST", "/slow", body=large))) for _ in range(2)
        ]
        await eventually(lambda: len(served.app.requests) == 3)
        refused = await served.send(request("POST", "/quick", body=large))
        assert code_of(refused) == (503, "server-busy")
        assert code_of(await served.send(chunked)) == (503, "server-busy"), "its size is unknown"
        assert status_of(await served.send(request("POST", "/quick", body=b"small"))) == 200
        served.app.may_answer.set()
        await asyncio.gather(*held)
        assert status_of(await served.send(request("POST", "/quick", body=large))) == 200


async def dribble(served: Served, first: bytes) -> bytes:
    """Send a beginning and nothing more; return the response until the server closes."""
    return await served.send(first)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: local", b"HTTP/1.1 408 "),
        (b"G", b"HTTP/1.1 408 "),
        (b"", b""),
    ],
)
async def test_a_header_that_does_not_arrive_ends_the_connection(
    first: bytes, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "LOOK_EVERY_S", 0.01)
    async with serving(Protection(header_timeout_s=0.05)) as served:
        response = await dribble(served, first)
        assert response.startswith(expected)
        assert bool(response) == bool(expected)
        assert served.app.requests == []


async def test_a_body_that_does_not_arrive_ends_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "LOOK_EVERY_S", 0.01)
    begun = b"POST /quick HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"
    async with serving(Protection(body_timeout_s=0.05)) as served:
        response = await dribble(served, begun)
        assert code_of(response) == (408, "request-timeout")
        declared = int(headers_of(response)["content-length"])
        assert len(response.partition(b"\r\n\r\n")[2]) == declared
        await eventually(lambda: served.app.ended == ["disconnected"])


async def test_a_slow_application_is_no_late_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "LOOK_EVERY_S", 0.01)
    async with serving(Protection(header_timeout_s=0.05, body_timeout_s=0.05)) as served:
        held = asyncio.create_task(served.send(request("POST", "/slow", body=b"whole")))
        await eventually(lambda: served.app.requests == ["/slow"])
        assert await dribble(served, b"") == b"", "a connection that is late was closed since"
        served.app.may_answer.set()
        assert status_of(await held) == 200


async def test_a_header_without_end_is_refused() -> None:
    async with serving(Protection()) as served:
        endless = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 70_000
        response = await served.send(endless)
        assert code_of(response) == (431, "header-too-large")
        declared = int(headers_of(response)["content-length"])
        assert len(response.partition(b"\r\n\r\n")[2]) == declared


def write_certificate(folder: Path, name: str) -> TlsFiles:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    files = TlsFiles(folder / "certificate.pem", folder / "key.pem")
    for path, content in (
        (files.certificate, certificate.public_bytes(serialization.Encoding.PEM)),
        (
            files.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        ),
    ):
        # A rename, as certificate managers do it.
        new = path.with_suffix(".new")
        new.write_bytes(content)
        os.replace(new, path)
    return files


async def presented(served: Served) -> str:
    """Return the common name of the certificate that the server presents."""
    context = ssl._create_unverified_context()  # noqa: S323  # the certificate is this test's own
    _, writer = await served.connect(context)
    connection = writer.get_extra_info("ssl_object")
    certificate = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True))
    writer.close()
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


async def test_a_certificate_is_reloaded_and_a_broken_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    stamps = tls._stamps

    def counted(files: TlsFiles) -> tuple[tuple[int, int], ...] | None:
        found = stamps(files)
        looks.append(found)
        return found

    monkeypatch.setattr(tls, "_stamps", counted)
    reload = tls.reload_on_change
    monkeypatch.setattr(
        "fennel_core.apps.serve.reload_on_change", lambda c, f: reload(c, f, every_s=0.01)
    )
    files = write_certificate(tmp_path, "first")
    async with serving(replace(Protection(), tls=files)) as served:
        context = ssl._create_unverified_context()  # noqa: S323  # the certificate is this test's own
        response = await served.send(request("GET", "/quick"), context)
        assert status_of(response) == 200
        assert "strict-transport-security" in headers_of(response)
        assert await presented(served) == "first"
        files.certificate.write_text("no certificate")
        now = stamps(files)
        await eventually(lambda: looks.count(now) >= 2)
        assert await presented(served) == "first"
        write_certificate(tmp_path, "second")
        await eventually(_presents(served, "second"))


def _presents(served: Served, name: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await presented(served) == name

    return check


def test_a_certificate_that_cannot_be_used_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match="FENNEL_TLS_CERTIFICATE"):
        tls.server_context(TlsFiles(tmp_path / "none.pem", tmp_path / "none.key"))
