"""Random `log` calls to the endpoints of the `corrections` definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.support.corrections import BASE_S, CITIES, COUNTRIES, OIDS, UIDS

LAWS = {
    ("Users", "Locals", "Homes"): ("Users", "Cities"),
    ("PerCity",): ("Clicks", "Users"),
    ("Windowed", "Final"): ("Clicks", "Users"),
    ("Natives",): ("Clicks", "Users"),
    ("Abroad",): ("Orders", "Users", "Cities"),
    ("Totals", "Counts", "Spenders"): ("Orders", "Clicks"),
}
"""Groups of datasets, and the endpoints whose rows they are computed from."""


@dataclass(frozen=True)
class Call:
    """One `log` call to one of the servers after a pause, and the death of a job partition before
    it, if any.
    """

    server: int
    endpoint: str
    rows: tuple[dict[str, Any], ...]
    pause_s: float
    death: int | None


KEYS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "Clicks": {"uid": st.sampled_from(UIDS), "amount": st.integers(1, 9)},
    "Users": {"uid": st.sampled_from(UIDS), "city": st.sampled_from(CITIES)},
    "Cities": {"city": st.sampled_from(CITIES), "country": st.sampled_from(COUNTRIES)},
    "Orders": {
        "oid": st.sampled_from(OIDS),
        "uid": st.sampled_from(UIDS),
        "amount": st.integers(1, 9),
    },
}
TIMES_MS = (st.integers(0, 12) | st.integers(0, 28)).map(
    lambda s: 1000 * (BASE_S + s)
) | st.integers(0, 9_999).map(lambda ms: 1000 * BASE_S + ms)


def rows_of(endpoint: str) -> st.SearchStrategy[tuple[dict[str, Any], ...]]:
    return st.lists(
        st.fixed_dictionaries({**KEYS[endpoint], "at": TIMES_MS}), min_size=1, max_size=4
    ).map(tuple)


def calls_to(endpoints: tuple[str, ...]) -> st.SearchStrategy[list[Call]]:
    def to(endpoint: str) -> st.SearchStrategy[Call]:
        pauses, deaths = (
            st.sampled_from([0.0, 0.0, 0.05, 2.0]),
            st.none() | st.none() | st.integers(0, 1000),
        )
        return st.builds(
            Call, st.integers(0, 2), st.just(endpoint), rows_of(endpoint), pauses, deaths
        )

    return st.lists(st.sampled_from(endpoints).flatmap(to), min_size=1, max_size=10)
