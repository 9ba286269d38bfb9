"""Kill and freeze parts of the running platform under traffic: `make chaos SECONDS=300 SEED=1`.

Starts the platform with two engines, logs unique rows all the time (each request is repeated until
it is accepted), queries, and commits two versions in turn. Afterwards every part must be ready
again by itself, every key must equal a recompute of the accepted rows (`audit.py`, which imports
nothing of this project), and `fennel-core audit` must find nothing missing. Prints how long each
kind of part took to recover. Exits with 1 if anything of this fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import aiohttp

from fennel_core.apps.local.platform import load_context
from fennel_core.apps.local.services import service_table
from fennel_core.settings.model import Settings
from tests.chaos.strikes import TRAFFIC_KINDS, Recoveries, Striker, plan_strikes
from tests.chaos.traffic import Rows, Traffic
from tests.support.executors import commit_of
from tests.support.platform_settings import ENV_COMMAND

ENGINES: Final = "2"
LOGGERS: Final = 4
PAUSE_S: Final = 0.05
"""Between two requests of one client."""
COMMIT_PAUSE_S: Final = 10.0
SETTLE_S: Final = 300.0
VERSIONS: Final = {"one": "tests.chaos.shop", "two": "tests.chaos.shop_two"}
INLINE: Final = {"X-Fennel-Orchestrator": "inline"}
AUDIT: Final = Path(__file__).with_name("audit.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="length of the faults")
    parser.add_argument("--seed", type=int, default=1, help="determines faults and rows")
    parser.add_argument("--per-minute", type=float, default=24.0, help="faults per minute")
    arguments = parser.parse_args()
    os.environ["FENNEL_ENGINES"] = ENGINES
    cli("up")
    for line in cli(*ENV_COMMAND).splitlines():
        name, _, value = shlex.split(line.removeprefix("export "))[0].partition("=")
        os.environ[name] = value
    return asyncio.run(chaos(arguments))


async def chaos(arguments: argparse.Namespace) -> int:
    settings, context = Settings(), load_context()
    workspace = f"chaos-{arguments.seed}-{int(time.time())}"
    bodies = {
        version: await commit_of(module, message=version) for version, module in VERSIONS.items()
    }
    accepted = context.layout.data / "chaos-accepted.jsonl"
    async with aiohttp.ClientSession() as session:
        traffic = Traffic(session, settings.query_url, f"dev-{workspace}", accepted, bodies)
        status, text = await traffic.call("/commit", bodies["one"], 300.0, **INLINE)
        if status != "200":
            print(f"the first commit failed: {status} {text}")
            return 1
        striker = Striker(context.layout, service_table(context))
        rows = Rows(arguments.seed)
        clients = [
            *(asyncio.create_task(traffic.log_until_over(rows, PAUSE_S)) for _ in range(LOGGERS)),
            asyncio.create_task(traffic.query_until_over(PAUSE_S)),
            asyncio.create_task(traffic.commit_until_over(COMMIT_PAUSE_S)),
        ]
        count = max(1, round(arguments.seconds * arguments.per_minute / 60))
        await striker.run(plan_strikes(arguments.seed, arguments.seconds, count, TRAFFIC_KINDS))
        traffic.over.set()
        await asyncio.gather(*clients)
        began = time.monotonic()
        settled = await traffic.passes_barrier(SETTLE_S)
        print(f"everything logged was visible after {time.monotonic() - began:.1f} s: {settled}")
        last, text = await traffic.call("/commit", bodies["one"], 300.0)
        traffic.close()
    outcomes, result = traffic.outcomes, striker.result
    print_recoveries(result)
    print(f"accepted rows: {outcomes.rows}; log requests by outcome: {dict(outcomes.logs)}")
    print(f"queries by outcome: {dict(outcomes.queries)}")
    print(f"commits by outcome: {dict(outcomes.commits)}; the last one: {last}")
    for line in (*result.lost, *outcomes.refused):
        print(line)
    values = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, str(AUDIT), settings.query_url, f"dev-{workspace}", str(accepted)],
        check=False,
    )
    assets = subprocess.run([sys.executable, "-m", "fennel_core.apps.cli", "audit"], check=False)
    failures = {
        "a part did not come back": bool(result.lost),
        "not everything became visible": not settled,
        "a request was refused": bool(outcomes.refused),
        "the last commit failed": last != "200",
        "values differ from the recompute": values.returncode != 0,
        "assets are missing": assets.returncode != 0,
    }
    for text, failed in failures.items():
        if failed:
            print(f"FAILED (seed {arguments.seed}): {text}")
    return 1 if any(failures.values()) else 0


def print_recoveries(result: Recoveries) -> None:
    print(
        f"faults: {result.done}, of them frozen: {result.frozen}, overlapping: "
        f"{result.overlapping}, made up for because the part was down at first: {result.made_up}; "
        f"left out because it was down: {result.skipped}"
    )
    for kind, seconds in sorted(result.seconds.items()):
        print(
            f"{kind:<18} {len(seconds):4} recoveries, p50 {statistics.median(seconds):6.1f} s, "
            f"maximum {max(seconds):6.1f} s"
        )


def cli(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-m", "fennel_core.apps.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"fennel-core {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
