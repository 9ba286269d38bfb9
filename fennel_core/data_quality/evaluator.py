"""Evaluate expectations periodically; report counts as a metric and what is not met in the log.

It runs beside the history writer, which reads the same topics. A pass that fails is logged and
repeated; nothing waits for it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import polars as pl

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import Pool
from fennel_core.data_quality.counting import RowTopics, evaluate_new_rows
from fennel_core.data_quality.failures import Failures
from fennel_core.data_quality.postgres import ExpectationCount, PostgresQualityCounts
from fennel_core.data_quality.suites import CommittedSuites
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger

INTERVAL_S: Final = 5.0
MAX_SERIES: Final = 500
"""Expectations with a series of their own; `GET /api/v1/expectations` has them all."""
MAX_UNMET: Final = 10_000
"""Unmet expectations that are counted and logged: bounds the memory of a report."""
log = logger(__name__)
ROWS = metrics.gauge(
    "fennel_expectation_rows",
    "Rows that an expectation has considered, by outcome: `passed` or `failed`. At most 500 "
    "expectations have a series.",
    ("workspace", "dataset", "expectation", "outcome"),
)
UNMET = metrics.gauge(
    "fennel_expectations_unmet",
    "Expectations for which the share of rows that are as expected is less than `mostly`; at most "
    "10,000.",
)
NOT_EVALUABLE = metrics.gauge(
    "fennel_expectations_not_evaluable",
    "Expectations that raised an error for rows since the process started; these are not counted.",
)
FAILING = metrics.gauge(
    "fennel_expectation_partitions_failing",
    "Partitions whose rows cannot be evaluated; they are repeated, and the others go on.",
)


class ExpectationEvaluator:
    """Evaluates new rows every `INTERVAL_S`; several processes may do so."""

    def __init__(self, pool: Pool, topics: RowTopics) -> None:
        self._suites, self._counts = CommittedSuites(pool), PostgresQualityCounts(pool)
        self._topics = topics
        self._failures = Failures()
        self._unmet: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Evaluate forever."""
        while True:
            try:
                await self.evaluate_once()
            except SystemUnavailable as unavailable:
                log.warning("expectations were not evaluated; retrying", reason=str(unavailable))
            # The supervisor's last line: one failed pass must not end the history writer.
            except (Exception, pl.exceptions.PanicException) as error:
                log.error("expectations were not evaluated; retrying", exc_info=error)
            await asyncio.sleep(INTERVAL_S)

    async def evaluate_once(self) -> None:
        """Evaluate what is new, set the metrics, and log expectations that are not met any more."""
        suites = await self._suites.read()
        await evaluate_new_rows(self._counts, suites, self._topics, self._failures)
        NOT_EVALUABLE.set(len(self._failures.expectations))
        FAILING.set(len(self._failures.partitions))
        self._report_rows(await self._counts.read(MAX_SERIES))
        self._report_unmet(await self._counts.read_unmet(MAX_UNMET))

    def _report_rows(self, counts: list[ExpectationCount]) -> None:
        ROWS.clear()
        for each in counts:
            labels = (each.workspace, each.dataset, f"{each.kind}:{each.digest}")
            ROWS.labels(*labels, "passed").set(each.evaluated - each.failed)
            ROWS.labels(*labels, "failed").set(each.failed)

    def _report_unmet(self, counts: list[ExpectationCount]) -> None:
        unmet = set()
        for each in counts:
            unmet.add((each.topic, each.digest))
            if (each.topic, each.digest) not in self._unmet:
                log.warning(
                    "an expectation is not met",
                    workspace=each.workspace,
                    dataset=each.dataset,
                    expectation=each.kind,
                    arguments=each.arguments,
                    evaluated=each.evaluated,
                    failed=each.failed,
                )
        self._unmet = unmet
        UNMET.set(len(unmet))
