"""Run the scanners of `make scan`: advisories for the lock files, and secrets in the repository.

Exits with 1 for a finding. Where the database of advisories (PyPI's) cannot be reached, it says so
and goes on: an outage must not stop a release, and must not look like a clean result either.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.scan.findings import (
    DependencyReport,
    failing,
    new_secrets,
    parse_accepted,
    parse_audit,
)

ROOT: Final = Path(__file__).resolve().parents[2]
TOOLS: Final = ROOT / ".venv-scan" / "bin"
LOCKS: Final = ("bootstrap", "scan", "executor", "platform")
"""The shortest first: if none of its packages can be checked, the others cannot either."""
AUDIT_S: Final = 120.0
SECRETS_S: Final = 600.0
EXCLUDED: Final = r"^tests/golden/wire/.*\.txt$|^requirements/.*\.lock$|^\.secrets\.baseline$"
"""Recorded bytes of commits and digests of packages."""


def scan_dependencies() -> list[str]:
    """Return the findings that fail; print what was checked."""
    accepted = parse_accepted((ROOT / "requirements" / "accepted_findings.toml").read_text())
    found: list[str] = []
    for lock in LOCKS:
        report, why = _audit(ROOT / "requirements" / f"{lock}.lock")
        if report is None or not report.checked:
            print(f"NOT CHECKED: advisories for requirements/{lock}.lock and larger ones: {why}")
            break
        if report.unchecked:
            print(f"NOT CHECKED in {lock}.lock: {', '.join(report.unchecked)}")
        print(f"{lock}.lock: {report.checked} packages checked, {len(report.found)} advisories")
        today = datetime.now(UTC).date()
        found += [f"{lock}.lock: {line}" for line in failing(report.found, accepted, today)]
    return found


def _audit(lock: Path) -> tuple[DependencyReport | None, str]:
    """Return the report, and why there is none."""
    words = ("--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off")
    try:
        done = subprocess.run(  # noqa: S603  # a tool of the lock file, with fixed arguments
            [TOOLS / "pip-audit", "-r", lock, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=AUDIT_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"no result within {AUDIT_S:g} s"
    report = parse_audit(done.stdout)
    if report is not None and not report.checked:
        return report, "the package index does not serve advisories"
    return report, (done.stderr.strip().splitlines() or ["no output"])[-1]


def scan_secrets() -> list[str]:
    """Return what looks like a secret in a file of the repository, and is not in the baseline.

    Nothing is sent anywhere: verifying a candidate would show it to the service it may belong to.
    """
    done = subprocess.run(  # noqa: S603  # a tool of the lock file, with fixed arguments
        [TOOLS / "detect-secrets", "scan", "--no-verify", "--exclude-files", EXCLUDED],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=SECRETS_S,
    )
    if sys.argv[1:] == ["--write-baseline"]:
        (ROOT / ".secrets.baseline").write_text(done.stdout)
    return [
        f"{line}: remove it, or if it is none add it with "
        "`.venv/bin/python -m tests.scan.run --write-baseline`"
        for line in new_secrets(done.stdout, (ROOT / ".secrets.baseline").read_text())
    ]


def main() -> int:
    found = [*scan_secrets(), *scan_dependencies()]
    for line in found:
        print(f"FOUND: {line}")
    print(f"findings: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
