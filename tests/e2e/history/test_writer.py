"""The history writer over real Kafka, Spark, S3 and Postgres, killed in the middle of batches, and
the files that readers then see.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.history.world import PARTITIONS, World, writer
from tests.support.polling import eventually

pytestmark = [pytest.mark.platform, pytest.mark.long, pytest.mark.timeout(1800)]
ROWS = 22_000


async def test_a_writer_killed_during_a_batch_writes_each_record_once(
    world: World,
) -> None:
    await asyncio.to_thread(world.write, ROWS)
    for _ in range(2):
        async with writer(world) as process:
            await mid_batch(world, process)
            process.kill()
            await process.wait()
    left_over = await strays(world)
    assert left_over, "the writer was killed between an upload and its row"
    await asyncio.to_thread(world.write, 1_000)
    async with writer(world):
        told = await caught_up(world)
    for name in world.rows:
        for part in range(PARTITIONS):
            await same(world, name, part)
    totals = await world.files.totals()
    counts = {t: (of["files"], of["rows"], of["lag_records"], of["late"]) for t, of in told.items()}
    assert counts == {t: (held.files, held.rows, 0, False) for t, held in totals.items()}
    assert sum(held.rows for held in totals.values()) > ROWS


async def same(world: World, name: str, part: int) -> None:
    """Check that history holds the topic's records, each once, in contiguous files."""
    files, held = await world.history(name, part)
    assert [file.first_offset for file in files] == [0, *(file.next_offset for file in files[:-1])]
    written = await asyncio.to_thread(world.read, name, part)
    assert [offset for offset, _ in held] == [offset for offset, _ in written]
    assert all(file.min_stamp for file in files if file.row_count), "ingest has stamped its rows"
    assert files[-1].next_offset > written[-1][0]
    order = ["__pos", "__sign"]
    for (offset, mine), (_, theirs) in zip(held, written, strict=True):
        assert mine.sort(order).equals(theirs.sort(order)), f"{name}[{part}]@{offset}"


async def mid_batch(world: World, process: asyncio.subprocess.Process) -> None:
    """Wait until several objects of a batch are uploaded whose rows are not yet written, so that
    the end of the batch is far away.
    """
    before = len(await strays(world))

    async def several_added() -> bool:
        assert process.returncode is None, "the writer still runs"
        return len(await strays(world)) >= before + 2

    await eventually(several_added, within_s=240, interval_s=0.05)


async def strays(world: World) -> set[str]:
    objects = await asyncio.to_thread(world.objects)
    named = [await world.files.keys(world.topic(name)) for name in world.rows]
    return objects - frozenset().union(*named)


async def caught_up(world: World) -> dict[str, dict[str, Any]]:
    """Wait until the writer reports no lag; return that report."""

    async def without_lag() -> dict[str, dict[str, Any]] | None:
        report = await asyncio.to_thread(world.told)
        return None if any(topic["lag_records"] for topic in report.values()) else report

    report: dict[str, dict[str, Any]] = await eventually(without_lag, within_s=240, interval_s=0.2)
    return report
