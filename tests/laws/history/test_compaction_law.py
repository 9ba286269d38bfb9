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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.garbage import DeletionLimit, MemoryGarbageMarks
from fennel_core.connections.object_store import MemoryObjectStore
from fennel_core.history import parquet
from fennel_core.history.compaction import CompactionRule, Merge
from fennel_core.history.compaction_run import Compaction
from fennel_core.history.erasing import TopicErasures, remove_erased
from fennel_core.history.erasing_run import ErasedRowsRemoval
from fennel_core.history.expired_topics import Expiries
from fennel_core.history.expiring import TopicExpiry, remove_expired
from fennel_core.history.expiring_run import ExpiredRowsRemoval
from fennel_core.history.memory import MemoryHistoryFiles
from fennel_core.history.merging import MergeRefused, merge_files
from fennel_core.history.pruning import prune_history
from fennel_core.history.removals import Replacer
from fennel_core.history.roll import RollPlan, roll
from fennel_core.history.store import HistoryFile, Readers
from fennel_core.vocab.ids import (
    DatasetName,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import decode
from tests.support.history_world import LAYOUT, TOPIC, Died, MemoryLog

PARTITION = (TOPIC, PartitionIndex(0))
WORKSPACE = WorkspaceId("w")
GRACE = timedelta(hours=1)
KEPT = timedelta(hours=3)
MINUTE = timedelta(minutes=1)
START = Offset(0)
ALL = DeletionLimit(0, 100)
AT = pl.col("at").to_physical()


@dataclass
class World:
    """A topic, its history and its objects.

    `turns`: how often a step waits for the others; none: never. `deaths`: whether a compaction dies
    at a step.
    """

    turns: Iterator[int]
    deaths: Iterator[bool]
    most_bytes: int = 2**30
    """What a run that removes rows searches."""
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    log: MemoryLog = field(default_factory=MemoryLog)
    erased: list[int] = field(default_factory=list)
    oldest: int = 0
    """The event time before which rows have expired."""
    commits: int = 0
    gone_before: int | None = None
    """How many expired rows had left when a commit came that needs all rows; None: none needs them.
    """
    bound: Offset = START
    """No replay reads records below it again, and Kafka has none."""

    def __post_init__(self) -> None:
        self.files = Interleaved(self)
        self.files.readers[WORKSPACE] = frozenset()
        self.objects = MemoryObjectStore(lambda: self.now)
        self.marks = MemoryGarbageMarks(lambda: self.now)
        self.merges = 0

    async def step(self) -> None:
        """Let others go first, and let time pass."""
        for _ in range(next(self.turns, 0)):
            self.now += MINUTE
            await asyncio.sleep(0)

    async def alive(self) -> Sequence[TopicName]:
        return [TOPIC]

    async def with_history(self) -> dict[TopicName, Any]:
        return {TOPIC: LAYOUT}

    async def write(self, sizes: Sequence[int | None]) -> None:
        """Append records and roll each into a file of its own."""
        for size in sizes:
            self.log.append(0, [size])
            await self.step()
            end = Offset(len(self.log.records[PARTITION]))
            ends = await self.files.ends([TOPIC])
            plan = RollPlan(ends, {PARTITION: end}, {TOPIC: LAYOUT}, 1)
            first = ends.get(PARTITION, Offset(0))
            bodies: dict[str, bytes] = {}
            rolled = list(roll(self.log.read(PARTITION, first, end), plan, bodies.__setitem__))
            for key, body in bodies.items():
                await self.objects.put(key, body)
            for file in rolled:
                assert await self.files.add(file), "one writer meets no other"

    async def compact(self, rounds: int) -> None:
        """Run a compaction several times; one that dies is started again."""
        for _ in range(rounds):
            await self.step()
            try:
                await Compaction(
                    self.files, self, CompactionRule(100_000, 1000), {}, GRACE, KEPT
                ).run()
            except Died:
                continue

    async def merge(self, merges: Sequence[Merge]) -> Sequence[HistoryFile | MergeRefused]:
        made = []
        for merge in merges:
            await self.step()
            found = {
                file.object_key: await self.objects.get(file.object_key) for file in merge.files
            }
            bodies: dict[str, bytes] = {}
            made.append(merge_files(merge, found.get, bodies.__setitem__))
            for key, body in bodies.items():
                await self.objects.put(key, body)
            self.survive()
            await self.step()
        return made

    async def erase(self, keys: Sequence[int]) -> None:
        for key in keys:
            await self.step()
            self.erased.append(key)

    async def advance(self, distances: Sequence[int]) -> None:
        """Let snapshots and Kafka's retention go on."""
        for distance in distances:
            await self.step()
            self.bound = Offset(min(self.bound + distance, len(self.log.records[PARTITION])))

    async def remove(self, rounds: int) -> None:
        """Remove the rows of erased keys several times; a run that dies is started again."""
        for _ in range(rounds):
            await self.step()
            if not self.erased:
                continue
            erasures = TopicErasures(
                DatasetName("Users"), (erased_keys(self.erased),), len(self.erased)
            )
            try:
                await ErasedRowsRemoval(
                    *(Replacer(self.files, KEPT), self, {TOPIC: erasures}, self.bounds(), GRACE),
                    most_bytes=self.most_bytes,
                ).run()
            except Died:
                continue

    def bounds(self) -> dict[TopicPartition, Offset]:
        return {PARTITION: self.bound}

    async def age(self, times: Sequence[int]) -> None:
        """Let time pass, by so many rows."""
        for each in times:
            await self.step()
            self.oldest += each

    async def expire(self, rounds: int) -> None:
        """Remove expired rows several times; a run that dies is started again."""
        for _ in range(rounds):
            await self.step()
            try:
                await ExpiredRowsRemoval(
                    *(Replacer(self.files, KEPT), self, self.expiries, self.bounds(), GRACE),
                    most_bytes=self.most_bytes,
                ).run()
            except Died:
                continue

    async def expiries(self) -> Expiries:
        await self.step()
        needed = self.gone_before is not None
        expiry = TopicExpiry("at", Micros(self.oldest), 20)
        readers = Readers(WORKSPACE, self.files.readers[WORKSPACE])
        return Expiries({} if needed else {TOPIC: expiry}, {WORKSPACE: readers})

    async def change_needs(self, rounds: int) -> None:
        """Commit a version that needs every row, then one that does not, and so on."""
        for _ in range(rounds):
            for _ in range(3):
                await self.step()
            self.commits += 1
            self.files.readers[WORKSPACE] = frozenset({f"commit {self.commits}"})
            gone = await self.gone()
            if self.gone_before is None:
                self.gone_before = gone
            else:
                assert gone == self.gone_before, "the version had all rows that it was told of"
                self.gone_before = None

    async def gone(self) -> int:
        """Return how many expired rows have left."""
        totals = (await self.files.totals()).get(TOPIC)
        return 0 if totals is None else totals.expired_rows

    async def remove_expired(
        self, files: Sequence[HistoryFile], expiries: Mapping[TopicName, TopicExpiry]
    ) -> Sequence[HistoryFile | MergeRefused]:
        return await self.rewritten(files, partial(remove_expired, expiry=expiries[TOPIC]))

    async def remove_erased(
        self, files: Sequence[HistoryFile], erasures: Mapping[TopicName, TopicErasures]
    ) -> Sequence[HistoryFile | MergeRefused]:
        return await self.rewritten(files, partial(remove_erased, erasures=erasures[TOPIC]))

    async def rewritten(
        self, files: Sequence[HistoryFile], rewrite: Callable[..., HistoryFile | MergeRefused]
    ) -> Sequence[HistoryFile | MergeRefused]:
        made = []
        for file in files:
            await self.step()
            found = {file.object_key: await self.objects.get(file.object_key)}
            bodies: dict[str, bytes] = {}
            made.append(rewrite(file, get=found.get, put=bodies.__setitem__))
            for key, body in bodies.items():
                await self.objects.put(key, body)
            self.survive()
            await self.step()
        return made

    def survive(self) -> None:
        if next(self.deaths, False):
            raise Died

    async def read_often(self, rounds: int) -> None:
        for _ in range(rounds):
            await self.step()
            await self.read()

    async def prune(self, rounds: int) -> None:
        for _ in range(rounds):
            await self.step()
            await prune_history(self.files, self, self.objects, self.marks, GRACE, ALL)

    async def read(self) -> None:
        """Plan a read and read the files later, within the time that replaced ones are kept."""
        files = await self.files.files(*PARTITION)
        hidden, needed, oldest = set(self.erased), self.bound, self.oldest
        latest = self.now + KEPT
        assert self.gone_before in (None, await self.gone()), "what a version needs stays"
        found = []
        for file in files:
            await self.step()
            if self.now >= latest:
                return  # a read that takes longer fails or not; it is not promised
            body = await self.objects.get(file.object_key)
            assert body is not None, "the object of a planned file is there"
            frame = parquet.decode_file(body)
            assert frame.height == file.row_count
            found += frame.select(parquet.OFFSET, "__pos", "k", AT).rows()
            assert not file.expired_rows or file.expired_to <= oldest, "it says what may lack"
        end = files[-1].next_offset if files else 0
        rows = self.rows_below(end)
        assert set(found) <= set(rows), "a row was written"
        seen, expected = (
            sorted(r for r in each if r[2] not in hidden and r[3] >= oldest)
            for each in (found, rows)
        )
        assert seen == expected, "a read"
        since = max((file.expired_to for file in files if file.expired_rows), default=0)
        assert [r for r in rows if r[2] not in hidden and r[3] >= since and r not in found] == []
        replayed, needs = (sorted(r for r in each if r[0] >= needed) for each in (found, rows))
        assert replayed == needs, "a replay"

    def rows_below(self, end: int) -> list[tuple[int, bytes, int, int]]:
        """Return offset, position, key and time of every row that was written."""
        return [
            (record.offset, *row)
            for record in self.log.read(PARTITION, 0, end)
            for row in decode(record.value).select("__pos", "k", AT).rows()
        ]


def erased_keys(keys: Sequence[int]) -> ErasedKeys:
    frame = pl.DataFrame({"k": keys}, schema={"k": pl.Int64})
    return ErasedKeys(("k",), frozenset(key_bytes(frame, ("k",))))


class Interleaved(MemoryHistoryFiles):
    """Rows whose users take turns, and which processes may die before they change."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.now)
        self._world = world

    async def files(self, *at: Any) -> Any:
        await self._world.step()
        return await super().files(*at)

    async def keys(self, topic: TopicName) -> frozenset[str]:
        await self._world.step()
        return await super().keys(topic)

    async def due(self, limit: int) -> list[str]:
        await self._world.step()
        return await super().due(limit)

    async def forget(self, keys: Sequence[str]) -> None:
        await self._world.step()
        await super().forget(keys)

    async def replace(self, *replaced: Any) -> bool:
        await self._world.step()
        self._world.survive()
        done = await super().replace(*replaced)
        self._world.merges += done
        self._world.survive()
        return done


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


async def settled(world: World) -> None:
    """When all is over, only the objects of files are left, and their rows are the topic's."""
    for _ in range(3):
        await world.prune(1)
        world.now += KEPT
    files = await world.files.files(*PARTITION)
    assert set(world.objects.contents) == {file.object_key for file in files}
    await world.read()
    totals = (await world.files.totals()).get(TOPIC)
    assert (0 if totals is None else totals.rows) == sum(file.row_count for file in files)


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
