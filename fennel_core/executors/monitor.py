"""Publish the report of the executors as metrics, from a process of the platform.

The executors serve no HTTP: they have no network. A platform process asks them over their socket.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fennel_core.executors.client import Executors
from fennel_core.executors.errors import ExecutorUnavailable
from fennel_core.executors.report import ExecutorReport
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger

INTERVAL_S: Final = 15.0

log = logger(__name__)


async def publish_reports(executors: Executors, interval_s: float = INTERVAL_S) -> None:
    """Publish the report again and again; runs until it is cancelled."""
    warned: frozenset[str] | None = None
    while True:
        try:
            report = await executors.report()
        except ExecutorUnavailable:
            # Calls report it; the gauge says so until the executors are back.
            metrics.EXECUTORS_UP.set(0)
        else:
            publish(report)
            missing = frozenset(layer.name for layer in report.layers if not layer.active)
            if missing != warned:
                warned = missing
                for layer in report.layers:
                    if not layer.active:
                        log.warning(
                            "a layer that confines user code is not active",
                            layer=layer.name,
                            detail=layer.detail,
                        )
        await asyncio.sleep(interval_s)


def publish(report: ExecutorReport) -> None:
    """Set the metrics of the executors."""
    metrics.EXECUTORS_UP.set(1)
    for layer in report.layers:
        metrics.EXECUTOR_LAYER.labels(layer.name).set(layer.active)
    for state, count in (
        ("running", report.running),
        ("idle", report.idle),
        ("waiting", report.waiting),
        ("all", report.workers),
    ):
        metrics.EXECUTOR_WORKERS.labels(state).set(count)
    for reason, count in report.ended.items():
        metrics.EXECUTOR_ENDS.labels(reason).set(count)
