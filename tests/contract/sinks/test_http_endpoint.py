"""Requests to a real server: what a status means, TLS, redirects, and what is never shown."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from fennel_core.connections import external_http
from fennel_core.connections.external_http import (
    Accepted,
    ExternalHttp,
    HttpEndpoint,
    NotSetUp,
    Refused,
    TryAgain,
    outcome_of,
)
from fennel_core.connections.http_addresses import AllowedHosts, HttpAddressRefused
from tests.support.certificates import certificate
from tests.support.http_receivers import Receiver, served, slow
from tests.support.ports import free_port


def endpoint(url: str, ca_cert: str = "", **headers: str) -> HttpEndpoint:
    external = ExternalHttp("hooks/rows", url, url, tuple(headers.items()), ca_cert)
    allowed = AllowedHosts((), (f"{external.origin.host}:{external.origin.port}",))
    return HttpEndpoint(external, allowed, resolve=lambda host, port: ["127.0.0.1"])


def test_rows_arrive_with_their_key_and_the_headers_of_the_connector() -> None:
    receiver = Receiver()
    with served(receiver) as port:
        to = endpoint(f"http://127.0.0.1:{port}/v1/rows", Authorization="Bearer abcdef")
        assert to.send(b'[{"op":"c"}]', "sink-0-1") == Accepted()
        assert to.send(b'[{"op":"d"}]', "sink-0-2") == Accepted()
        to.close()
    assert [event["op"] for event in receiver.events()] == ["c", "d"]
    (path, headers), _ = receiver.seen
    assert path == "/v1/rows"
    assert headers["Idempotency-Key"] == "sink-0-1"
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer abcdef"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_success_is_any_status_of_it(status: int) -> None:
    assert outcome_of(status, None, "", 0.0) == Accepted()


@pytest.mark.parametrize("status", [408, 409, 423, 424, 425, 429, 500, 502, 503, 504, 599])
def test_a_busy_endpoint_is_tried_again(status: int) -> None:
    assert outcome_of(status, "7", "", 0.0) == TryAgain(f"it responds with status {status}", 7.0)


@pytest.mark.parametrize(
    "status", [301, 307, 401, 403, 404, 405, 406, 410, 411, 415, 418, 421, 426, 431, 451, 495, 101]
)
def test_an_endpoint_that_is_not_set_up_refuses_no_rows(status: int) -> None:
    assert isinstance(outcome_of(status, None, "", 0.0), NotSetUp)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_some_errors_of_the_client_are_about_the_rows(status: int) -> None:
    assert outcome_of(status, None, "no", 0.0) == Refused(f"it responds with status {status}: no")


@pytest.mark.parametrize(
    ("text", "pause_s"),
    [
        ("0", 0.0),
        (" 12 ", 12.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 60.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("999999999999", 3600.0),
        ("-5", 0.0),
        ("soon", 0.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str, pause_s: float) -> None:
    assert outcome_of(503, text, "", 40.0) == TryAgain("it responds with status 503", pause_s)


def test_redirects_are_not_followed() -> None:
    elsewhere = Receiver()
    with served(elsewhere) as other:
        target = {"Location": f"http://127.0.0.1:{other}/rows"}
        with served(Receiver(lambda *_: (307, target))) as port:
            outcome = endpoint(f"http://127.0.0.1:{port}/rows").send(b"[]", "k")
    assert isinstance(outcome, NotSetUp)
    assert "redirects are not followed" in outcome.reason
    assert not elsewhere.seen


def test_what_an_endpoint_says_is_shown_without_headers_and_cut() -> None:
    said = {"text": "wrong: Bearer secret-word, " + "x" * 500}
    with served(Receiver(lambda *_: (422, said))) as port:
        to = endpoint(f"http://127.0.0.1:{port}/rows", Authorization="Bearer secret-word")
        outcome = to.send(b"[]", "k")
    assert isinstance(outcome, Refused)
    assert "status 422: wrong: ***, xxx" in outcome.reason
    assert len(outcome.reason) < external_http.SHOWN_CHARS + 50
    assert "secret-word" not in repr(to._external)


def test_a_response_is_read_up_to_a_size() -> None:
    said = {"text": "x" * (4 * external_http.RESPONSE_BYTES)}
    with served(Receiver(lambda *_: (200, said))) as port:
        to = endpoint(f"http://127.0.0.1:{port}/rows")
        assert [to.send(b"[]", "a"), to.send(b"[]", "b")] == [Accepted()] * 2


@pytest.mark.parametrize(
    ("begins", "body", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nName: ", b"END", "ReadTimeout"),
        (b"", b"x" * 16 * 1024 * 1024 + b"END", "WriteTimeout"),
    ],
)
def test_a_request_ends_whatever_the_server_does(
    monkeypatch: pytest.MonkeyPatch, begins: bytes, body: bytes, said: str
) -> None:
    monkeypatch.setattr(external_http, "REQUEST_S", 1.5)
    with slow(begins, 256 * 1024) as port:
        since_s = time.monotonic()
        outcome = endpoint(f"http://127.0.0.1:{port}/rows").send(body, "k")
        took_s = time.monotonic() - since_s
    assert isinstance(outcome, TryAgain)
    assert said in outcome.reason
    assert took_s < 3


def test_a_status_counts_if_the_rest_of_the_response_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(external_http, "REQUEST_S", 1.5)
    begins = b"HTTP/1.1 422 No\r\nContent-Length: 999\r\n\r\n"
    with slow(begins, 1024) as port:
        outcome = endpoint(f"http://127.0.0.1:{port}/rows").send(b"END", "k")
    assert isinstance(outcome, Refused)
    assert "status 422: xxx" in outcome.reason
    assert "cut off" in outcome.reason


def test_the_begin_of_a_header_is_not_shown_where_a_response_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(external_http, "REQUEST_S", 0.5)
    begins = b"HTTP/1.1 422 No\r\nContent-Length: 999\r\n\r\nno: Bearer secret-w"
    with slow(begins, 1024) as port:
        to = endpoint(f"http://127.0.0.1:{port}/rows", Authorization="Bearer secret-wxxxxxxxxxx")
        outcome = to.send(b"END", "k")
    assert isinstance(outcome, Refused)
    assert "no: ***" in outcome.reason
    assert "secret" not in outcome.reason
    assert "cut off" in outcome.reason


def test_a_server_that_is_away_is_tried_again() -> None:
    outcome = endpoint(f"http://127.0.0.1:{free_port()}/rows").send(b"[]", "k")
    assert isinstance(outcome, TryAgain)
    assert "ConnectError" in outcome.reason


def test_addresses_are_used_in_turn_after_a_failure() -> None:
    with served(Receiver()) as port:
        external = ExternalHttp(
            "h", f"http://a.internal:{port}/", f"http://a.internal:{port}/", (), ""
        )
        to = HttpEndpoint(
            external,
            AllowedHosts((), (f"a.internal:{port}",)),
            resolve=lambda host, port: ["127.0.0.9", "127.0.0.1"],
        )
        assert isinstance(to.send(b"[]", "k"), TryAgain)
        assert to.send(b"[]", "k") == Accepted()


def test_requests_that_fail_together_move_on_once() -> None:
    url = "http://a.internal:9/rows"
    external = ExternalHttp("hooks/rows", url, url, (), "")
    to = HttpEndpoint(
        external, AllowedHosts((), ("a.internal:9",)), resolve=lambda *_: ["192.0.2.1", "192.0.2.2"]
    )
    addresses = [to._address(external.origin) for _ in range(4)]
    assert addresses == ["192.0.2.1"] * 4
    for address in addresses:
        to._move_on_from(address)
    assert to._address(external.origin) == "192.0.2.2"
    to._resolved_s = float("-inf")
    assert to._address(external.origin) == "192.0.2.2", "also when the name is resolved again"


def test_a_name_that_leads_into_the_network_is_refused() -> None:
    with served(receiver := Receiver()) as port:
        url = f"https://a.example:{port}/rows"
        external = ExternalHttp("hooks/rows", url, url, (), "")
        allowed = AllowedHosts((f"a.example:{port}",))
        to = HttpEndpoint(external, allowed, resolve=lambda host, port: ["127.0.0.1"])
        with pytest.raises(HttpAddressRefused, match=r"127\.0\.0\.1, which is not a public one"):
            to.send(b"[]", "k")
    assert not receiver.seen


def test_tls_is_verified_by_the_name_of_the_host(tmp_path: Path) -> None:
    key, other = certificate("hooks.internal"), certificate("other.internal")
    for name, (pem, own) in {"key": key, "other": other}.items():
        (tmp_path / f"{name}.pem").write_text(own + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "key.pem")
    with served(receiver := Receiver(), context) as port:
        url = f"https://hooks.internal:{port}/rows"
        assert endpoint(url, key[0]).send(b"[]", "k") == Accepted()
        for untrusted in ("", other[0]):
            outcome = endpoint(url, untrusted).send(b"[]", "k")
            assert isinstance(outcome, TryAgain)
            assert "CERTIFICATE_VERIFY_FAILED" in outcome.reason
        outcome = endpoint(f"https://127.0.0.1:{port}/rows", key[0]).send(b"[]", "k")
        assert isinstance(outcome, TryAgain), "the certificate has another name"
    assert len(receiver.seen) == 1
    assert receiver.seen[0][1]["Host"] == f"hooks.internal:{port}"
