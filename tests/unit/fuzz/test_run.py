"""The fuzzer finds a refused request that changes the state among accepted ones that may."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Lock

import httpx
import pytest

from tests.fuzz.requests import FuzzRequest
from tests.fuzz.run import CODE, Fuzzer
from tests.fuzz.state import Digest

TOKENS = ("dev-w", "admin", "wrong")
LOG = "/api/v1/log"
Handler = Callable[["Server", httpx.Request], httpx.Response]


class Server:
    """A state of one number, and a handler that may change it."""

    def __init__(self, handler: Handler) -> None:
        self.number = 0
        self.lock = Lock()
        self._handler = handler
        self.client = httpx.Client(
            base_url="http://test", transport=httpx.MockTransport(self._handle)
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        with self.lock:
            return self._handler(self, request)

    def read(self) -> Digest:
        return Digest((("t", 1, self.number),), ())


def refused() -> httpx.Response:
    return httpx.Response(400, headers={CODE: "log-malformed"})


def accepts_some(server: Server, request: httpx.Request) -> httpx.Response:
    if request.content == b"good":
        server.number += 1
        return httpx.Response(200)
    return refused()


def writes_before_it_refuses(server: Server, request: httpx.Request) -> httpx.Response:
    if request.content == b"bad17":
        server.number += 1
    return accepts_some(server, request)


def refuses_without_a_code(server: Server, request: httpx.Request) -> httpx.Response:
    return httpx.Response(400) if request.content == b"bad17" else accepts_some(server, request)


def fuzzed(handler: Handler) -> Fuzzer:
    fuzzer = Fuzzer(*_served(Server(handler)), TOKENS, window=40, quiet_s=0.01)
    luck = random.Random(1)  # noqa: S311  # repeatable, and no secret
    for number in range(100):
        body = b"good" if number % 3 == 0 else b"bad%d" % (number % 50)
        fuzzer.send(luck, FuzzRequest("POST", LOG, body))
    fuzzer.finish()
    fuzzer.close()
    return fuzzer


def _served(server: Server) -> tuple[httpx.Client, Server]:
    return server.client, server


def test_accepted_requests_that_change_the_state_are_no_violation() -> None:
    fuzzer = fuzzed(accepts_some)
    assert (fuzzer.sent, fuzzer.violations) == (100, {})
    assert fuzzer.repeated > 0, "the refused requests of its windows were checked alone"


@pytest.mark.parametrize(
    ("handler", "what"),
    [
        (writes_before_it_refuses, "400 log-malformed changed tables ['t']"),
        (refuses_without_a_code, "400 without a code"),
    ],
)
def test_the_one_request_that_breaks_a_law_is_named(handler: Handler, what: str) -> None:
    [(name, shown)] = fuzzed(handler).violations.items()
    assert what in name
    assert "bad17" in shown
