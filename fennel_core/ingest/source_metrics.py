"""Metrics of sources, under the names of Fennel's public documentation."""

from __future__ import annotations

from fennel_core.blueprints.spec import SourceBinding
from fennel_core.ingest.batches import IngestTransaction
from fennel_core.telemetry import metrics

MICROS = 1e6
FORMAT = "json"


def count_transaction(committed: IngestTransaction) -> None:
    """Count the accepted, dead-lettered and late rows of a committed transaction."""
    for source in committed.accepted:
        name, dataset = _source(source.binding), source.binding.dataset
        metrics.SOURCE_DATASET_ROWS.labels(name, dataset, FORMAT, "msgs_processed").inc(source.rows)
        if source.latest_us is not None:
            metrics.SOURCE_DATASET.labels(name, dataset, "event_timestamp_seconds").set(
                source.latest_us / MICROS
            )
    for binding, rows in committed.dead:
        metrics.SOURCE_DATASET_ROWS.labels(
            _source(binding), binding.dataset, FORMAT, "schema_error"
        ).inc(rows)
    for late in committed.discarded:
        name, dataset = _source(late.binding), late.binding.dataset
        metrics.DISCARDED_ROWS.labels(name, dataset).inc(late.rows)
        metrics.DISCARDED_TIMESTAMP.labels(name, dataset).set(late.last_us / MICROS)


def count_rejected(binding: SourceBinding, rows: int) -> None:
    """Count the rows of a request that was rejected as a whole."""
    metrics.SOURCE_DATASET_ROWS.labels(
        _source(binding), binding.dataset, FORMAT, "schema_error"
    ).inc(rows)


def _source(binding: SourceBinding) -> str:
    return f"{binding.webhook}_{binding.endpoint}"
