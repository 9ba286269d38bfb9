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
import json
import os
import subprocess
import time
from typing import Final

import aiohttp

from benchmarks.sandbox import quantile
from fennel_core.settings.model import Settings

HOSTILE: Final = ("Loops", "Forks", "Grows", "Threads", "Ends")
ATTACKERS: Final = 4
TURN_S: Final = 2.0


class Workspace:
    """A workspace of the running platform."""

    def __init__(self, session: aiohttp.ClientSession, settings: Settings, kind: str) -> None:
        self.name = f"bench-{kind}-{os.getpid()}"
        self._session, self._settings, self._kind = session, settings, kind
        self._url = f"{settings.query_url}/api/v1"

    async def commit(self) -> None:
        """Commit the definitions of this kind, as a user does."""
        done = await asyncio.create_subprocess_exec(
            *(str(self._settings.executor_python), "-m", "benchmarks.neighbours_definitions"),
            *(self._settings.query_url, f"dev-{self.name}", self._kind),
            stdout=subprocess.DEVNULL,
        )
        assert await done.wait() == 0, "the definitions are committed"

    async def query(self, featureset: str) -> int:
        """Return the status of a query of one row."""
        given = f"{featureset}.given"
        body = {"inputs": [given], "outputs": [f"{featureset}.out"], "data": {given: [1]}}
        async with self._session.post(
            f"{self._url}/query",
            data=json.dumps(body),
            headers={"Authorization": f"Bearer dev-{self.name}"},
        ) as response:
            await response.read()
            return response.status

    async def delete(self) -> None:
        """Delete it, where the administrator's token is known."""
        if token := self._settings.admin_token.get_secret_value():
            headers = {"Authorization": f"Bearer {token}"}
            async with self._session.delete(
                f"{self._url}/workspaces/{self.name}", headers=headers
            ) as response:
                if response.status != 200:
                    print(f"{self.name} was not deleted: {await response.text()}")


async def attack(hostile: Workspace, featureset: str, refused: list[int]) -> None:
    while True:
        refused.append(await hostile.query(featureset))


async def turns(hostile: Workspace, neighbour: Workspace, rounds: int) -> None:
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
            assert await neighbour.query("Fine") == 200, "the neighbour is served"
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
        hostile = Workspace(session, settings, "hostile")
        neighbour = Workspace(session, settings, "fine")
        try:
            await hostile.commit()
            await neighbour.commit()
            for _ in range(200):
                await neighbour.query("Fine")
            await turns(hostile, neighbour, rounds)
        finally:
            await hostile.delete()
            await neighbour.delete()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    settings = Settings(_env_file=Settings().data_dir / "env")  # type: ignore[call-arg]  # pydantic-settings takes it at run time
    asyncio.run(measure(settings, parser.parse_args().rounds))


if __name__ == "__main__":
    main()
