"""Metrics, under the names of Fennel's public documentation, so existing dashboards keep working.

Each process has one registry, which `render` returns in Prometheus' text format 0.0.4. The
documented names of counters do not end in `_total`, which the Prometheus library always adds;
`render` removes it for exactly those names. Labels have a bounded number of values (names of
entities, small enumerations), never keys, users or requests.

The processes of a program of several (the workers of a query server) have
`PROMETHEUS_MULTIPROC_DIR` set to a folder of their program before they import this module. Each
process then writes there, and the one that responds to `/metrics` renders the sums of all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    process_collector,
)
from prometheus_client import platform_collector as platform_info
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
READ_BUCKETS_SECONDS: Final = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01),
    *(0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Dense around the targets of the read path (0.6 ms, 1.5 ms, 5 ms), for exact percentiles there."""

REGISTRY: Final = CollectorRegistry()
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's function has no annotations
if MULTIPROCESS_VARIABLE not in os.environ:
    process_collector.ProcessCollector(registry=REGISTRY)
    platform_info.PlatformCollector(registry=REGISTRY)

_exact_names: set[str] = set()


def counter(
    name: str, documentation: str, labels: Sequence[str] = (), *, exact_name: bool = False
) -> Counter:
    """Create a counter; `exact_name` renders it without the `_total` that the library adds."""
    if exact_name:
        _exact_names.add(name)
    return Counter(name, documentation, labels, registry=REGISTRY)


def gauge(
    name: str, documentation: str, labels: Sequence[str] = (), *, worst: bool = False
) -> Gauge:
    """Create a gauge.

    Of several processes, the value that was set last is rendered; with `worst`, the largest of
    those that run.
    """
    mode: Literal["livemax", "mostrecent"] = "livemax" if worst else "mostrecent"
    return Gauge(name, documentation, labels, registry=REGISTRY, multiprocess_mode=mode)


def histogram(
    name: str,
    documentation: str,
    labels: Sequence[str] = (),
    buckets: Sequence[float] = READ_BUCKETS_SECONDS,
) -> Histogram:
    """Create a histogram with buckets in the unit of the metric."""
    return Histogram(name, documentation, labels, registry=REGISTRY, buckets=buckets)


def render() -> bytes:
    """Return all metrics in Prometheus' text format (`CONTENT_TYPE`)."""
    registry = REGISTRY
    if MULTIPROCESS_VARIABLE in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library's class has no annotations
    text = generate_latest(registry)
    names = b"|".join(re.escape(name.encode()) for name in sorted(_exact_names))
    return re.sub(rb"\b(" + names + rb")_total\b", rb"\1", text)


def forget_process(pid: int, folder: Path) -> None:
    """Drop the live gauges of a process that has ended; `folder` is that of its program."""
    mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]  # the library's function has no annotations


# Write path.
SOURCE_DATASET = gauge(
    "fennel_source_dataset_metrics",
    "State of a source: `event_timestamp_seconds` of the last accepted row.",
    ("source_name", "dataset_name", "metric"),
)
SOURCE_DATASET_ROWS = counter(
    "fennel_source_dataset_counter",
    "Rows from a source by what became of them: `msgs_processed`, or `schema_error` for rows that "
    "were rejected or became dead letters.",
    ("source_name", "dataset_name", "format", "metric"),
    exact_name=True,
)
DISCARDED_ROWS = counter(
    "fennel_source_watermark_discarded_rows",
    "Rows dropped at ingest because they were older than the watermark less the source's disorder.",
    ("source_name", "dataset_name"),
    exact_name=True,
)
DISCARDED_TIMESTAMP = gauge(
    "fennel_source_watermark_discarded_timestamp",
    "Event time of the last dropped row, seconds since 1970.",
    ("source_name", "dataset_name"),
)

# Read path and control plane.
REQUESTS = counter(
    "fennel_request_counter",
    "Requests answered, by route and status.",
    ("path", "method", "status"),
    exact_name=True,
)
REQUEST_SECONDS = histogram(
    "fennel_request_latency_seconds",
    "Time from a request's arrival to its answer, by route.",
    ("path", "method"),
)
EXTRACT_FEATURES = counter(
    "fennel_extract_features_counter",
    "Rows for which features were asked, by workflow.",
    ("workflow",),
    exact_name=True,
)
EXTRACT_FEATURES_ERRORS = counter(
    "fennel_extract_features_error_counter",
    "Feature requests that failed, by workflow and code.",
    ("workflow", "code"),
    exact_name=True,
)
EXTRACT_FEATURES_SECONDS = histogram(
    "extract_features_latency_seconds",
    "Time to answer one feature request, by workflow.",
    ("workflow",),
)
STALE_READS = counter(
    "fennel_stale_reads_counter",
    "Reads that a slot served after its lease had ended, while the registry was out of reach.",
    (),
    exact_name=True,
)
QUERY_LOG_ROWS = counter(
    "fennel_query_log_rows",
    "Rows of logged queries by what became of them: `written`, or lost as `queue-full`, "
    "`no-topic`, `not-written` or `not-encoded`.",
    ("workspace", "outcome"),
)
QUERY_LOG_BYTES = gauge(
    "fennel_query_log_pending_bytes",
    "Logged queries of one server process that Kafka has not acknowledged.",
    worst=True,
)
VIEW_AGE = gauge(
    "fennel_query_view_age_seconds",
    "Time for which the longest-waiting branch has not been reloaded after a change; 0 if none.",
    worst=True,
)

# Executors, as a query server sees them.
EXECUTORS_UP = gauge(
    "fennel_executors_up", "1 while the executors of user code respond on their socket, else 0."
)
EXECUTOR_LAYER = gauge(
    "fennel_executor_sandbox_layer",
    "Layers that confine user code: 1 if the machine has it, else 0.",
    ("layer",),
)
EXECUTOR_WORKERS = gauge(
    "fennel_executor_workers",
    "Processes of user code: `running` a call, `idle`, `all`; `waiting` counts calls.",
    ("state",),
)
EXECUTOR_ENDS = gauge(
    "fennel_executor_ended_workers",
    "Processes of user code that have ended since the start of the executors, by reason.",
    ("reason",),
)

# Control plane.
DEAD_LETTERS = gauge(
    "fennel_dead_letter_rows",
    "Rows that became dead letters since the workspace has its topic for them, by the dataset or "
    "the title of the job, and by reason: `not-admitted`, `unreadable`, `user-code`, `expression`, "
    "`not-delivered` or `unclassified`. Counted from the topics, so a restart of any process loses "
    "none.",
    ("workspace", "subject", "kind"),
)
SETTLED_LETTERS = gauge(
    "fennel_dead_letter_settled_rows",
    "Rows of dead letters that were settled, by outcome: `replayed`, `dropped`, `refused` by a "
    "replay, which made new dead letters of them, or `superseded`, as changes that a sink did not "
    "send behind a later one of their key. The others are open.",
    ("workspace", "subject", "kind", "outcome"),
)
RECONCILE_FAILURES = counter(
    "fennel_reconcile_failures",
    "Failed attempts of reconcile by the kind of item: `commit`, `destruction`, "
    "`deleted-workspace` or `orphans`.",
    ("kind",),
)
RECONCILE_FAILING = gauge(
    "fennel_reconcile_failing_items",
    "Items of reconcile whose last attempt failed; each is tried again with back-off.",
)
