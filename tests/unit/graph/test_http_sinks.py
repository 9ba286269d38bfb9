"""What no request could be made of is refused by name, without a secret."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.graph.passes.http_sinks import unusable_http
from fennel_core.wire.connectors import Credential, Http, HttpPath, NamedReference, PlainSecret
from fennel_core.wire.connectors import SecretRef as Elsewhere

TABLE = HttpPath(Http("hooks", PlainSecret("https://a.example"), "/health", None), "/rows", 5, ())
REFERENCE = Elsewhere("arn", None, ())


def with_db(**changes: object) -> HttpPath:
    assert isinstance(TABLE.db, Http)
    return replace(TABLE, db=replace(TABLE.db, **changes))  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    "host",
    [
        *(
            "https://a.example",
            "HTTPS://A.example:8443/",
            "http://10.0.0.1:80/v1",
            "https://[::1]:1",
        ),
    ],
)
def test_a_host_is_scheme_name_and_port(host: str) -> None:
    assert not list(unusable_http(with_db(host=PlainSecret(host))))


@pytest.mark.parametrize(
    "host",
    [
        *(
            "a.example",
            "ftp://a.example",
            "https://",
            "https://ann@a.example",
            "https://a?x=1",
        ),
        *("https://a.example:0", "https://a.example:70000", "https://a..example", "https://a#x"),
        *("https://a.example\nHost: b", "https://a.example:80:90", "https://\u00e4.example"),
    ],
)
def test_another_host_is_refused_and_not_shown(host: str) -> None:
    (reason,) = unusable_http(with_db(host=PlainSecret(host)))
    assert "has a `host` that is no address" in reason
    assert "pass" not in reason


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (replace(TABLE, db=NamedReference("hooks", "http"), limit=0), "the limit 0"),
        (replace(TABLE, db=NamedReference("hooks", "http"), endpoint=""), "the endpoint ``"),
        (with_db(host=None), "has a `host` that is no address"),
        (with_db(host=REFERENCE), "secret of another store"),
        (with_db(ca_cert=REFERENCE), "secret of another store"),
        (replace(TABLE, endpoint=""), "the endpoint ``"),
        (replace(TABLE, endpoint="/rows?token=abc"), "the endpoint `/rows`, which is no path"),
        (replace(TABLE, endpoint="/../admin"), "the endpoint"),
        (with_db(healthz="health check"), "the healthz `health check`"),
        (replace(TABLE, limit=0), "the limit 0"),
        (replace(TABLE, limit=10_001), "the limit 10001"),
        (replace(TABLE, headers=(("Host", PlainSecret("b")),)), "the header `Host`, which the"),
        (replace(TABLE, headers=(("a b", PlainSecret("c")),)), "is no name of a header"),
        (
            replace(TABLE, headers=(("X-A", PlainSecret("c")), ("x-a", PlainSecret("d")))),
            "or is there twice",
        ),
    ],
)
def test_what_cannot_be_served_is_named(table: HttpPath, text: str) -> None:
    (reason,) = unusable_http(table)
    assert text in reason
    assert "abc" not in reason


def test_credentials_are_no_part_of_a_printed_connector() -> None:
    secret: Credential = PlainSecret("word-of-ann")
    assert "word-of-ann" not in repr(replace(with_db(ca_cert=secret), headers=(("X", secret),)))
