"""Integrity checks, end to end: none differs on a healthy platform under traffic, and an altered
value in a state is found, with its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.hangar.store import WriteBatch
from fennel_core.integrity.checks import DatasetFinding, IntegrityVerdict
from fennel_core.integrity.naive_outputs import inputs_of
from fennel_core.operators.rows import TOMBSTONE
from fennel_core.operators.table.step import VERSIONS
from fennel_core.vocab.keys import key_bytes
from tests.sim.engine.virtual_time import run
from tests.support.cluster import Cluster
from tests.support.correction_calls import LAWS, Call, calls_to
from tests.support.corrections import BASE_S, NOW_US

HEALTHY = {IntegrityVerdict.AGREES, IntegrityVerdict.SKIPPED}


async def _checked(cluster: Cluster, dataset: str, seed: int) -> DatasetFinding:
    check = cluster.integrity(keys=3, seed=seed, now_us=NOW_US)
    return await check.run(cluster.checked(dataset))


async def _written(cluster: Cluster, datasets: Sequence[str], seed: int) -> list[DatasetFinding]:
    check = cluster.output_check(keys=3, seed=seed)
    return [await check.run(each) for each in cluster.written(datasets)]


async def _under_traffic(
    datasets: tuple[str, ...], calls: list[Call], skews_us: list[int], seed: int
) -> list[DatasetFinding]:
    """Check all datasets again and again while rows are logged and runners die."""
    cluster = Cluster("corrections", datasets, seed, skews_us, NOW_US)
    found: list[DatasetFinding] = []

    async def check_forever() -> None:
        for number in range(10**6):
            found.append(await _checked(cluster, datasets[number % len(datasets)], seed + number))
            found.extend(await _written(cluster, datasets, seed + number))
            await asyncio.sleep(0.03)  # virtual time, in which rows are logged and applied

    checking = asyncio.create_task(check_forever())
    for call in calls:
        await asyncio.sleep(call.pause_s)
        if call.death is not None:
            await cluster.restart(call.death)
        await cluster.log_rows(call.server, call.endpoint, call.rows)
    await cluster.settle()
    checking.cancel()
    await asyncio.wait([checking])
    if not checking.cancelled():
        checking.result()  # it failed
    found += await _written(cluster, datasets, seed)
    found += [await _checked(cluster, dataset, seed) for dataset in datasets]
    await cluster.close()
    return found


@pytest.mark.parametrize("datasets", LAWS, ids=", ".join)
@settings(max_examples=3, deadline=None)
@given(
    data=st.data(),
    skews_us=st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_a_healthy_platform_never_differs_whatever_is_under_way(
    datasets: tuple[str, ...], data: Any, skews_us: list[int], seed: int
) -> None:
    calls = data.draw(calls_to(LAWS[datasets]))
    found = run(_under_traffic(datasets, calls, skews_us, seed))
    assert [str(each) for each in found if each.differing] == []
    assert {each.verdict for each in found[-len(datasets) :]} <= HEALTHY, "all rows are applied"


def test_an_altered_value_in_a_state_is_found_and_named() -> None:
    async def altered() -> tuple[DatasetFinding, DatasetFinding, DatasetFinding]:
        cluster = Cluster("corrections", ["Locals"], 1, [0], NOW_US)
        users = [
            {"uid": uid, "city": "rome", "at": 1000 * (BASE_S + at)}
            for at, uid in enumerate(["a", "b", "c"])
        ]
        await cluster.log_rows(0, "Users", users)
        await cluster.settle()
        before = await _checked(cluster, "Locals", 1)
        checked = cluster.checked("Locals")
        for part in range(checked.partitions):
            store = cluster.store(checked.job, part)
            for key, row in store.scan(b"", b"\xff"):
                if key[2:3] == VERSIONS and b"b" in key and row != TOMBSTONE:
                    time, *values = msgspec.msgpack.decode(row)
                    changed = ["oslo" if value == "rome" else value for value in values]
                    store.write(WriteBatch({key: msgspec.msgpack.encode([time, *changed])}))
        during = await _checked(cluster, "Locals", 1)
        await cluster.log_rows(
            0, "Users", [{"uid": "a", "city": "lima", "at": 1000 * (BASE_S + 9)}]
        )
        await cluster.settle()
        after = await _checked(cluster, "Locals", 2)
        await cluster.close()
        return before, during, after

    before, during, after = run(altered())
    assert (before.verdict, before.keys) == (IntegrityVerdict.AGREES, 3)
    for finding in (during, after):
        assert finding.verdict is IntegrityVerdict.DIFFERS
        assert {each.shown_key for each in finding.differences} == {"['b']"}
        assert {each.row.columns for each in finding.differences} == {("city",)}


def test_groups_of_erased_keys_are_not_compared_with_what_a_job_has_written() -> None:
    async def checked() -> tuple[dict[str, DatasetFinding], dict[str, DatasetFinding]]:
        cluster = Cluster("corrections", ["PerCity"], 1, [0], NOW_US)
        at = 1000 * (BASE_S + 1)
        for uid, city in zip(("a", "b", "c"), ("rome", "lima", "pisa"), strict=True):
            await cluster.log_rows(0, "Users", [{"uid": uid, "city": city, "at": at}])
            for later in (1, 60):
                click = {"uid": uid, "amount": 3, "at": at + 1000 * later}
                await cluster.log_rows(0, "Clicks", [click])
        await cluster.settle()
        (join,) = [each for each in cluster.written(["PerCity"]) if "join" in each.title]
        groups = inputs_of(join.spec)
        found = []
        for columns, topic in ((groups[1].columns, 1), (("city",), 1)):
            value = "a" if columns != ("city",) else "rome"
            keys = key_bytes(pl.DataFrame({columns[0]: [value]}), columns)
            removed = {join.inputs[topic]: (ErasedKeys(columns, frozenset(keys)),)}
            check = cluster.output_check(keys=9, seed=1, removed=removed)
            found.append({join.title: await check.run(join)})
        await cluster.close()
        return found[0], found[1]

    by_group, by_another = run(checked())
    (finding,) = by_group.values()
    assert (finding.differing, finding.keys) == (0, 2), "the other input has rows of the group"
    (finding,) = by_another.values()
    assert (finding.differing, finding.keys) == (0, 0)
    assert any("any group may have lost rows" in each for each in finding.details)


WRITERS = {"PerCity": "join", "Homes": "join", "Final": "aggregate"}
"""Datasets, and the kind of the job behind each whose topic is damaged."""


@pytest.mark.parametrize(("dataset", "kind"), WRITERS.items())
def test_a_row_too_many_and_a_row_too_few_on_a_topic_are_found_and_named(
    dataset: str, kind: str
) -> None:
    async def checked(change: str) -> dict[str, DatasetFinding]:
        cluster = Cluster("corrections", [dataset], 1, [0], NOW_US)
        endpoints = {name for names, sent in LAWS.items() if dataset in names for name in sent}
        at = 1000 * (BASE_S + 1)
        for uid, city in zip(("a", "b", "c"), ("rome", "lima", "pisa"), strict=True):
            await cluster.log_rows(0, "Users", [{"uid": uid, "city": city, "at": at}])
            if "Clicks" in endpoints:
                for later in (1, 60):  # the windows of the first close by the time of the second
                    click = {"uid": uid, "amount": 3, "at": at + 1000 * later}
                    await cluster.log_rows(0, "Clicks", [click])
            else:
                await cluster.log_rows(0, "Cities", [{"city": city, "country": "it", "at": at}])
        await cluster.settle()
        if change:
            (job,) = [each for each in cluster.written([dataset]) if kind in each.title]
            cluster.repeat_first_row(job.output, job.partitions, -1 if change == "few" else 1)
        check = cluster.output_check(keys=9, seed=1)
        found = {each.title: await check.run(each) for each in cluster.written([dataset])}
        await cluster.close()
        return found

    for change in ("", "many", "few"):
        found = run(checked(change))
        (damaged,) = [finding for title, finding in found.items() if kind in title]
        assert damaged.keys >= 2, "users and cities have rows"
        assert damaged.differing == bool(change), damaged.differences
        assert len(damaged.compared) == damaged.keys, "an alarm of any of them may end"
        assert damaged.differing_keys <= damaged.compared
        for difference in damaged.differences:
            missing, extra = difference.row.expected, difference.row.found
            assert (len(missing or ()), len(extra or ())) == ((1, 0) if change == "few" else (0, 1))
            assert difference.as_of is None
