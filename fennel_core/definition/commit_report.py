"""What a commit reports to its author: its plan, its stuck jobs, and the lines that say both.

The lines are for people and are printed by the client; programs read the JSON beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fennel_core.blueprints.plan_entries import PlanRecord
from fennel_core.blueprints.plan_text import render
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.store import Commit, StuckJob

WARMING_LINE = (
    "! the new jobs have not caught up yet: the commit succeeded, "
    "and reads stay on the previous version until they have"
)


@dataclass(frozen=True, slots=True)
class CommitReport:
    """The plan of a commit or of a preview; None if there was nothing to do.

    `stuck`: jobs that cannot go on by themselves. `remarks`: further lines.
    """

    plan: PlanRecord | None
    stuck: tuple[StuckJob, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The report as text."""
        plan = () if self.plan is None else render(self.plan)
        return (*plan, *(stuck_line(job) for job in self.stuck), *self.remarks)

    def as_json(self) -> dict[str, object]:
        """Return the body of the response; the client prints `summary` as it is."""
        return {
            "summary": [f"{line}\n" for line in self.lines],
            "plan": None if self.plan is None else msgspec.to_builtins(self.plan),
            "stuck_jobs": [msgspec.to_builtins(job) for job in self.stuck],
        }


def stuck_line(job: StuckJob) -> str:
    """Return the line about a job that is parked."""
    return f"! job `{job.title}` is parked: {job.error}"


def committed_report(row: Commit, plan: PlanRecord | None) -> CommitReport:
    """Return the report of a commit that has passed T2."""
    remarks = (WARMING_LINE,) if row.state is CommitState.WARMING else ()
    return CommitReport(plan, row.stuck, remarks)


def unchanged_report(row: Commit) -> CommitReport:
    """Return the report of a request whose definitions the branch has already."""
    line = f"nothing to do: the branch has these definitions since commit `{row.id}`"
    report = committed_report(row, None)
    return CommitReport(None, report.stuck, (line, *report.remarks))
