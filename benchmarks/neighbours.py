"""Measure the queries of a workspace beside one whose queries are all hostile, over the HTTP API.

    fennel-core up
    .venv/bin/python -m benchmarks.neighbours [--rounds 20]

Both workspaces commit extractors with the client and are deleted afterwards. In turns of two
seconds, the neighbour queries alone and beside four callers whose extractors loop, fork, fill the
memory, start threads, or end their process. A hostile query ends with the time limit of queries, so
set FENNEL_QUERY_TIMEOUT_MS=1000 for `up` if each turn is to see several of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.sandbox import quantile
from fennel_core.settings.model import Settings
from tests.hostile.definitions import FINE, commit, extractor_of, query
from tests.hostile.programs import PROGRAMS
from tests.support.workspaces import Api

NAMES: Final = {
    "endless loop": "Loops",
    "fork bomb": "Forks",
    "memory": "Grows",
    "threads": "Threads",
    "end": "Ends",
}
"""Program of the hostile suite to the name of its featureset."""
HOSTILE: Final = tuple(NAMES.values())
ATTACKERS: Final = 4
TURN_S: Final = 2.0


async def delete(api: Api, settings: Settings) -> None:
    """Delete a workspace, where the administrator's token is known."""
    api.token = settings.admin_token.get_secret_value() or None
    if api.token is not None:
        status, text = await api.call("DELETE", f"/workspaces/{api.workspace}")
        if status != 200:
            print(f"{api.workspace} was not deleted: {text}")


async def attack(hostile: Api, featureset: str, refused: list[int]) -> None:
    while True:
        refused.append((await query(hostile, featureset))[0])


async def turns(hostile: Api, neighbour: Api, rounds: int) -> None:
    quiet: list[float] = []
    beside: list[float] = []
    refused: list[int] = []
    for number in range(rounds):
        attackers = [
            asyncio.create_task(attack(hostile, HOSTILE[(number + n) % len(HOSTILE)], refused))
            for n in range(ATTACKERS * (number % 2))
        ]
        times = beside if attackers else quiet
        end = time.monotonic() + TURN_S
        while time.monotonic() < end:
            start = time.perf_counter()
            status, _ = await query(neighbour, "Fine")
            assert status == 200, "the neighbour is served"
            times.append(time.perf_counter() - start)
            await asyncio.sleep(0.002)
        for attacker in attackers:
            attacker.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)
    assert 200 not in refused, "no hostile query succeeds"
    for name, times in (("alone", quiet), ("beside a hostile workspace", beside)):
        print(
            f"{name}: {len(times)} queries, p50 {quantile(times, 0.5):.2f} ms, "
            f"p99 {quantile(times, 0.99):.2f} ms"
        )
    print(f"{len(refused)} hostile queries were refused")
    print(f"p99 ratio {quantile(beside, 0.99) / quantile(quiet, 0.99):.2f}")


async def measure(settings: Settings, rounds: int) -> None:
    async with aiohttp.ClientSession() as session:
        hostile, neighbour = (
            Api(session, settings, f"bench-{kind}-{os.getpid()}") for kind in ("hostile", "fine")
        )
        wanted = [each for each in PROGRAMS if each.name in NAMES]
        text = "".join(extractor_of(each, NAMES[each.name], settings) for each in wanted)
        try:
            with tempfile.TemporaryDirectory() as folder:
                commit(settings, Path(folder) / "hostile", text, hostile)
                commit(settings, Path(folder) / "fine", FINE, neighbour)
            for _ in range(200):
                await query(neighbour, "Fine")
            await turns(hostile, neighbour, rounds)
        finally:
            await delete(hostile, settings)
            await delete(neighbour, settings)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    settings = Settings(_env_file=Settings().data_dir / "env")  # type: ignore[call-arg]  # pydantic-settings takes it at run time
    asyncio.run(measure(settings, parser.parse_args().rounds))


if __name__ == "__main__":
    main()
