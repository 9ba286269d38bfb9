"""The API of the workspace `market`, and the requests whose responses a fixture records.

A recorded request is sent again under a later version, and its response must be the same. Event
times are long ago, so that no window contains the moment of the query.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

from tests.support.polling import eventually_sync

WORKSPACE: Final = "market"
MAIN: Final = "main"
OTHER: Final = "other"
START: Final = datetime(2024, 3, 1, tzinfo=UTC)
USERS: Final = tuple(f"user {n}" for n in range(12))
ERASED: Final = "user 7"
SECRET: Final = "eleven signs"  # noqa: S105  # a fixed value of a test
REQUEST_S: Final = 150.0


def at(hours: float) -> str:
    """Return an event time."""
    return (START + timedelta(hours=hours)).isoformat()


TIMES: Final = (at(0.5), at(6), at(30))
"""Before most rows, among them, and after most of them."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request and its response. `unordered`: the rows of the response have no order."""

    branch: str
    method: str
    path: str
    body: Any
    response: Any
    unordered: bool = False


class Market:
    """A client of one workspace, over plain HTTP."""

    def __init__(self, url: str, token: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=REQUEST_S, trust_env=False)
        self._token = token

    def close(self) -> None:
        self._client.close()

    def call(
        self, method: str, path: str, body: Any = None, branch: str = MAIN, **query: str
    ) -> Any:
        """Send a request and return the JSON of its response; AssertionError unless it is 200.

        It is sent again while the response is 503, with which nothing has happened.
        """
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        def send() -> httpx.Response | None:
            response = self._client.request(
                method,
                f"/api/v1{path}",
                params=query or None,
                content=None if body is None else content,
                headers={"Authorization": f"Bearer {self._token}", "X-FENNEL-BRANCH": branch},
            )
            assert response.status_code in (200, 503), f"{method} {path}: {response.text}"
            return response if response.status_code == 200 else None

        what = f"{method} {path} succeeds"
        return eventually_sync(send, within_s=REQUEST_S, interval_s=0.5, what=what).json()

    def log(self, endpoint: str, rows: list[dict[str, Any]]) -> None:
        body = {"webhook": "market", "endpoint": endpoint, "data": rows}
        assert self.call("POST", "/log", body) == {"rows": len(rows)}

    def settle(self) -> None:
        """Wait until every logged row is visible in every branch."""
        for branch in self.call("GET", "/branch/list")["branches"]:
            self.call("POST", "/barrier", {"timeout_s": REQUEST_S - 10}, branch["name"])

    def ask(self, recorded: Recorded) -> Any:
        """Send a recorded request again, and return its response in comparable form."""
        response = self.call(recorded.method, recorded.path, recorded.body, recorded.branch)
        return _sorted_rows(response) if recorded.unordered else response

    def record(
        self, method: str, path: str, body: Any = None, branch: str = MAIN, unordered: bool = False
    ) -> Recorded:
        """Send a request, and return it with its response."""
        asked = Recorded(branch, method, path, body, None, unordered)
        return Recorded(branch, method, path, body, self.ask(asked), unordered)

    def record_all(self) -> list[Recorded]:
        """Record lookups now and as of earlier times, queries, rows, branches and the secret."""
        users = [{"user": name} for name in (*USERS, "unknown")]
        countries = [{"country": name} for name in ("near", "far", "mid", "unknown")]
        sessions = self.call("GET", "/dataset/Sessions/inspect?n=1000")
        windows = [
            {"user": user, "window": window}
            for user, window in zip(sessions["user"], sessions["window"], strict=True)
        ]
        keys: dict[str, list[dict[str, Any]]] = {
            **dict.fromkeys(
                ("Users", "Locals", "Homes", "Continuously", "Discretely"),
                users,
            ),
            **dict.fromkeys(("FirstOrder", "LatestOrder"), users),
            **dict.fromkeys(("Countries", "PerCountry"), countries),
            "Busiest": [{"hourly": count} for count in range(6)],
            "Sessions": sorted({json.dumps(each): each for each in windows}.values(), key=str),
        }
        found = [self.record("GET", "/branch/list"), self.record("GET", "/secret/vault")]
        for branch in (MAIN, OTHER):
            for dataset, wanted in keys.items():
                found += self._lookups(dataset, wanted, branch)
            body = {
                "inputs": ["Request.user"],
                "outputs": ["User"],
                "data": {"Request.user": [key["user"] for key in users]},
            }
            found.append(self.record("POST", "/query", body, branch))
        found += self._lookups("Noted", [{"note": name} for name in ("gift", "none")], OTHER)
        for dataset in ("Orders", "Cents", "Flat", "Both", "UserChanges"):
            path = f"/dataset/{dataset}/inspect?n=1000"
            found.append(self.record("GET", path, unordered=True))
        return found

    def record_dropped(self) -> list[Recorded]:
        """Record lookups of the dataset that a later commit drops."""
        return self._lookups("Visited", [{"user": name} for name in USERS], MAIN)

    def _lookups(self, dataset: str, keys: list[dict[str, Any]], branch: str) -> list[Recorded]:
        """Look up all keys now, and as of each of `TIMES`."""
        path, now = f"/dataset/{dataset}/lookup", {"keys": keys, "fields": []}
        return [
            self.record("POST", path, body, branch)
            for body in (now, *(now | {"timestamps": [time] * len(keys)} for time in TIMES))
        ]


