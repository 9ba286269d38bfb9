"""Receivers of HTTP sinks: in memory with faults by script, and a real server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any

from fennel_core.connections.external_http import Outcome, outcome_of

Answer = tuple[int, Mapping[str, str]]


@dataclass
class Receiver:
    """Remembers keys, as a receiver should: what came under one is taken once."""

    answers: Callable[[str, bytes], Answer | None] = lambda *_: None
    """What it responds instead of 200; None: it takes the request."""
    bodies: dict[str, bytes] = field(default_factory=dict)
    """By key, in order of arrival."""
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    seen: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    """Path and headers of each request over HTTP."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, key: str, body: bytes) -> Answer:
        """Return status and headers of the response."""
        with self.lock:
            self.requests.append((key, body))
            answer = self.answers(key, body)
            if answer is not None:
                return answer
            assert self.bodies.setdefault(key, body) == body, "a key names one body"
            return 200, {}

    def events(self) -> list[Any]:
        """Return the events that were taken, each once."""
        return [event for body in self.bodies.values() for event in json.loads(body)]

    def send(self, body: bytes, key: str) -> Outcome:
        """See `sinks.http.Endpoint`."""
        status, headers = self.take(key, body)
        return outcome_of(status, headers.get("Retry-After"), "", 0.0)

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def served(receiver: Receiver, tls: SSLContext | None = None, port: int = 0) -> Iterator[int]:
    """Serve a receiver on a port of this machine, which is returned; 0: a free one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.seen.append((self.path, dict(self.headers)))
            self._respond(receiver.take(self.headers["Idempotency-Key"], body))

        def do_GET(self) -> None:
            receiver.seen.append((self.path, dict(self.headers)))
            self._respond(receiver.answers("", b"") or (200, {}))

        def _respond(self, answer: Answer) -> None:
            status, headers = answer
            text = headers.get("text", "").encode()
            self.send_response(status)
            for name, value in headers.items():
                if name != "text":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def slow(begins: bytes, read_bytes: int) -> Iterator[int]:
    """Serve a port where a request never ends, which is returned.

    So many bytes of the request are read at a time; then comes what a response `begins` with, and
    its next byte, each a tenth of a second later.
    """
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                request = b""
                while b"END" not in request:
                    request += connection.recv(read_bytes)
                    time.sleep(0.1)  # what makes it slow
                connection.sendall(begins)
                while True:
                    connection.sendall(b"x")
                    time.sleep(0.1)  # the same

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()
