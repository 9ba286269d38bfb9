"""Optional traces over OTLP/HTTP.

Without a collector address nothing is created: `span` is an empty context, cheap enough for the
query path. With one, spans are sent in batches from a separate thread, and an unreachable collector
loses spans, never requests. A trace crosses processes in the W3C `traceparent` header: `outgoing()`
on requests that a process sends, `incoming(headers)` on requests that it receives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

_TRACER_NAME: Final = "fennel_core"
_OFF: Final = nullcontext(None)
_provider: TracerProvider | None = None


def configure(
    process: str, otlp_endpoint: str | None, *, exporter: SpanExporter | None = None
) -> None:
    """Send the spans of this process to `otlp_endpoint` (`http://host:4318`); None turns them off.

    `exporter` replaces the OTLP exporter.
    """
    global _provider
    if otlp_endpoint is None and exporter is None:
        return
    if exporter is None:
        exporter = OTLPSpanExporter(endpoint=f"{str(otlp_endpoint).rstrip('/')}/v1/traces")
    _provider = TracerProvider(resource=Resource.create({SERVICE_NAME: process}))
    _provider.add_span_processor(BatchSpanProcessor(exporter))


def shut_down() -> None:
    """Send the buffered spans and turn traces off."""
    global _provider
    if _provider is not None:
        _provider.shutdown()
        _provider = None


def span(
    name: str, **attributes: str | int | float | bool
) -> AbstractContextManager[trace.Span | None]:
    """Return a context that records its body as a child of the current span.

    An exception that leaves the body is recorded on the span.
    """
    if _provider is None:
        return _OFF
    return _provider.get_tracer(_TRACER_NAME).start_as_current_span(name, attributes=attributes)


def outgoing() -> dict[str, str]:
    """Return the headers that make the called process continue the current trace."""
    headers: dict[str, str] = {}
    if _provider is not None:
        propagate.inject(headers)
    return headers


@contextmanager
def incoming(headers: Mapping[str, str]) -> Iterator[None]:
    """Continue the caller's trace inside the context; `headers` have lower-case names."""
    if _provider is None:
        yield
        return
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)
