"""What the scanners' reports mean."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from tests.scan.findings import (
    AcceptedFinding,
    Vulnerability,
    failing,
    new_secrets,
    parse_accepted,
    parse_audit,
)
from tests.scan.run import ROOT

TODAY = date(2026, 11, 22)
FOUND = Vulnerability("requests", "2.19.0", ("PYSEC-2018-28", "CVE-2018-18074"), ("2.20.0",))


def accepted(until: date, id_: str = "CVE-2018-18074", package: str = "requests") -> Any:
    return AcceptedFinding(id_, package, "only used with fixed addresses", until)


def test_a_report_has_findings_and_packages_without_a_verdict() -> None:
    report = parse_audit(
        json.dumps(
            {
                "dependencies": [
                    {
                        "name": "requests",
                        "version": "2.19.0",
                        "vulns": [
                            {
                                "id": "PYSEC-2018-28",
                                "aliases": ["CVE-2018-18074"],
                                "fix_versions": ["2.20.0"],
                                "description": "…",
                            }
                        ],
                    },
                    {"name": "idna", "version": "3.20", "vulns": []},
                    {"name": "private", "skip_reason": "Dependency not found on PyPI"},
                ],
                "fixes": [],
            }
        )
    )
    assert report is not None
    assert (report.found, report.checked, report.unchecked) == ((FOUND,), 2, ("private",))


@pytest.mark.parametrize("text", ["", "Traceback …", "[]", "{}"])
def test_a_report_that_is_none_is_not_a_success(text: str) -> None:
    assert parse_audit(text) is None


def test_a_finding_fails_with_its_remedy() -> None:
    (line,) = failing([FOUND], [], TODAY)
    assert line.startswith("requests 2.19.0: PYSEC-2018-28 = CVE-2018-18074 (fixed in 2.20.0)")


def test_a_finding_is_accepted_by_any_of_its_ids_until_the_end_of_a_day() -> None:
    assert failing([FOUND], [accepted(TODAY)], TODAY) == []
    assert failing([FOUND], [accepted(TODAY, "PYSEC-2018-28")], TODAY) == []


@pytest.mark.parametrize(
    "other",
    [
        accepted(date(2026, 11, 21)),
        accepted(TODAY, package="httpx"),
        accepted(TODAY, id_="CVE-2018-18075"),
    ],
    ids=["its-day-is-over", "another-package", "another-advisory"],
)
def test_anything_else_does_not_accept_it(other: AcceptedFinding) -> None:
    assert len(failing([FOUND], [other], TODAY)) == 1


@pytest.mark.parametrize("missing", ["id", "package", "reason", "until"])
def test_an_incomplete_acceptance_is_refused(missing: str) -> None:
    fields = {
        "id": '"CVE-1"',
        "package": '"requests"',
        "reason": '"not reachable"',
        "until": "2027-01-01",
    }
    text = "\n".join(f"{name} = {value}" for name, value in fields.items())
    assert len(parse_accepted("[[finding]]\n" + text)) == 1
    del fields[missing]
    text = "\n".join(f"{name} = {value}" for name, value in fields.items())
    with pytest.raises(ValueError, match="a reason and a last day"):
        parse_accepted("[[finding]]\n" + text)


def test_the_accepted_findings_of_this_repository_are_complete() -> None:
    parse_accepted((ROOT / "requirements" / "accepted_findings.toml").read_text())


def test_a_secret_is_new_unless_the_baseline_has_it_in_that_file() -> None:
    def scanned(file: str, line: int, digest: str) -> str:
        found = {"type": "Secret Keyword", "hashed_secret": digest, "line_number": line}
        return json.dumps({"results": {file: [found]}})

    baseline = scanned("a.py", 7, "d1")
    assert new_secrets(scanned("a.py", 99, "d1"), baseline) == []
    assert new_secrets(scanned("a.py", 7, "d2"), baseline) == ["a.py:7: Secret Keyword"]
    assert new_secrets(scanned("b.py", 7, "d1"), baseline) == ["b.py:7: Secret Keyword"]
