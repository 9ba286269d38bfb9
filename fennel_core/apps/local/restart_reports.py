"""The file in which the watchdog reports restarts and next attempts, for `status`."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from fennel_core.apps.local.file_layout import FileLayout

FILE: Final = "watchdog.json"


@dataclass(frozen=True, slots=True)
class RestartReport:
    """Restarts of one service since the watchdog started.

    `failures`: ends in a row. `next_attempt`: wall clock, seconds since the epoch, or None.
    `waiting_for`: the dependency that must be ready first, or None.
    """

    restarts: int
    failures: int
    next_attempt: float | None
    waiting_for: str | None


def write_reports(layout: FileLayout, reports: Mapping[str, RestartReport]) -> None:
    """Replace the file atomically."""
    path = layout.run / FILE
    new = path.with_suffix(".new")
    new.write_text(json.dumps({name: asdict(report) for name, report in reports.items()}))
    new.replace(path)


def read_reports(layout: FileLayout) -> Mapping[str, RestartReport]:
    """Return service → report; empty if the watchdog has written none."""
    try:
        found = json.loads((layout.run / FILE).read_text())
    except FileNotFoundError:
        return {}
    return {name: RestartReport(**report) for name, report in found.items()}


def remove_reports(layout: FileLayout) -> None:
    (layout.run / FILE).unlink(missing_ok=True)


def next_action(report: RestartReport | None, now: float) -> str:
    """Return who restarts a service that ended, and when. `now`: seconds since the epoch."""
    if report is None:
        return "the watchdog does not run, so restart it with `fennel-core up`"
    if report.waiting_for is not None:
        return f"the watchdog restarts it when `{report.waiting_for}` is ready"
    in_s = 0.0 if report.next_attempt is None else max(0.0, report.next_attempt - now)
    return f"the watchdog restarts it in {in_s:.0f} s (attempt {report.failures + 1})"
