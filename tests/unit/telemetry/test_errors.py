"""Errors have one form on the wire in every server."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from fennel_core.telemetry.errors import ApiError, body_of, install, send_error, wants_json
from fennel_core.vocab.problems import Problem

GONE = ApiError(500, "branch-unknown", "branch `x` does not exist")


def _app() -> TestClient:
    app = FastAPI()
    install(app)

    @app.get("/known")
    async def known() -> None:
        raise GONE

    @app.get("/unknown")
    async def unknown() -> None:
        raise RuntimeError("password=hunter2")

    @app.get("/typed/{number}")
    async def typed(number: int) -> int:
        return number

    return TestClient(app, raise_server_exceptions=False)


def test_the_body_is_the_bare_sentence_that_the_client_shows() -> None:
    answer = _app().get("/known")
    assert (answer.status_code, answer.text) == (500, "branch `x` does not exist")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-fennel-error-code"] == "branch-unknown"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_text_that_quotes_half_a_surrogate_pair_can_be_sent(as_json: bool) -> None:
    body = body_of(ApiError(404, "endpoint-unknown", "no endpoint `\ud800`"), as_json=as_json)
    assert b"no endpoint `" in body
    assert b"ud800" in body


def test_a_caller_that_asks_for_json_gets_exactly_the_media_type_the_client_compares_with() -> None:
    answer = _app().get("/known", headers={"accept": "application/json"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"err_msg": "branch `x` does not exist", "code": "branch-unknown"}


def test_findings_of_validation_are_data_beside_the_text() -> None:
    problems = [Problem("index-keys", "D", "no keys"), Problem("cdc-keys", "E", "append")]
    refused = ApiError(500, "definitions-invalid", "1. no keys\n2. append", problems)
    assert body_of(refused) == b"1. no keys\n2. append"
    assert json.loads(body_of(refused, as_json=True)) == {
        "err_msg": "1. no keys\n2. append",
        "code": "definitions-invalid",
        "problems": [
            {"code": "index-keys", "entity": "D", "text": "no keys"},
            {"code": "cdc-keys", "entity": "E", "text": "append"},
        ],
    }


def test_an_unexpected_exception_reveals_no_detail() -> None:
    answer = _app().get("/unknown")
    assert (answer.status_code, answer.headers["x-fennel-error-code"]) == (500, "internal")
    assert "hunter2" not in answer.text


def test_unknown_paths_and_bad_parameters_have_codes_too() -> None:
    assert _app().get("/nowhere").headers["x-fennel-error-code"] == "not-found"
    bad = _app().get("/typed/seven")
    assert (bad.status_code, bad.headers["x-fennel-error-code"]) == (422, "request-invalid")
    assert "path.number" in bad.text


async def test_raw_asgi_sends_the_same_bytes() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await send_error(send, ApiError(401, "unauthenticated", "no token"))
    assert sent[0]["status"] == 401
    headers = dict(sent[0]["headers"])
    assert headers[b"content-length"] == b"8"
    assert headers[b"www-authenticate"] == b"Bearer"
    assert headers[b"x-fennel-error-code"] == b"unauthenticated"
    assert sent[1]["body"] == b"no token"


@pytest.mark.parametrize(
    ("accept", "json"), [(None, False), ("*/*", False), ("text/html, application/json;q=0.9", True)]
)
def test_only_json_asked_for_by_name_is_json(accept: str | None, json: bool) -> None:
    assert wants_json(accept) is json


@pytest.mark.parametrize(
    ("status", "code"), [(200, "ok"), (500, ""), (500, "Has Space"), (500, "UPPER")]
)
def test_an_error_with_a_bad_status_or_code_cannot_be_created(status: int, code: str) -> None:
    with pytest.raises(ValueError, match=r"not (the HTTP status of an error|an error code)"):
        ApiError(status, code, "text")
