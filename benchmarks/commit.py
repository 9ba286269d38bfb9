"""Measure how long commits take: 200 new entities, then changes of single ones, or many at once.

The time is from sending the request to its response, as the client waits. `cold` is the first
commit of a new workspace; `changed` raises the version of one dataset, so its job is rebuilt from
existing topics and reads move when it has caught up; `same` sends the same definitions with another
message. Each orchestrator gets a workspace of its own, which is deleted afterwards.

With `--together`, so many clients commit at the same moment, each to a new workspace of its own.

    # inline and Airflow, on the platform of `fennel-core up`
    python -m benchmarks.commit
    python -m benchmarks.commit --entities 30 --changes 3 --orchestrator inline --json figures.json
    python -m benchmarks.commit --together 50 --entities 4
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from fennel_core.definition.routes.commits import ORCHESTRATOR_HEADER
from fennel_core.settings.model import Settings
from fennel_core.wire.gen import services_pb2

TARGETS_S = {
    ("inline", "cold"): 3.0,
    ("inline", "changed"): 1.0,
    ("airflow", "cold"): 8.0,
    ("airflow", "changed"): 4.0,
}
TIMEOUT_S = 600.0
CHANGED = "Totals0"


def definitions(settings: Settings, entities: int) -> bytes:
    """The commit as the client sends it."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "commit.binpb"
        command = [
            str(settings.executor_python),
            "-m",
            "benchmarks.commit_definitions",
            str(target),
            str(entities),
        ]
        subprocess.run(command, check=True)  # noqa: S603  # a program of this benchmark, and no shell
        return target.read_bytes()


def raised(body: bytes, version: int) -> bytes:
    """The commit with another version of one of its derived datasets, as if its author had raised
    it.
    """
    request = services_pb2.SyncRequest.FromString(body)
    for dataset in request.datasets:
        if dataset.name == CHANGED:
            dataset.version = version
    for pipeline in [
        p for p in (*request.pipelines, *request.operators) if p.dataset_name == CHANGED
    ]:
        pipeline.ds_version = version
    for index in [
        i for i in (*request.online_indices, *request.offline_indices) if i.ds_name == CHANGED
    ]:
        index.ds_version = version
    return bytes(request.SerializeToString())


def with_message(body: bytes, message: str) -> bytes:
    request = services_pb2.SyncRequest.FromString(body)
    request.message = message
    return bytes(request.SerializeToString())


async def measure(
    settings: Settings, orchestrator: str, commits: Sequence[bytes]
) -> dict[str, list[float]]:
    """Seconds of each commit by kind, in a new workspace."""
    name = f"bench-commit-{uuid.uuid4().hex[:8]}"
    headers = {
        "Authorization": f"Bearer dev-{name}",
        "X-FENNEL-BRANCH": "main",
        ORCHESTRATOR_HEADER: orchestrator,
    }
    took: dict[str, list[float]] = {"cold": [], "changed": [], "same": []}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(
        settings.query_url, headers=headers, timeout=timeout
    ) as session:
        try:
            for number, body in enumerate(commits):
                took["changed" if number else "cold"].append(await _commit(session, body))
            for number in range(len(commits) - 1):
                took["same"].append(
                    await _commit(session, with_message(commits[-1], f"again {number}"))
                )
        finally:
            await _delete(session, settings, name)
    return took


@dataclass(frozen=True)
class Outcome:
    """How a commit ended for its client. `text`: the body of the response, or what was lost."""

    seconds: float
    status: int
    text: str


async def _send(
    session: aiohttp.ClientSession, body: bytes, headers: Mapping[str, str] | None = None
) -> Outcome:
    began = time.perf_counter()
    try:
        async with session.post("/api/v1/commit", data=body, headers=headers) as answer:
            status, text = answer.status, await answer.text()
    except (aiohttp.ClientError, TimeoutError) as lost:
        status, text = 0, repr(lost)
    return Outcome(time.perf_counter() - began, status, text)


