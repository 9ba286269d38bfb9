"""Bodies that no strict JSON parser accepts are refused by name, never with an internal error."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from starlette.requests import Request

from fennel_core.admission.payload import parse_log_body
from fennel_core.definition.errors import JsonMalformed
from fennel_core.definition.json_messages import json_body
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.erase import EraseService
from fennel_core.ingest.errors import EraseBodyMalformed
from fennel_core.ingest.store import CatalogDirectory
from fennel_core.query.bodies import LONGEST_BARRIER_S, barrier_timeout, lookup_body, query_body
from fennel_core.query.errors import RequestMalformed
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName, DatasetName, WorkspaceId

UNREADABLE = [
    b"\xff\xfe",
    b'{"timeout_s": "\xa4"}',
    b'{"a":' * 100_000,
    b"[" * 100_000,
    b'{"ti\xbfmeout_s": 1}',
]
PARSERS: list[Callable[[bytes], Any]] = [
    barrier_timeout,
    lambda body: query_body(body, 10),
    lambda body: lookup_body(body, 10),
    lambda body: parse_log_body(body, 10),
]


@pytest.mark.parametrize("body", UNREADABLE)
@pytest.mark.parametrize("parse", PARSERS)
def test_bytes_that_are_not_json_are_refused(parse: Callable[[bytes], Any], body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse(body)
    assert refused.value.status == 400


@pytest.mark.parametrize("body", UNREADABLE)
async def test_the_definition_server_refuses_bytes_that_are_not_json(body: bytes) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
    with pytest.raises(JsonMalformed):
        await json_body(Request(scope, receive), 10_000_000, frozenset())


@pytest.mark.parametrize("body", UNREADABLE)
async def test_erase_refuses_bytes_that_are_not_json(body: bytes) -> None:
    service = EraseService(cast(Catalogs, None), cast(CatalogDirectory, None))
    with pytest.raises(EraseBodyMalformed):
        await service.erase(WorkspaceId("w"), BranchName("main"), DatasetName("D"), body)


@pytest.mark.parametrize("timeout_s", ["Infinity", "-Infinity", "NaN", "-1", "1e308", "3601"])
def test_a_barrier_refuses_a_time_limit_that_it_cannot_keep(timeout_s: str) -> None:
    with pytest.raises(RequestMalformed, match="timeout_s"):
        barrier_timeout(f'{{"timeout_s": {timeout_s}}}'.encode())


def test_a_barrier_takes_no_body_no_limit_or_a_limit() -> None:
    assert barrier_timeout(b"") is None
    assert barrier_timeout(b"{}") is None
    assert barrier_timeout(b'{"timeout_s": 0}') == 0
    assert barrier_timeout(b'{"timeout_s": 3600}') == LONGEST_BARRIER_S
