"""Laws: a reader sees exactly the rows of the topic up to the end that it planned with, but for
those of keys that were erased before, and perhaps for those that have expired; a replay sees every
row that it may need. A commit that needs rows which expired before is told how many are gone, and
the others stay. Whatever writers, compactions, removals of erased and of expired rows and deletions
do meanwhile, and wherever they die. In the end no row of an erased key is left and no
expired one, and it is known how many there were.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.history import parquet
from fennel_core.history.compaction import CompactionRule, Merge
from fennel_core.history.compaction_run import Compaction
from tests.support.history_world import TOPIC
from tests.support.maintained_history import (
    AT,
    GRACE,
    KEPT,
    MINUTE,
    PARTITION,
    World,
    settled,
)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.none() | st.integers(0, 3), min_size=2, max_size=12),
    seed=st.integers(0, 2**32),
    deaths=st.lists(st.booleans(), max_size=12),
    erased=st.lists(st.integers(0, 4), max_size=3, unique=True),
    distances=st.lists(st.integers(0, 4), max_size=8),
    ages=st.lists(st.integers(0, 6), max_size=5),
    most_bytes=st.sampled_from([1, 4_000, 2**30]),
    changes=st.integers(0, 5),
)
def test_a_reader_sees_exactly_the_rows_whatever_happens_meanwhile(
    sizes: list[int | None],
    seed: int,
    deaths: list[bool],
    erased: list[int],
    distances: list[int],
    ages: list[int],
    most_bytes: int,
    changes: int,
) -> None:
    async def life() -> None:
        chosen = random.Random(seed)  # noqa: S311  # a seeded schedule
        turns = (chosen.choice([0, 1, 1, 2, 7]) for _ in itertools.count())
        world = World(turns, iter(deaths), most_bytes)
        world.log.records[PARTITION] = []
        await asyncio.gather(
            world.write(sizes),
            world.compact(8),
            world.compact(8),
            world.erase(erased),
            world.advance(distances),
            world.remove(6),
            world.remove(6),
            world.age(ages),
            world.expire(6),
            world.expire(6),
            world.change_needs(changes),
            world.prune(25),
            world.read_often(6),
            world.read_often(6),
        )
        world.turns = iter(())
        world.deaths = iter(())
        await world.compact(2)
        await world.read()
        await settled(world)
        await all_removed(world)

    asyncio.run(life())


async def all_removed(world: World) -> None:
    """When nothing needs the rows of erased keys any more, they leave, and are counted."""
    end = len(world.log.records[PARTITION])
    await world.advance([end])
    await world.change_needs(world.commits % 2)
    # A run searches one file at least.
    runs = len(await world.files.files(*PARTITION))
    await world.remove(runs)
    first = world.oldest
    world.oldest += 2  # a tenth of the time: files with rows before `first` are due
    await world.expire(runs)
    await settled(world)
    files = await world.files.files(*PARTITION)
    rows = world.rows_below(files[-1].next_offset if files else 0)
    gone = [row for row in rows if row[2] in world.erased]
    expired = sum(file.expired_rows for file in files)
    removed = sum(file.removed_rows for file in files)
    assert sum(file.row_count for file in files) == len(rows) - removed - expired
    old, older = ([row for row in rows if row[3] < end] for end in (world.oldest, first))
    assert removed <= len(gone)
    assert expired <= len(old)
    assert len({*gone, *older}) <= removed + expired <= len({*gone, *old})
    bodies = [world.objects.contents[file.object_key] for file in files]
    times = [parquet.decode_file(body).select(AT).to_series().min() for body in bodies]
    assert all(time is None or int(str(time)) >= first for time in times)
    totals = (await world.files.totals()).get(TOPIC)
    assert totals is None or totals.expired_rows == expired
    upto = {each.searched_to for each in await world.files.searched(TOPIC)}
    assert upto <= {len(world.erased)}, "each file is known to have none"


def test_small_files_become_one_and_only_one_of_two_compactions_makes_it() -> None:
    async def life() -> None:
        world = World(iter(()), iter(()))
        await world.write([1] * 8)
        await asyncio.gather(world.compact(1), world.compact(1))
        (file,) = await world.files.files(*PARTITION)
        assert (file.first_offset, file.next_offset, file.row_count, world.merges) == (0, 8, 8, 1)
        await settled(world)

    asyncio.run(life())


def test_rows_that_a_commit_needs_stay_when_a_run_has_searched_their_files_before_it() -> None:
    async def life() -> None:
        world = World(iter(()), iter(()))
        await world.write([1, 1])
        await world.advance([2])
        world.oldest = 20
        search = world.remove_expired

        async def interrupted(*at: Any) -> Any:
            made = await search(*at)
            await world.change_needs(1)
            return made

        world.remove_expired = interrupted  # type: ignore[method-assign]  # a commit in between
        await world.expire(1)
        await world.read()
        assert (await world.gone(), world.gone_before) == (0, 0)
        world.remove_expired = search  # type: ignore[method-assign]  # as before
        await world.expire(1)
        assert await world.gone() == 0, "the version needs them"
        await world.change_needs(1)
        await world.expire(1)
        assert await world.gone() == 2

    asyncio.run(life())


def test_a_compaction_that_was_suspended_makes_no_row_for_an_object_that_may_be_gone() -> None:
    async def life() -> None:
        world = World(iter(()), iter(()))
        await world.write([1, 1, 1])

        class Suspended(World):
            async def merge(self, merges: Sequence[Merge]) -> Any:
                made = await World.merge(world, merges)
                for _ in range(2):
                    await world.prune(1)
                    world.now += GRACE + MINUTE
                await world.prune(1)
                return made

        slow = Suspended(iter(()), iter(()))
        done = await Compaction(
            world.files, slow, CompactionRule(100_000, 1000), {}, GRACE, KEPT
        ).run()
        assert (done.superseded, done.made) == (1, 0)
        assert len(await world.files.files(*PARTITION)) == 3
        await world.read()

    asyncio.run(life())
