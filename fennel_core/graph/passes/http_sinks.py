"""Check the connector of an HTTP sink: what no request could be made of is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fennel_core.wire import connectors as c

HOST: Final = re.compile(
    r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?(/[\w.~/-]*)?",
    re.ASCII | re.IGNORECASE,
)
"""Scheme, host, port and the path that the others are below."""
PATH: Final = re.compile(r"[\w.~!$&'()*+,;=:@%/-]*", re.ASCII)
HEADER: Final = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
OWN_HEADERS: Final = frozenset(
    {
        *("host", "content-type", "content-length", "transfer-encoding", "connection", "te"),
        *("idempotency-key", "accept-encoding", "expect", "upgrade", "trailer", "keep-alive"),
        *("proxy-connection", "user-agent"),
    }
)
"""Headers that the platform sets, or that are about the connection."""
LARGEST_PORT: Final = 65535
MAX_LIMIT: Final = 10_000
"""Rows of a request, which is in memory as a whole."""


def unusable_http(table: c.HttpPath) -> Iterator[str]:
    """Yield what about an HTTP sink cannot be served, as the end of a sentence about it."""
    if not isinstance(table.db, c.NamedReference):
        yield from unusable_endpoint(table.db)
    yield from _unusable_path("endpoint", table.endpoint)
    if table.limit is not None and not 0 < table.limit <= MAX_LIMIT:
        yield f"has the limit {table.limit}; a request has 1 to {MAX_LIMIT} rows"
    seen: set[str] = set()
    for name, _ in table.headers:
        if HEADER.fullmatch(name) is None or name.lower() in seen:
            yield f"has the header `{name}`, which is no name of a header, or is there twice"
        if name.lower() in OWN_HEADERS:
            yield f"has the header `{name}`, which the platform sets itself; remove it"
        seen.add(name.lower())


def unusable_endpoint(db: c.Http) -> Iterator[str]:
    """Yield what about a connector cannot be served, as the end of a sentence about it."""
    if isinstance(db.host, c.SecretRef) or isinstance(db.ca_cert, c.SecretRef):
        yield (
            "refers to a secret of another store, which this platform does not read yet; give "
            "host and certificate as text, the certificate is encrypted on arrival"
        )
    elif not isinstance(db.host, c.PlainSecret) or not _is_host(db.host.value):
        # The text is not shown: it may have a password.
        yield "has a `host` that is no address; write `https://host` or `https://host:port`"
    yield from _unusable_path("healthz", db.healthz)


def _unusable_path(name: str, path: str) -> Iterator[str]:
    if not path.strip("/") or PATH.fullmatch(path) is None or ".." in path.split("/"):
        yield (
            f"has the {name} `{path.partition('?')[0]}`, which is no path; write one as "
            "`/rows`, without a query: secrets belong into headers"
        )


def _is_host(text: str) -> bool:
    found = HOST.fullmatch(text)
    if found is None or ".." in text:
        return False
    return found[3] is None or 0 < int(found[3][1:]) <= LARGEST_PORT
