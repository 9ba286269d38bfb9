"""Decide what the scanners' reports mean: found, accepted for a time, or not checked. Pure.

A scan that could not reach its database has not checked anything, which is neither a success nor a
finding. A finding fails unless `requirements/accepted_findings.toml` lists it with a reason and a
last day; a finding whose day is over fails again.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One advisory for one pinned package."""

    package: str
    version: str
    ids: tuple[str, ...]
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        remedy = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "not fixed yet"
        return f"{self.package} {self.version}: {' = '.join(self.ids)} ({remedy})"


@dataclass(frozen=True, slots=True)
class DependencyReport:
    """What an audit of one lock file found. `unchecked`: packages without a verdict."""

    found: tuple[Vulnerability, ...]
    checked: int
    unchecked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AcceptedFinding:
    """An advisory that does not fail the scan until the end of a day."""

    id: str
    package: str
    reason: str
    until: date


def parse_audit(report: str) -> DependencyReport | None:
    """Return the report that `pip-audit --format json` printed; None if it printed none.

    It prints none if the database of advisories cannot be reached.
    """
    try:
        listed: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    unchecked = tuple(each["name"] for each in listed if "skip_reason" in each)
    found = tuple(
        Vulnerability(
            each["name"],
            each["version"],
            (vulnerability["id"], *vulnerability.get("aliases", ())),
            tuple(vulnerability.get("fix_versions", ())),
        )
        for each in listed
        for vulnerability in each.get("vulns", ())
    )
    return DependencyReport(found, len(listed) - len(unchecked), unchecked)


def parse_accepted(text: str) -> tuple[AcceptedFinding, ...]:
    """Return the accepted findings of a TOML file; ValueError for an incomplete one."""
    accepted = []
    for each in tomllib.loads(text).get("finding", []):
        if set(each) != {"id", "package", "reason", "until"} or not str(each["reason"]).strip():
            raise ValueError(f"{each}: a finding has an id, a package, a reason and a last day")
        accepted.append(AcceptedFinding(**each))
    return tuple(accepted)


def failing(
    found: Iterable[Vulnerability], accepted: Iterable[AcceptedFinding], today: date
) -> list[str]:
    """Return one sentence for each finding that fails the scan."""
    known = {(each.package, each.id): each for each in accepted}
    lines = []
    for each in sorted(found, key=str):
        allowed = next((known[key] for i in each.ids if (key := (each.package, i)) in known), None)
        if allowed is None:
            lines.append(f"{each}: upgrade it, or accept it in requirements/accepted_findings.toml")
        elif allowed.until < today:
            lines.append(f"{each}: was accepted until {allowed.until} ({allowed.reason})")
    return lines


def new_secrets(scanned: str, baseline: str) -> list[str]:
    """Return `file:line: kind` of what `detect-secrets scan` found and the baseline lacks."""
    known = {
        (file, each["type"], each["hashed_secret"])
        for file, listed in json.loads(baseline)["results"].items()
        for each in listed
    }
    return [
        f"{file}:{each['line_number']}: {each['type']}"
        for file, listed in sorted(json.loads(scanned)["results"].items())
        for each in listed
        if (file, each["type"], each["hashed_secret"]) not in known
    ]
