"""Run the tests that ship with the client against the live platform.

Usage: `python -m tests.conformance.run [--ratchet] [--airflow] [test …]`.

Writes `.fennel/conformance/report.jsonl` (one line per test) and prints `N passed, M failed`. With
`--ratchet` only the tests of ratchet.txt run and all must pass; `--update` rewrites ratchet.txt
from what passed with at least one commit and one read.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.platform_settings import ENV_COMMAND

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
RATCHET = HERE / "ratchet.txt"
AIRFLOW = HERE / "airflow.txt"
PACKAGE = "fennel/client_tests"
PROCESSES = 2
"""Tests that run at a time, each in a workspace of its own: they wait for the platform mostly."""
PYTEST_OPTIONS = (
    *("-q", "-p", "live_client", "-p", "no:cacheprovider"),
    *("--tb=short", "--no-header", "-rN", "-W", "ignore"),
)
SECOND_TRIES = 3
"""Up to this many failures of a ratchet run are retried once; more are not an accident."""


@dataclass(frozen=True)
class Result:
    test: str
    outcome: str
    seconds: float
    commits: int
    logs: int
    reads: int
    why: str | None

    @property
    def counts(self) -> bool:
        """Whether it passed and made at least one commit and one read."""
        return self.outcome == "passed" and self.commits > 0 and self.reads > 0


def listed(file: Path) -> list[str]:
    lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    return [line for line in lines if line]


def environment() -> dict[str, str]:
    """Return the platform's addresses and tokens, as `fennel-core env` prints them."""
    output = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-m", "fennel_core.apps.cli", *ENV_COMMAND],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pairs = (
        shlex.split(line.removeprefix("export "))[0].partition("=") for line in output.splitlines()
    )
    return {name: value for name, _, value in pairs}


def run(
    tests: list[str], orchestrator: str, report: Path, processes: int = PROCESSES
) -> list[Result]:
    """Run these tests of the client's package, some at a time; without any, run all."""
    variables = environment()
    report.parent.mkdir(parents=True, exist_ok=True)
    # Each commit through Airflow runs processes of its own, so those tests take turns.
    count = 1 if orchestrator == "airflow" else min(processes, max(1, len(tests)))
    parts = [report.with_name(f"{report.stem}-{number}.jsonl") for number in range(count)]
    running = [
        start(tests[number::count], orchestrator, part, variables)
        for number, part in enumerate(parts)
    ]
    for process in running:
        process.wait()
    report.write_text("".join(part.read_text() for part in parts))
    results = [Result(**json.loads(line)) for line in report.read_text().splitlines()]
    return results + [
        Result(test, "failed", 0.0, 0, 0, 0, "it has no report: pytest ended before")
        for test in tests
        if "::" in test and not any(test in (r.test, r.test.partition("[")[0]) for r in results)
    ]


def start(
    tests: list[str], orchestrator: str, report: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start pytest in the client's environment; it writes `report`, and a log beside it."""
    report.write_text("")
    python = Path(variables["FENNEL_EXECUTOR_PYTHON"])
    site = next((python.parent.parent / "lib").glob("python3*/site-packages"))
    ours = {
        "FENNEL_CONFORMANCE_REPORT": str(report.resolve()),
        "FENNEL_CONFORMANCE_ORCHESTRATOR": orchestrator,
        "PYTHONPATH": str(HERE),
    }
    # The suite must not read this project's own pytest settings, and finds its data relative to the
    # folder that holds `fennel`.
    command = [str(python), "-m", "pytest", "-c", str(HERE / "client.ini"), "--rootdir", str(site)]
    command += [*PYTEST_OPTIONS, *(tests or [PACKAGE])]
    with report.with_suffix(".log").open("w") as out:
        return subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
            command,
            cwd=site,
            env={**os.environ, **variables, **ours},
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "tests", nargs="*", help="node ids inside the client's package; default: all of it"
    )
    parser.add_argument(
        "--ratchet",
        action="store_true",
        help="only the tests of ratchet.txt, all of which must pass",
    )
    parser.add_argument(
        "--airflow",
        action="store_true",
        help="only the tests of airflow.txt, committing through Airflow's DAG",
    )
    parser.add_argument("--update", action="store_true", help="rewrite ratchet.txt from this run")
    options = parser.parse_args()
    tests = (
        listed(AIRFLOW)
        if options.airflow
        else listed(RATCHET)
        if options.ratchet
        else options.tests
    )
    report = (
        PROJECT
        / ".fennel"
        / "conformance"
        / ("airflow.jsonl" if options.airflow else "report.jsonl")
    )
    orchestrator = "airflow" if options.airflow else "inline"
    results = run(tests, orchestrator, report)
    failed = [r for r in results if r.outcome == "failed"]
    if failed and len(failed) <= SECOND_TRIES and (options.ratchet or options.airflow):
        # Some of these tests depend on the real time. A second failure is a failure; a first one is
        # printed, so that it is not lost.
        again = {
            r.test: r
            for r in run(
                [r.test for r in failed], orchestrator, report.with_name("second-try.jsonl"), 1
            )
        }
        for first in failed:
            print(f"RETRIED {first.test}: {(first.why or '').splitlines()[:1]}")
        results = [again.get(r.test, r) for r in results]
        failed = [r for r in results if r.outcome == "failed"]
    for result in failed:
        print(
            f"FAILED {result.test}: "
            f"{(result.why or '').splitlines()[0][:200] if result.why else ''}"
        )
    passed = [r for r in results if r.outcome == "passed"]
    counted = sorted(r.test for r in results if r.counts)
    print(
        f"{len(counted)} of the passed tests made at least one commit and one read; "
        f"report: {report}"
    )
    if options.update:
        RATCHET.write_text(
            "# Tests of the client's own suite that pass here; CI fails when one stops passing.\n"
            + "\n".join(counted)
            + "\n"
        )
    print(f"{len(passed)} passed, {len(failed)} failed")
    return 1 if (failed and (options.ratchet or options.airflow)) or not results else 0


if __name__ == "__main__":
    sys.exit(main())