async def _commit(session: aiohttp.ClientSession, body: bytes) -> float:
    outcome = await _send(session, body)
    if outcome.status != 200:
        sys.exit(f"the commit failed: {outcome.status} {outcome.text}")
    for line in json.loads(outcome.text)["summary"]:
        if line.startswith("!"):
            print(line, end="")
    return outcome.seconds


async def measure_together(
    settings: Settings, orchestrator: str, body: bytes, count: int
) -> list[Outcome]:
    """Outcomes of `count` commits that are sent at once, each to a new workspace."""
    run = uuid.uuid4().hex[:8]
    names = [f"bench-together-{run}-{number}" for number in range(count)]
    headers = {"X-FENNEL-BRANCH": "main", ORCHESTRATOR_HEADER: orchestrator}
    async with aiohttp.ClientSession(
        settings.query_url,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=count),
    ) as session:
        try:
            return await asyncio.gather(
                *(_send(session, body, {"Authorization": f"Bearer dev-{name}"}) for name in names)
            )
        finally:
            for name in names:
                await _delete(session, settings, name)


def report_together(took: Mapping[str, Sequence[Outcome]]) -> bool:
    """Print a line per orchestrator and one per status of failures; False if a commit failed.

    A commit that outlasts its client (504) goes on, and counts as failed here.
    """
    for orchestrator, outcomes in took.items():
        done = sorted(each.seconds for each in outcomes if each.status == 200)
        failed = [each for each in outcomes if each.status != 200]
        figures = f"p50 {statistics.median(done):6.2f} s  max {done[-1]:6.2f} s" if done else "none"
        print(f"{orchestrator:8} together {figures}  of {len(outcomes)}, {len(failed)} failed")
        for status, number in Counter(each.status for each in failed).items():
            example = next(each.text for each in failed if each.status == status)
            print(f"  {number} x {status}, for example: {example[:200]}")
    return all(each.status == 200 for outcomes in took.values() for each in outcomes)


async def _delete(session: aiohttp.ClientSession, settings: Settings, name: str) -> None:
    admin = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}
    async with session.delete(f"/api/v1/workspaces/{name}", headers=admin) as answer:
        if answer.status != 200:
            print(
                f"workspace {name} was not deleted: {answer.status} {await answer.text()}",
                file=sys.stderr,
            )


def report(took: dict[str, dict[str, list[float]]]) -> bool:
    """Print a line per orchestrator and kind; False when a figure is missed."""
    met = True
    for orchestrator, kinds in took.items():
        for kind, seconds in kinds.items():
            if not seconds:
                continue
            middle, target = statistics.median(seconds), TARGETS_S.get((orchestrator, kind))
            verdict = (
                ""
                if target is None
                else f"  target {target:g} s: {'met' if middle <= target else 'MISSED'}"
            )
            met &= target is None or middle <= target
            print(
                f"{orchestrator:8} {kind:8} median {middle:6.2f} s  max "
                f"{max(seconds):6.2f} s  of {len(seconds)}{verdict}"
            )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entities", type=int, default=200)
    parser.add_argument("--changes", type=int, default=5, help="commits that change one entity")
    parser.add_argument("--orchestrator", choices=["inline", "airflow"], action="append")
    parser.add_argument("--json", type=Path, help="write the seconds here")
    parser.add_argument("--together", type=int, help="send so many first commits at once instead")
    chosen = parser.parse_args()
    settings = Settings()
    first = definitions(settings, chosen.entities)
    orchestrators = chosen.orchestrator or ("inline", "airflow")
    if chosen.together is not None:
        together = {
            name: asyncio.run(measure_together(settings, name, first, chosen.together))
            for name in orchestrators
        }
        if chosen.json is not None:
            seconds = {name: [each.seconds for each in all_] for name, all_ in together.items()}
            chosen.json.write_text(json.dumps(seconds))
        return 0 if report_together(together) else 1
    commits = [first, *(raised(first, version) for version in range(2, chosen.changes + 2))]
    took = {name: asyncio.run(measure(settings, name, commits)) for name in orchestrators}
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(took))
    return 0 if report(took) else 1


if __name__ == "__main__":
    sys.exit(main())
