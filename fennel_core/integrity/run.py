"""Check datasets one after the other, and report and record what is found.

The DAG `integrity` and `fennel-core integrity` run the same function. A dataset that cannot be
checked stops no other one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from fennel_core.connections import postgres
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.history.errors import HistoryError
from fennel_core.integrity import findings
from fennel_core.integrity.checks import (
    CheckedDataset,
    DatasetCheck,
    DatasetFinding,
    IntegrityVerdict,
)
from fennel_core.integrity.errors import IntegrityDiffers, IntegrityNotChecked
from fennel_core.integrity.output_checks import CheckedJob, OutputCheck, UncomparedJob
from fennel_core.integrity.topic_history import HistoryRows
from fennel_core.settings.model import Settings
from fennel_core.snapshots.rebuild import SocketSlotClient
from fennel_core.vocab.ids import Micros, WorkspaceId

DAY_S: Final = 86_400
REMEDY: Final = (
    "keep this report, which has the keys. Rebuild the jobs that it names with `fennel-core "
    "recover --job ID` or the DAG `recovery`, then run `fennel-core integrity` for the datasets: "
    "it checks the same keys again, and the alarm ends when they agree"
)
Checked = tuple[findings.CheckableJob, DatasetFinding]


def seed_of_today() -> int:
    """Return the seed of a check that names none: another one every day."""
    return int(time.time()) // DAY_S


def check_integrity(
    settings: Settings,
    report: Callable[[str], None],
    *,
    workspace: str | None = None,
    dataset: str | None = None,
    keys: int | None = None,
    seed: int | None = None,
    max_bytes: int | None = None,
) -> None:
    """Check the selected datasets, or all. `report` receives lines of text.

    Raises IntegrityDiffers with the datasets that differ, IntegrityNotChecked if some could not be
    checked and all others agree, and ApiError for an unknown name.
    """
    asyncio.run(
        _check(
            settings,
            report,
            (workspace, dataset),
            keys or settings.integrity_keys,
            seed_of_today() if seed is None else seed,
            max_bytes or settings.integrity_bytes,
        )
    )


def workspaces_of(settings: Settings, workspace: str | None) -> set[WorkspaceId]:
    """Return the workspaces with datasets that a check of `workspace`, or of all, reads.

    Raises ApiError for an unknown name.
    """

    async def read() -> set[WorkspaceId]:
        dsn = settings.postgres_dsn.get_secret_value()
        async with postgres.pool(dsn, name="integrity", size=1) as pool:
            found = await findings.jobs_to_check(pool, workspace, None)
        return {each.workspace for each in found}

    return asyncio.run(read())


async def _check(
    settings: Settings,
    report: Callable[[str], None],
    selected: tuple[str | None, str | None],
    keys: int,
    seed: int,
    max_bytes: int,
) -> None:
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name="integrity", size=1) as pool:
        jobs = await findings.jobs_to_check(pool, *selected)
        compared = sum(not isinstance(each, UncomparedJob) for each in jobs)
        report(f"jobs to check: {compared} of {len(jobs)}, {keys} keys of each, seed {seed}")
        topics = HistoryRows(settings, pool, asyncio.get_running_loop(), max_bytes)
        now = Micros(int(time.time() * 1_000_000))
        slots = SocketSlotClient(settings)
        lookups = DatasetCheck(slots, topics, keys=keys, seed=seed, now=now)
        outputs = OutputCheck(slots, topics, keys=keys, seed=seed)
        found: list[Checked] = []
        for each in jobs:
            finding = await run_one(lookups, outputs, each)
            report(f"{each}: {finding}")
            for difference in finding.differences:
                report(f"{each}: {difference.with_rows}")
            if not isinstance(each, UncomparedJob):
                await findings.record(pool, each, finding, seed)
            found.append((each, finding))
    raise_on_differences(found, seed)


async def run_one(
    lookups: DatasetCheck, outputs: OutputCheck, checked: findings.CheckableJob
) -> DatasetFinding:
    """Check one job; a system that is away is a finding of this job alone."""
    try:
        match checked:
            case CheckedDataset():
                return await lookups.run(checked)
            case CheckedJob():
                return await outputs.run(checked)
            case UncomparedJob(reason=reason):
                return DatasetFinding(details=[reason])
            case unreachable:
                assert_never(unreachable)
    except (SystemUnavailable, HistoryError) as failed:
        return DatasetFinding(failed=True, details=[str(failed)])


def raise_on_differences(found: Sequence[Checked], seed: int) -> None:
    """Raise IntegrityDiffers or IntegrityNotChecked if any finding is one of these."""
    for verdict, error in (
        (IntegrityVerdict.DIFFERS, IntegrityDiffers),
        (IntegrityVerdict.UNKNOWN, IntegrityNotChecked),
    ):
        if listed := [
            f"{each}: {finding}" for each, finding in found if finding.verdict is verdict
        ]:
            raise error(f"{len(listed)} of {len(found)} jobs, seed {seed}: {'; '.join(listed)}")
