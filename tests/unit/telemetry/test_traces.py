"""Traces cost nothing while they are off, and cross processes while they are on."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fennel_core.telemetry import traces


def test_without_a_collector_a_span_is_nothing() -> None:
    traces.configure("test", None)
    with traces.span("work", rows=1) as span:
        assert span is None
    assert traces.outgoing() == {}


def test_a_called_process_continues_the_callers_trace_and_errors_are_recorded() -> None:
    exporter = InMemorySpanExporter()
    traces.configure("test", None, exporter=exporter)
    try:
        with traces.span("caller"):
            headers = traces.outgoing()
        with pytest.raises(KeyError), traces.incoming(headers), traces.span("called", rows=3):
            raise KeyError("x")
    finally:
        traces.shut_down()
    caller, called = exporter.get_finished_spans()
    assert called.parent is not None
    assert called.parent.span_id == caller.context.span_id
    assert called.context.trace_id == caller.context.trace_id
    assert called.attributes == {"rows": 3}
    assert not called.status.is_ok
