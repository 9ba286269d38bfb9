"""The law, end to end: whatever was corrected, late, split, delayed or replayed, lookups equal the
recompute over the accepted rows.

Several servers with skewed clocks take `log` calls one after the other; four partitions of every
job read what they wrote, in any batches and in any order of delivery between topics; runners die
and replay. Then every dataset is looked up, as of now and of the past.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.dataflow.oracle import SECOND, Accepted
from tests.sim.engine.virtual_time import run
from tests.support.cluster import Cluster

BASE_S = 1_700_000_000
NOW_US = (BASE_S + 10_000) * SECOND
MOMENTS = [BASE_S + t / 2 for t in range(-2, 60)]
UIDS, CITIES, COUNTRIES, OIDS = ["a", "b", "c"], ["rome", "oslo", "lima"], ["it", "no"], [1, 2, 3]


@dataclass(frozen=True)
class Call:
    """One `log` call to one of the servers, after a pause; or the death of a job partition."""

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


async def lived(datasets: list[str], calls: list[Call], skews_us: list[int], seed: int) -> None:
    cluster = Cluster("corrections", datasets, seed, skews_us, NOW_US)
    accepted = Accepted()
    for call in calls:
        await asyncio.sleep(call.pause_s)
        if call.death is not None:
            await cluster.restart(call.death)
        await cluster.say(call.server, call.endpoint, call.rows)
        accepted.take(call.endpoint, [{**row, "at": row["at"] * 1000} for row in call.rows])
    await cluster.settle()
    for dataset in datasets:
        await compared(cluster, accepted, dataset)
    await cluster.close()


async def compared(cluster: Cluster, accepted: Accepted, dataset: str) -> None:
    name, keys, expected = LOOKUPS[dataset]
    asked = [(key, moment) for key in keys for moment in MOMENTS]
    found = await cluster.lookup(
        dataset, [{name: key} for key, _ in asked], [int(1000 * moment) for _, moment in asked]
    )
    current = await cluster.lookup(dataset, [{name: key} for key in keys], None)
    for (key, moment_us), row in zip(
        [*((key, int(moment * SECOND)) for key, moment in asked), *((key, NOW_US) for key in keys)],
        [*found, *current],
        strict=True,
    ):
        wanted = expected(accepted, key, moment_us)
        assert shown(row, wanted) == shown(wanted, wanted), (
            f"{dataset} of {key} as of {moment_us - BASE_S * SECOND} µs"
        )


def shown(row: dict[str, Any] | None, wanted: dict[str, Any] | None) -> dict[str, Any] | None:
    """The fields that the oracle speaks of, times as microseconds since the base."""
    if row is None:
        return None
    fields = {
        name: value
        for name, value in row.items()
        if wanted is None or (name in wanted and name in row and name != "n")
    }
    at = fields.get("at")
    if isinstance(at, str):
        fields["at"] = round(dt.datetime.fromisoformat(at).timestamp() * SECOND)
    return fields


@pytest.mark.parametrize("late", [False, True], ids=["lost before it came", "lost afterwards"])
def test_windows_close_at_the_same_time_whether_a_match_was_lost_before_or_after_it_was_seen(late):
    def one(endpoint: str, pause_s: float = 0.0, **row: Any) -> Call:
        return Call(0, endpoint, ({**row, "at": 1000 * (BASE_S + row["at"])},), pause_s, None)

    users = [one("Users", uid=uid, city="rome", at=0) for uid in "ab"]
    deleted, last = (
        one("Users", 9.0, uid="b", city="oslo", at=8),
        one("Clicks", 9.0, uid="b", amount=1, at=9),
    )
    calls = [
        *users,
        one("Clicks", uid="a", amount=1, at=1),
        *([last, deleted] if late else [deleted, last]),
    ]
    run(lived(["Windowed"], calls, [0], seed=1))


def test_a_click_that_is_too_late_is_in_no_dataset():
    times = [
        0,
        25,
        26,
        1,
    ]  # the last is older than what was accepted before the request before it, by more than 20 s
    clicks = [
        Call(0, "Clicks", ({"uid": "a", "amount": 1, "at": 1000 * (BASE_S + at)},), 0.0, None)
        for at in times
    ]
    user = Call(1, "Users", ({"uid": "a", "city": "rome", "at": 1000 * BASE_S},), 0.0, None)
    run(lived(["PerCity"], [user, *clicks], [0, 5 * SECOND], seed=1))


def test_features_are_computed_from_corrected_rows():
    async def asked() -> dict[str, list[Any]]:
        cluster = Cluster("corrections", ["PerCity", "Windowed"], 3, [0, 0], NOW_US)
        await cluster.say(
            0, "Clicks", [{"uid": "a", "amount": 3, "at": 1000 * (BASE_S + at)} for at in (1, 9)]
        )
        for server, city in enumerate(["lima", "rome"]):
            await cluster.say(server, "Users", [{"uid": "a", "city": city, "at": 1000 * BASE_S}])
        await cluster.settle()
        found = await cluster.query(
            ["City.city"], ["City.count", "City.windows"], {"City.city": ["rome", "lima"]}
        )
        await cluster.close()
        return found

    assert run(asked()) == {"City.count": [2, 0], "City.windows": [0, 0]}


LAWS = {
    ("Users", "Locals", "Homes"): ("Users", "Cities"),
    ("PerCity",): ("Clicks", "Users"),
    ("Windowed", "Final"): ("Clicks", "Users"),
    ("Natives",): ("Clicks", "Users"),
    ("Abroad",): ("Orders", "Users", "Cities"),
    ("Totals", "Counts", "Spenders"): ("Orders", "Clicks"),
}


@pytest.mark.parametrize("datasets", LAWS, ids=", ".join)
@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    skews_us=st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_lookups_equal_the_recompute_over_the_accepted_rows(datasets, data, skews_us, seed):
    run(lived(list(datasets), data.draw(calls_to(LAWS[datasets])), skews_us, seed))
