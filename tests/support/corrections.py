"""The datasets of the `corrections` definitions, and how to compare their rows with the oracle."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from tests.laws.dataflow.oracle import SECOND, Accepted

BASE_S = 1_700_000_000
NOW_US = (BASE_S + 10_000) * SECOND
LOOKUP_TIMES_S = [BASE_S + t / 2 for t in range(-2, 60)]
UIDS, CITIES, COUNTRIES, OIDS = ["a", "b", "c"], ["rome", "oslo", "lima"], ["it", "no"], [1, 2, 3]

LOOKUPS: dict[str, tuple[str, list[Any], Callable[[Accepted, Any, int], dict[str, Any] | None]]] = {
    "Users": ("uid", UIDS, Accepted.users),
    "Locals": ("uid", UIDS, Accepted.locals),
    "Homes": ("uid", UIDS, Accepted.homes),
    "PerCity": ("city", CITIES, Accepted.per_city),
    "Windowed": ("city", CITIES, Accepted.windowed),
    "Final": ("city", [*CITIES, "nowhere"], Accepted.final),
    "Natives": ("city", CITIES, Accepted.natives),
    "Abroad": ("country", COUNTRIES, Accepted.abroad),
    "Totals": ("uid", UIDS, Accepted.totals),
    "Counts": ("uid", UIDS, Accepted.counts),
    "Spenders": ("count", [0, 1, 2, 3], Accepted.spenders),
}


def comparable(
    row: dict[str, Any] | None, expected: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the fields that the oracle knows, with times as microseconds."""
    if row is None:
        return None
    fields = {
        name: value
        for name, value in row.items()
        if expected is None or (name in expected and name in row and name != "n")
    }
    at = fields.get("at")
    if isinstance(at, str):
        fields["at"] = round(dt.datetime.fromisoformat(at).timestamp() * SECOND)
    return fields