def _sorted_rows(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    rows = sorted(zip(*columns.values(), strict=True), key=str)
    return {name: [row[n] for row in rows] for n, name in enumerate(columns)}


def first_rows(market: Market) -> None:
    """Log the rows of the first phase, among them one that user code refuses."""
    market.log("Countries", [_country("near", "Here", 0), _country("mid", "Here", 0)])
    market.log("Users", [_user(n, ("near", "mid", "far")[n % 3], 0.1 * n) for n in range(12)])
    for first in range(0, 60, 20):
        market.log("Orders", [_order(n, 0.2 * n) for n in range(first, first + 20)])


def later_rows(market: Market) -> None:
    """Log corrections: upserts, rows that leave a filter, rows in time and too late."""
    market.log("Countries", [_country("mid", "There", 5), _country("far", "There", 6)])
    market.log("Users", [_user(1, "far", 7), _user(2, "near", 8), _user(3, "mid", 3)])
    market.log("Orders", [_order(n, 0.2 * n) for n in range(60, 100)])
    market.log("Orders", [_order(100, 50), _order(101, 45.5), _order(102, 44)])
    market.log("Orders", [_order(103, 46)])  # out of order, but in time
    market.log("Orders", [_order(104, 2)])  # too late
    market.log("Orders", [_order(105, 50.5, note=None)])  # a dead letter of the branch


def last_rows(market: Market) -> None:
    """Log what no snapshot contains."""
    market.log("Users", [_user(4, "near", 40), _user(5, "mid", 41)])
    market.log("Orders", [_order(n, 50 + 0.1 * (n - 105)) for n in range(106, 130)])


def visits(market: Market) -> None:
    """Log rows to the endpoint that is dropped later."""
    market.log("Visits", [{"user": USERS[n % 4], "at": at(n)} for n in range(10)])


def new_rows(market: Market) -> None:
    """Log rows that no fixture contains: a user with a country, and three orders."""
    market.log("Countries", [_country("new", "Beyond", 60)])
    market.log("Users", [{**_user(0, "new", 60), "user": "new user"}])
    market.log(
        "Orders", [{**_order(n, 60 + n / 1000), "user": "new user"} for n in (200, 201, 202)]
    )


def _user(n: int, country: str, hours: float) -> dict[str, Any]:
    age = None if n % 5 == 0 else 20 + n
    return {"user": USERS[n], "country": country, "age": age, "updated": at(hours)}


def _country(name: str, continent: str, hours: float) -> dict[str, Any]:
    return {"country": name, "continent": continent, "updated": at(hours)}


def _order(n: int, hours: float, note: str | None = "gift") -> dict[str, Any]:
    """Return an order; order 5 makes user code raise. Amounts are multiples of a quarter."""
    amount = (n * 7 % 40) / 4
    return {
        "order_id": n,
        "user": USERS[n * 5 % 12],
        "city": (None, "Oslo", "Rome", "Lima")[n % 4],
        "amount": amount,
        "price": amount,
        "day": at(hours)[:10],
        "tags": ["a", "b", "c"][: n % 4],
        "paid_at": at(hours - 0.5),
        "note": note if n % 3 or note is None else "none",
        "at": at(hours),
    }
