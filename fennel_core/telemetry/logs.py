"""Logs: one JSON object per line, with the ids of the work under way and without anybody's secret.

Theory. A line is found by its ids: whoever starts a piece of work binds them once (`with
bound(commit=..., job=..., part=...)`) and every line below carries them, over `await` and into
`asyncio.to_thread`, because they live in context variables. Libraries log through the standard
module; their lines take the same road and get the same shape.

Redaction is the last step before the text is made, so nothing passes by it: values under telling
keys are replaced whole, and known secret values, passwords in URLs and bearer tokens are replaced
wherever they stand in any text, tracebacks included. `hide` teaches it a value (a process hides its
own settings' secrets at start).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TextIO

import orjson
import structlog
from opentelemetry import trace
from pydantic import BaseModel, SecretStr
from structlog.typing import EventDict, Processor, WrappedLogger

STARS: Final = "***"
HIDDEN_MIN: Final = 6
"""Shorter values are not hunted for in text: `dev` or `1` would star out half of every line."""
_TELLING: Final = re.compile(
    r"(^|_)(password|passwd|secret|token|authorization|cookie|api_?key|secret_key|dsn|credential)s?$",
    re.IGNORECASE,
)
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^\s:/@]*):([^\s/@]+)@")
_BEARER: Final = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}", re.IGNORECASE)

_hidden: set[str] = set()
_hunted: re.Pattern[str] | None = None

Logger = structlog.stdlib.BoundLogger


def configure(
    process: str, level: str = "INFO", *, hidden: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Send every log line of this process to `stream` (default: standard error) as JSON, from
    `level` upwards.
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
    """The logger of a module: `log = logger(__name__)`; `log.info("what happened", key=value)`."""
    found: Logger = structlog.stdlib.get_logger(name)
    return found


@contextmanager
def bound(**ids: object) -> Iterator[None]:
    """Add `ids` (commit, job, part, workspace, branch, request, ...) to every line logged inside;
    None values are left out.
    """
    with structlog.contextvars.bound_contextvars(
        **{name: value for name, value in ids.items() if value is not None}
    ):
        yield


def hide(*values: str) -> None:
    """From now on star these values out wherever they appear; values shorter than `HIDDEN_MIN` are
    ignored.
    """
    global _hunted
    new = {value for value in values if len(value) >= HIDDEN_MIN} - _hidden
    if new:
        _hidden.update(new)
        longest_first = sorted(_hidden, key=len, reverse=True)
        _hunted = re.compile("|".join(re.escape(value) for value in longest_first))


def secrets_of(settings: BaseModel) -> list[str]:
    """The values of every `SecretStr` in a settings model, to give to `configure(hidden=...)`."""
    values = (getattr(settings, name) for name in type(settings).model_fields)
    return [value.get_secret_value() for value in values if isinstance(value, SecretStr)]


def redact_text(text: str) -> str:
    """`text` without known secret values, passwords in URLs and bearer tokens."""
    if _hunted is not None:
        text = _hunted.sub(STARS, text)
    return _BEARER.sub(rf"\1 {STARS}", _URL_PASSWORD.sub(rf"\1:{STARS}@", text))


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: the event with every secret starred out."""
    return {
        name: STARS if _TELLING.search(name) else _redact_value(value)
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
                str(name): STARS if _TELLING.search(str(name)) else _redact_value(each)
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
    # Everything was made plain by `redact`; an integer beyond 64 bits is the one thing orjson
    # refuses, and becomes text.
    try:
        return orjson.dumps(event).decode()
    except TypeError:
        return orjson.dumps({name: str(value) for name, value in event.items()}).decode()
