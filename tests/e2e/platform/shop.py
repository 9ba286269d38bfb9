"""A shop on the definitions of `kept`: log purchases, read every feature, and check the sums."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from tests.support.polling import eventually
from tests.support.workspaces import Api

KEPT = "tests.e2e.platform.kept"
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [f"person {n}" for n in range(500)]
CITIES = [f"city {n}" for n in range(20)]
AT_ONCE = 40_000
"""Rows of one `log` call."""


class Shop:
    """The logged rows and the features that they must result in."""

    def __init__(self, api: Api) -> None:
        self._api, self._random = api, random.Random(7)  # noqa: S311  # repeatable, and no secret
        self.logged = 0
        self.purchases: Counter[str] = Counter()
        self.spent: Counter[str] = Counter()

    async def _log(self, endpoint: str, data: dict[str, list[Any]]) -> None:
        status, response = await self._api.call(
            "POST", "/log", {"webhook": "kept", "endpoint": endpoint, "data": data}
        )
        assert status == 200, response

    async def people(self) -> None:
        cities = [CITIES[n % len(CITIES)] for n in range(len(NAMES))]
        await self._log(
            "people", {"name": NAMES, "city": cities, "at": [START.isoformat()] * len(NAMES)}
        )

    async def buy(self, rows: int) -> None:
        for _ in range(rows // AT_ONCE):
            names = self._random.choices(NAMES, k=AT_ONCE)
            amounts = [self._random.randrange(1, 100) for _ in names]
            seconds = [(self.logged + n) // 10 for n in range(AT_ONCE)]
            await self._log(
                "purchases",
                {
                    "name": names,
                    "amount": amounts,
                    "at": [(START + timedelta(seconds=s)).isoformat() for s in seconds],
                },
            )
            self.logged += AT_ONCE
            for name, amount in zip(names, amounts, strict=True):
                self.purchases[name] += 1
                self.spent[name] += amount

    async def settled(self) -> None:
        """Wait until every logged row is visible."""
        await self._api.settled(within_s=300)

    async def features(self) -> dict[str, Any]:
        """Look up every key of every dataset, as of now and as of earlier times."""
        hours = [START + timedelta(hours=h) for h in (0, 1.5, 4)]
        found: dict[str, Any] = {}
        for dataset, column, keys in (
            ("Person", "name", NAMES),
            ("Spending", "name", NAMES),
            ("Hourly", "city", CITIES),
        ):
            for at in hours:
                found[f"{dataset} as of {at}"] = await self._looked_up(dataset, column, keys, at)
            found[dataset] = await self._looked_up(dataset, column, keys, None)
            found[dataset].pop("lately", None)  # of the last two hours before the query
        return found

    async def _looked_up(
        self, dataset: str, column: str, keys: list[str], at: datetime | None
    ) -> dict[str, list[Any]]:
        answer: dict[str, list[Any]] = defaultdict(list)
        for start in range(0, len(keys), 50):
            asked = keys[start : start + 50]
            body: dict[str, Any] = {"keys": [{column: key} for key in asked], "fields": []}
            if at is not None:
                body["timestamps"] = [at.isoformat()] * len(asked)
            part = await eventually(
                partial(self._lookup, dataset, body), within_s=60, interval_s=0.2
            )
            for name, values in {**part["data"], "found": part["found"]}.items():
                answer[name] += values
        return answer

    async def _lookup(self, dataset: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the looked up columns; None if a slot is late, as on a busy machine."""
        status, text = await self._api.call("POST", f"/dataset/{dataset}/lookup", body)
        assert status in (200, 503), f"{status} {text}"
        found: dict[str, Any] | None = json.loads(text) if status == 200 else None
        return found

    def check(self, features: dict[str, Any]) -> None:
        """Check that the sums are those of the logged rows."""
        now = features["Spending"]
        assert dict(zip(now["name"], now["spent"], strict=True)) == self.spent
        assert dict(zip(now["name"], now["purchases"], strict=True)) == self.purchases
        assert all(features["Hourly"]["found"])
