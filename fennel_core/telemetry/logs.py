"""Logs: one JSON object per line, with the ids of the current work and without secrets.

Lines are found by their ids: the code that starts a piece of work binds them once (`with
bound(commit=..., job=..., part=...)`) and every line below carries them, across `await` and
`asyncio.to_thread`, because they are context variables. Libraries log through the standard module;
their lines pass the same processors and have the same shape.

Redaction is the last step before encoding, so nothing bypasses it. Values under names such as
`password` are replaced as a whole; known secret values, passwords in URLs and bearer tokens are
replaced wherever they occur in any text, tracebacks included. `hide` adds a known value (a process
hides the secrets of its own settings at start).
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TextIO
from urllib.parse import unquote, urlsplit

import msgspec
import structlog
from opentelemetry import trace
from pydantic import BaseModel, SecretStr
from structlog.typing import EventDict, Processor, WrappedLogger

STARS: Final = "***"
HIDDEN_MIN: Final = 6
"""Shorter values are not searched for: hiding `dev` or `1` would make most lines unreadable."""
_SECRET_NAME: Final = re.compile(
    r"(^|_)(password|passwd|secret|token|authorization|cookie|api_?key|secret_key|dsn"
    r"|credential)s?$",
    re.IGNORECASE,
)
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^\s:/@]*):([^\s/@]+)@")
_BEARER: Final = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}", re.IGNORECASE)

_hidden: set[str] = set()
_hidden_pattern: re.Pattern[str] | None = None

Logger = structlog.stdlib.BoundLogger


def configure(
    process: str, level: str = "INFO", *, hidden: Iterable[str], stream: TextIO | None = None
) -> None:
    """Write the log lines of this process to `stream` as JSON, from `level` upwards.

    The default stream is standard error. `hidden` are secret values to redact.
    """
    hide(*hidden)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _add_trace,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared[:3],
            *shared[4:],
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _process_name(process),
                redact,
                _as_json,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "botocore", "urllib3", "kafka", "py4j"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def logger(name: str) -> Logger:
    """Return the logger of a module: `log = logger(__name__)`; `log.info("event", key=value)`."""
    found: Logger = structlog.stdlib.get_logger(name)
    return found


@contextmanager
def bound(**ids: object) -> Iterator[None]:
    """Add `ids` (commit, job, part, workspace, branch, ...) to every line logged inside.

    None values are left out.
    """
    with structlog.contextvars.bound_contextvars(
        **{name: value for name, value in ids.items() if value is not None}
    ):
        yield


def hide(*values: str) -> None:
    """Redact these values from now on; values shorter than `HIDDEN_MIN` are ignored."""
    global _hidden_pattern
    new = {value for value in values if len(value) >= HIDDEN_MIN} - _hidden
    if new:
        _hidden.update(new)
        longest_first = sorted(_hidden, key=len, reverse=True)
        _hidden_pattern = re.compile("|".join(re.escape(value) for value in longest_first))


def secrets_of(settings: BaseModel) -> list[str]:
    """Return the value of every `SecretStr` of a settings model, for `configure(hidden=...)`.

    The password of a URL is returned by itself, too: libraries print it without the URL.
    """
    values = (getattr(settings, name) for name in type(settings).model_fields)
    secrets = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
    passwords = [urlsplit(secret).password for secret in secrets if "://" in secret]
    return secrets + [unquote(each) for each in passwords if each]


def redact_text(text: str) -> str:
    """Return `text` without known secret values, passwords in URLs and bearer tokens."""
    if _hidden_pattern is not None:
        text = _hidden_pattern.sub(STARS, text)
    return _BEARER.sub(rf"\1 {STARS}", _URL_PASSWORD.sub(rf"\1:{STARS}@", text))


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Redact every secret of an event (a structlog processor)."""
    return {
        name: STARS if _SECRET_NAME.search(name) else _redact_value(value)
        for name, value in event.items()
    }


def _redact_value(value: Any) -> Any:
    match value:
        case str():
            return redact_text(value)
        case bool() | int() | float() | None:
            return value
        case SecretStr():
            return STARS
        case Mapping():
            return {
                str(name): STARS if _SECRET_NAME.search(str(name)) else _redact_value(each)
                for name, each in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [_redact_value(each) for each in value]
        case _:
            return redact_text(str(value))


def _add_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace"] = f"{context.trace_id:032x}"
    return event


def _process_name(process: str) -> Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {
            "time": event.pop("time", None),
            "level": event.pop("level", None),
            "process": process,
            **event,
        }

    return add


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    try:
        return msgspec.json.encode(event).decode()
    except UnicodeEncodeError:
        # A lone surrogate is not valid UTF-8; the standard module escapes it.
        return json.dumps(event)
