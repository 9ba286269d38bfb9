"""Count dead letters periodically, report new ones in the log and all of them as a metric."""

from __future__ import annotations

from typing import Final

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.dead_letters.counting import DeadLetterLog, count_new_letters
from fennel_core.dead_letters.counts import DeadLetterCounts, LetterCount, added
from fennel_core.definition.periodic import run_periodically
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger

INTERVAL_S: Final = 5.0
"""Soon enough for a person who has just logged a row; an idle pass is two queries and one request
to Kafka.
"""
log = logger(__name__)
Labels = tuple[str, str, str]
"""Workspace, subject and kind."""


class DeadLetterCheck:
    """Counts new dead letters every `INTERVAL_S`; several servers may do so."""

    def __init__(self, counts: DeadLetterCounts, letters: DeadLetterLog) -> None:
        self._counts, self._letters = counts, letters
        self._started = False
        self._reported: dict[Labels, int] = {}

    async def run(self) -> None:
        """Run the check forever."""
        await run_periodically(self.check_once, "dead letters", INTERVAL_S)

    async def check_once(self) -> None:
        """Count what is new, set the metric, and log each count that has grown."""
        try:
            await count_new_letters(self._counts, self._letters)
            counts = await self._counts.read()
        except SystemUnavailable as unavailable:
            log.warning("dead letters were not counted; retrying", error=str(unavailable))
            return
        found: dict[Labels, LetterCount] = {}
        for each in counts:
            labels: Labels = each.workspace, each.key.subject, each.key.kind.value
            known = found.get(labels)
            found[labels] = each.count if known is None else added(known, each.count)
        metrics.DEAD_LETTERS.clear()
        metrics.SETTLED_LETTERS.clear()
        for labels, count in found.items():
            metrics.DEAD_LETTERS.labels(*labels).set(count.rows)
            for outcome in ("replayed", "dropped", "refused", "superseded"):
                metrics.SETTLED_LETTERS.labels(*labels, outcome).set(getattr(count, outcome))
            if (rows := count.rows - self._reported.get(labels, 0)) > 0 and self._started:
                workspace, subject, kind = labels
                log.warning(
                    "rows became dead letters",
                    workspace=workspace,
                    subject=subject,
                    kind=kind,
                    rows=rows,
                    reason=count.newest_reason,
                )
        self._started = True
        self._reported = {labels: count.rows for labels, count in found.items()}
