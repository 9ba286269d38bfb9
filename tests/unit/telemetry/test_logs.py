"""A log line is JSON, carries the ids of its work, and never a secret."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from pydantic import BaseModel, SecretStr

from fennel_core.telemetry import logs


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure("test-process", "INFO", hidden=["s3kr1t-value"], stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _last(stream: io.StringIO) -> dict[str, Any]:
    line = stream.getvalue().splitlines()[-1]
    decoded = json.loads(line)
    assert isinstance(decoded, dict)
    return decoded


def test_a_line_has_time_level_process_and_what_happened(lines: io.StringIO) -> None:
    logs.logger("room.file").info("applied", rows=3)
    line = _last(lines)
    assert (line["level"], line["process"], line["event"], line["rows"], line["logger"]) == (
        "info",
        "test-process",
        "applied",
        3,
        "room.file",
    )
    assert line["time"].endswith("Z")


async def test_ids_follow_the_work_over_await_and_into_threads(lines: io.StringIO) -> None:
    async def deeper() -> None:
        await asyncio.sleep(0)
        await asyncio.to_thread(logs.logger("x").info, "in a thread")

    with logs.bound(commit="c1", job="j1", part=2, branch=None):
        await deeper()
    line = _last(lines)
    assert (line["commit"], line["job"], line["part"], "branch" in line) == ("c1", "j1", 2, False)
    logs.logger("x").info("after")
    assert "commit" not in _last(lines)


def test_libraries_log_in_the_same_shape_and_with_the_same_ids(lines: io.StringIO) -> None:
    with logs.bound(commit="c1"):
        logging.getLogger("library").warning("lost %s", "it", extra={"attempt": 2})
    line = _last(lines)
    assert (line["event"], line["level"], line["commit"], line["attempt"]) == (
        "lost it",
        "warning",
        "c1",
        2,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"password": "abc"},
        {"detail": "it was s3kr1t-value, really"},
        {"url": "postgresql://fennel:abc@127.0.0.1/x"},
        {"headers": {"Authorization": "Bearer abcdefgh"}},
        {"text": "sent Authorization: Bearer abcdefgh"},
        {"nested": [{"api_key": "abc"}, ("s3kr1t-value",)]},
        {"value": SecretStr("abc")},
        {"postgres_dsn": "host=x password=abc"},
    ],
)
def test_a_secret_never_reaches_the_line(lines: io.StringIO, fields: dict[str, Any]) -> None:
    logs.logger("x").info("event", **fields)
    text = lines.getvalue()
    assert "***" in text
    for secret in ("abc", "s3kr1t-value"):
        assert secret not in text


def test_a_secret_in_a_traceback_or_in_the_event_is_redacted(lines: io.StringIO) -> None:
    try:
        raise RuntimeError("could not log in with s3kr1t-value")
    except RuntimeError:
        logs.logger("x").exception("s3kr1t-value failed")
    assert "s3kr1t-value" not in lines.getvalue()
    assert "RuntimeError" in lines.getvalue()


def test_a_value_is_hidden_once_it_is_known_unless_it_is_short(
    lines: io.StringIO,
) -> None:
    logs.hide("learnt-later", "dev")
    logs.logger("x").info("learnt-later for dev")
    assert _last(lines)["event"] == "*** for dev"


def test_the_secrets_of_a_settings_model_are_found() -> None:
    class Model(BaseModel):
        password: SecretStr = SecretStr("one-secret")
        name: str = "plain"

    assert logs.secrets_of(Model()) == ["one-secret"]


def test_values_without_a_json_form_are_written_as_text(lines: io.StringIO) -> None:
    logs.logger("x").info("odd", big=2**70, kind=object, raw=b"bytes", half="\ud800")
    line = _last(lines)
    assert (line["big"], line["kind"]) == (2**70, "<class 'object'>")
    assert (line["raw"], line["half"]) == ("b'bytes'", "\ud800")


def test_below_the_level_nothing_is_written(lines: io.StringIO) -> None:
    logs.logger("x").debug("quiet")
    assert lines.getvalue() == ""
