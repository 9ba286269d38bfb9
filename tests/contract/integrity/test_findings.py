"""Which datasets are checked, and how an alarm begins and ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

import polars as pl
import pytest

from fennel_core.blueprints import stored_names
from fennel_core.connections import erasures
from fennel_core.connections.postgres import Pool, pool
from fennel_core.definition.integrity_check import DIFFERING, IntegrityAlarm
from fennel_core.integrity import findings
from fennel_core.integrity.checks import (
    KEPT_DIFFERENCES,
    CheckedDataset,
    DatasetFinding,
    KeyDifference,
)
from fennel_core.integrity.naive_rows import RowDifference
from fennel_core.integrity.output_checks import CheckedJob, UncomparedJob
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import DatasetName, Micros, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from tests.support.cluster import blueprint

KEY, OTHER = b"\x91\xa1a", b"\x91\xa1b"


@pytest.fixture
async def committed(database: str) -> AsyncIterator[Pool]:
    """Two branches of a workspace that serve the same version."""
    made = blueprint("corrections")
    async with pool(database, name="test", size=2) as connections:
        async with connections.connection() as connection:
            await connection.execute("INSERT INTO workspace (name, partitions) VALUES ('w', 4)")
            await connection.execute(
                "INSERT INTO commit (id, workspace, branch, state, digest, request, options, "
                "problems, catalog) VALUES ('c1', 'w', 'main', 'finished', '', '', '{}', '[]', %s)",
                (stored_names.dumps(made.catalog),),
            )
            for branch in ("main", "copy"):
                await connection.execute(
                    "INSERT INTO branch (workspace, name, target, serving) "
                    "VALUES ('w', %s, 'c1', 'c1')",
                    (branch,),
                )
            for job in made.jobs:
                await connection.execute(
                    "INSERT INTO job (id, workspace, spec) VALUES (%s, 'w', %s)",
                    (job.id, stored_names.dumps(job)),
                )
        yield connections


def differing(*keys: bytes) -> DatasetFinding:
    row = RowDifference(("city",), [1, "rome"], [1, "oslo"])
    finding = DatasetFinding(keys=9, rows=30, compared=set(keys))
    for key in keys:
        finding.add(KeyDifference(key, Micros(5), row))
    return finding


async def _one(connections: Pool, dataset: str) -> CheckedDataset:
    checked = await findings.jobs_to_check(connections, "w", dataset)
    (found,) = [each for each in checked if isinstance(each, CheckedDataset)]
    return found


async def test_every_dataset_with_lookups_and_every_job_with_a_definition_is_checked_once(
    committed: Pool,
) -> None:
    found = await findings.jobs_to_check(committed, None, None)
    served = {
        view.name
        for view in blueprint("corrections").catalog.datasets
        if view.served_by is not None
    }
    assert {"Users", "Locals", "PerCity", "Abroad"} <= served
    lookups = [each.dataset for each in found if isinstance(each, CheckedDataset)]
    assert sorted(lookups) == sorted(served)
    titles = {each.title for each in found if isinstance(each, CheckedJob)}
    assert {"PerCity.per_city: join", "Homes.home: join", "Final.final: aggregate"} <= titles
    assert any("intervals" in title for title in titles)
    assert len({each.job for each in found}) == len(found) == len(blueprint("corrections").jobs)
    uncompared = [each for each in found if isinstance(each, UncomparedJob)]
    assert {each.reason for each in uncompared if "map" in each.title} == {
        "its expressions have no other definition than the platform's own"
    }
    assert {
        (each.workspace, each.partitions, each.known)
        for each in found
        if not isinstance(each, UncomparedJob)
    } == {("w", 4, frozenset())}


async def test_an_unknown_dataset_is_refused_with_the_valid_names(committed: Pool) -> None:
    for names in (("w", "Nothing"), ("x", None), ("x", "Users")):
        with pytest.raises(ApiError, match=r"valid ones: .*`Users` of `w`") as refused:
            await findings.jobs_to_check(committed, *names)
        assert refused.value.code == "nothing-of-that-name"


async def test_a_difference_is_an_alarm_until_the_same_keys_agree(committed: Pool) -> None:
    alarm, users = IntegrityAlarm(committed, 1.0), await _one(committed, "Users")
    await findings.record(committed, users, differing(KEY, OTHER, KEY), seed=7)
    (failed,) = await findings.failed_checks(committed)
    assert (failed.dataset, failed.compared, failed.seed) == ("Users", 9, 7)
    assert "key ['a'] as of 5: `city`" in failed.detail
    assert "rome" not in failed.detail, "the database has keys and no rows"
    await alarm.check_once()
    assert DIFFERING._value.get() == 1

    again = await _one(committed, "Users")
    assert again.known == {KEY, OTHER}, "its next sample has these keys"
    gone = DatasetFinding(keys=3, details=["partition 1: no slot owns it now"])
    unsettled = DatasetFinding(keys=3, compared={KEY})
    for nothing in (gone, unsettled, DatasetFinding(), DatasetFinding(failed=True)):
        await findings.record(committed, again, nothing, seed=8)
        assert [each.seed for each in await findings.failed_checks(committed)] == [7]
    await findings.record(committed, again, DatasetFinding(keys=3, compared={KEY, OTHER}), seed=9)
    assert await findings.failed_checks(committed) == []
    assert (await _one(committed, "Users")).known == frozenset()
    await alarm.check_once()
    assert DIFFERING._value.get() == 0


async def test_an_alarm_keeps_the_keys_that_were_not_compared(committed: Pool) -> None:
    await findings.record(committed, await _one(committed, "Users"), differing(KEY, OTHER), seed=7)
    # The slot of KEY's partition is away, OTHER agrees, and another key differs.
    third = b"\x91\xa1c"
    found = differing(third)
    found.compared.add(OTHER)
    await findings.record(committed, await _one(committed, "Users"), found, seed=8)
    (failed,) = await findings.failed_checks(committed)
    assert "; 1 keys that differed before were not compared" in failed.detail
    users = await _one(committed, "Users")
    assert users.known == {KEY, third}
    agrees = DatasetFinding(keys=1, compared={third})
    await findings.record(committed, users, agrees, seed=9)
    assert len(await findings.failed_checks(committed)) == 1, "KEY was never compared"


async def test_an_alarm_says_how_many_keys_are_beyond_its_limit(committed: Pool) -> None:
    users = await _one(committed, "Users")
    await findings.record(committed, users, differing(b"\x91\xa1z"), seed=7)
    many = [b"\x92\xa1a" + bytes([number]) for number in range(KEPT_DIFFERENCES + 2)]
    users = await _one(committed, "Users")
    await findings.record(committed, users, differing(*many), seed=8)
    (failed,) = await findings.failed_checks(committed)
    assert "; 3 more keys differ" in failed.detail
    known = (await _one(committed, "Users")).known
    assert (len(known), b"\x91\xa1z" in known) == (KEPT_DIFFERENCES, True)


async def test_the_alarm_of_a_deleted_job_is_gone_and_none_is_stored_for_it(
    committed: Pool,
) -> None:
    users = await _one(committed, "Users")
    await findings.record(committed, users, differing(KEY), seed=7)
    async with committed.connection() as connection:
        await connection.execute("DELETE FROM job WHERE id = %s", (users.job,))
    assert await findings.failed_checks(committed) == []
    await findings.record(committed, users, differing(KEY), seed=7)
    assert await findings.failed_checks(committed) == []


async def test_an_alarm_of_groups_whose_rows_are_erased_ends(committed: Pool) -> None:
    """Their rows leave the history of what the job reads, so they cannot be compared again."""
    (join,) = [
        each
        for each in await findings.jobs_to_check(committed, None, None)
        if isinstance(each, CheckedJob) and each.title == "PerCity.per_city: join"
    ]
    await findings.record(committed, join, differing(KEY, OTHER), seed=7)
    by = ("uid",)
    erased = key_bytes(pl.DataFrame({"uid": ["a"]}), by)
    assert erased == [KEY]
    await erasures.add(committed, WorkspaceId("w"), DatasetName("Users"), by, erased)
    (again,) = [
        each
        for each in await findings.jobs_to_check(committed, None, None)
        if each.job == join.job and isinstance(each, CheckedJob)
    ]
    assert again.known == {OTHER}, "Users is an input of the join"
    await findings.record(committed, again, DatasetFinding(keys=3, compared={OTHER}), seed=9)
    assert await findings.failed_checks(committed) == []
