"""Traffic of a chaos run: `log` requests that are repeated until accepted, queries, and commits."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import aiohttp

from fennel_core.query.batch_thread import ROWS_IN_LOOP

CUSTOMERS: Final = 300
CITIES: Final = 30
COUNTRIES: Final = 5
SPAN: Final = timedelta(days=9)
"""Event times lie in the nine days before the run, in any order: within the disorder of 14 days."""
ROWS_AT_ONCE: Final = 20
LOG_TIMEOUT_S: Final = 15.0
RETRY_PAUSE_S: Final = 0.2
COMMIT_TIMEOUT_S: Final = 200.0


@dataclass
class Outcomes:
    """What clients saw. `rows`: accepted rows; the counters are by status or by kind of failure."""

    rows: int = 0
    logs: Counter[str] = field(default_factory=Counter)
    queries: Counter[str] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)


class Rows:
    """Unique rows in any order of event time; no two rows of one key have the same time."""

    def __init__(self, seed: int) -> None:
        self._luck = random.Random(seed)  # noqa: S311  # repeatable, and no secret
        self._first = datetime.now(UTC) - SPAN - timedelta(hours=1)
        self._used: set[int] = set()
        self._orders = 0

    def request(self) -> tuple[str, list[dict[str, Any]]]:
        """Return an endpoint and its rows, times in milliseconds."""
        endpoint = self._luck.choices(["customers", "cities", "orders"], weights=[3, 1, 16])[0]
        count = ROWS_AT_ONCE if endpoint == "orders" else self._luck.randrange(1, 6)
        return endpoint, [self._row(endpoint) for _ in range(count)]

    def _row(self, endpoint: str) -> dict[str, Any]:
        at = self._time()
        match endpoint:
            case "customers":
                uid, city = self._luck.randrange(CUSTOMERS), self._luck.randrange(CITIES)
                return {"uid": uid, "city": f"city {city}", "at": at}
            case "cities":
                city, country = self._luck.randrange(CITIES), self._luck.randrange(COUNTRIES)
                return {"city": f"city {city}", "country": f"country {country}", "at": at}
            case _:
                self._orders += 1
                return {
                    "oid": self._orders,
                    "uid": self._luck.randrange(CUSTOMERS),
                    "amount": self._luck.randrange(1, 100),
                    "at": at,
                }

    def _time(self) -> int:
        while True:
            at = self._first + self._luck.random() * SPAN
            ms = int(at.timestamp() * 1000)
            if ms not in self._used:
                self._used.add(ms)
                return ms


class Traffic:
    """Clients of one workspace. Every accepted request is appended to the file `accepted`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        token: str,
        accepted: Path,
        bodies: Mapping[str, bytes],
    ) -> None:
        self._session, self._url, self._bodies = session, url, bodies
        self._headers = {"Authorization": f"Bearer {token}"}
        self._accepted = accepted.open("w")
        self.outcomes = Outcomes()
        self.over = asyncio.Event()

    async def log_until_over(self, rows: Rows, pause_s: float) -> None:
        """Log requests one after another, each repeated until it is accepted."""
        while not self.over.is_set():
            endpoint, some = rows.request()
            columns = {name: [row[name] for row in some] for name in some[0]}
            columns["at"] = [
                datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in columns["at"]
            ]
            await self._log(endpoint, columns)
            self._accepted.write(json.dumps({"endpoint": endpoint, "rows": some}) + "\n")
            self._accepted.flush()
            self.outcomes.rows += len(some)
            await asyncio.sleep(pause_s)

    async def query_until_over(self, pause_s: float) -> None:
        """Query a feature again and again; count the outcomes."""
        luck = random.Random(0)  # noqa: S311  # repeatable, and no secret
        while not self.over.is_set():
            # One in four has enough rows for the helper.
            rows = 5 if luck.random() < 0.75 else ROWS_IN_LOOP + 1
            uids = [luck.randrange(CUSTOMERS) for _ in range(rows)]
            body = {
                "inputs": ["Shopper.uid"],
                "outputs": ["Shopper.spent"],
                "data": {"Shopper.uid": uids},
                "log": False,
            }
            status, _ = await self.call("/query", json.dumps(body).encode(), LOG_TIMEOUT_S)
            self.outcomes.queries[status] += 1
            await asyncio.sleep(pause_s)

    async def commit_until_over(self, pause_s: float) -> None:
        """Commit the two versions in turn, through Airflow; count the outcomes."""
        while not self.over.is_set():
            for version in ("two", "one"):
                status, text = await self.call("/commit", self._bodies[version], COMMIT_TIMEOUT_S)
                self.outcomes.commits[status] += 1
                if status not in {"200", "409"} and status.startswith(("2", "4")):
                    self.outcomes.refused.append(f"commit: {status} {text[:300]}")
                await asyncio.sleep(pause_s)

    async def call(self, path: str, body: bytes, timeout_s: float, **more: str) -> tuple[str, str]:
        """Return the status as text, or the kind of the failure, and the response's text."""
        try:
            async with self._session.post(
                f"{self._url}/api/v1{path}",
                data=body,
                headers=self._headers | more,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                return str(response.status), await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return type(error).__name__, str(error)

    async def passes_barrier(self, within_s: float) -> bool:
        """Return whether everything that was logged became visible in time."""
        give_up = time.monotonic() + within_s
        body = json.dumps({"timeout_s": 30}).encode()
        while time.monotonic() < give_up:
            status, _ = await self.call("/barrier", body, 60.0)
            if status == "200":
                return True
            await asyncio.sleep(1.0)  # the pause of a client that retries
        return False

    def close(self) -> None:
        self._accepted.close()

    async def _log(self, endpoint: str, columns: Mapping[str, list[Any]]) -> None:
        body = json.dumps({"webhook": "chaos", "endpoint": endpoint, "data": columns}).encode()
        while True:
            status, text = await self.call("/log", body, LOG_TIMEOUT_S)
            self.outcomes.logs[status] += 1
            if status == "200":
                return
            if status.startswith("4"):
                self.outcomes.refused.append(f"log: {status} {text[:300]}")
            await asyncio.sleep(RETRY_PAUSE_S)
