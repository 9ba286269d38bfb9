"""The law, end to end: after corrections, late rows, splits, delays and replays, lookups equal the
recompute over the accepted rows.

Several servers with skewed clocks process `log` calls one after the other. Four partitions of every
job read the written rows in any batches and in any order of delivery between topics; runners die
and replay. Then every dataset is looked up, as of now and of the past.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.dataflow.oracle import SECOND, Accepted
from tests.sim.engine.virtual_time import run
from tests.support.cluster import Cluster
from tests.support.correction_calls import LAWS, Call, calls_to
from tests.support.corrections import (
    BASE_S,
    LOOKUP_TIMES_S,
    LOOKUPS,
    NOW_US,
    comparable,
)


async def check(datasets: list[str], calls: list[Call], skews_us: list[int], seed: int) -> None:
    cluster = Cluster("corrections", datasets, seed, skews_us, NOW_US)
    accepted = Accepted()
    for call in calls:
        await asyncio.sleep(call.pause_s)
        if call.death is not None:
            await cluster.restart(call.death)
        await cluster.log_rows(call.server, call.endpoint, call.rows)
        accepted.take(call.endpoint, [{**row, "at": row["at"] * 1000} for row in call.rows])
    await cluster.settle()
    for dataset in datasets:
        await check_dataset(cluster, accepted, dataset)
    await cluster.close()


async def check_dataset(cluster: Cluster, accepted: Accepted, dataset: str) -> None:
    name, keys, expected = LOOKUPS[dataset]
    lookups = [(key, as_of_s) for key in keys for as_of_s in LOOKUP_TIMES_S]
    found = await cluster.lookup(
        dataset,
        [{name: key} for key, _ in lookups],
        [int(1000 * as_of_s) for _, as_of_s in lookups],
    )
    current = await cluster.lookup(dataset, [{name: key} for key in keys], None)
    for (key, as_of_us), row in zip(
        [
            *((key, int(as_of_s * SECOND)) for key, as_of_s in lookups),
            *((key, NOW_US) for key in keys),
        ],
        [*found, *current],
        strict=True,
    ):
        wanted = expected(accepted, key, as_of_us)
        assert comparable(row, wanted) == comparable(wanted, wanted), (
            f"{dataset} of {key} as of {as_of_us - BASE_S * SECOND} µs"
        )


@pytest.mark.parametrize(
    "late", [False, True], ids=["match lost before the click", "match lost after the click"]
)
def test_windows_close_at_the_same_time_whenever_a_match_is_lost(late):
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
    run(check(["Windowed"], calls, [0], seed=1))


def test_a_click_that_is_too_late_is_in_no_dataset():
    # The last click is more than 20 s older than the largest time before the preceding request.
    times = [0, 25, 26, 1]
    clicks = [
        Call(0, "Clicks", ({"uid": "a", "amount": 1, "at": 1000 * (BASE_S + at)},), 0.0, None)
        for at in times
    ]
    user = Call(1, "Users", ({"uid": "a", "city": "rome", "at": 1000 * BASE_S},), 0.0, None)
    run(check(["PerCity"], [user, *clicks], [0, 5 * SECOND], seed=1))


def test_features_are_computed_from_corrected_rows():
    async def query() -> dict[str, list[Any]]:
        cluster = Cluster("corrections", ["PerCity", "Windowed"], 3, [0, 0], NOW_US)
        await cluster.log_rows(
            0, "Clicks", [{"uid": "a", "amount": 3, "at": 1000 * (BASE_S + at)} for at in (1, 9)]
        )
        for server, city in enumerate(["lima", "rome"]):
            await cluster.log_rows(
                server, "Users", [{"uid": "a", "city": city, "at": 1000 * BASE_S}]
            )
        await cluster.settle()
        found = await cluster.query(
            ["City.city"], ["City.count", "City.windows"], {"City.city": ["rome", "lima"]}
        )
        await cluster.close()
        return found

    assert run(query()) == {"City.count": [2, 0], "City.windows": [0, 0]}


@pytest.mark.parametrize("datasets", LAWS, ids=", ".join)
@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    skews_us=st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_lookups_equal_the_recompute_over_the_accepted_rows(datasets, data, skews_us, seed):
    run(check(list(datasets), data.draw(calls_to(LAWS[datasets])), skews_us, seed))
