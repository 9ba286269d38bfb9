"""A topic, its history and its objects, with everything that maintains them, in memory.

All that runs takes turns at each step, and may die there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import polars as pl

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
