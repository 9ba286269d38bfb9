"""Laws: versions of a keyed dataset that newer ones have replaced leave, and no read as of a time
that needs none of them changes: whatever rows come later, how late, and with whichever deletions,
and whatever writers, compactions, erasures and commits do, and wherever they die. In the
end no file has more than a tenth of such rows.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.ranged_file import RangedFile
from fennel_core.history import parquet, replaced_versions
from fennel_core.history.asof import content
from fennel_core.history.expired_topics import Expiries
from fennel_core.history.expiring import TopicExpiry
from fennel_core.history.merging import MergeRefused
from fennel_core.history.removals import Replacer
from fennel_core.history.replaced_versions import (
    FileWithReplaced,
    ReplacedRows,
    VersionSurvey,
    remove_replaced,
    survey,
)
from fennel_core.history.replaced_versions_run import ReplacedVersionsRemoval
from fennel_core.history.store import HistoryFile, Readers
from fennel_core.vocab import position
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.vocab.ids import Micros, TopicName
from fennel_core.vocab.position import Hlc
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import META, decode, encode_frame
from tests.support.history_world import TOPIC, Died
from tests.support.maintained_history import (
    GRACE,
    KEPT,
    PARTITION,
    WORKSPACE,
    World,
    erased_keys,
    settled,
)

MS = 1000
SCHEMA = Schema((Field("k", Int()),), (Field("v", Int()),), "at")
EXPIRY = TopicExpiry("at", Micros(0), 20 * MS, ("k",))


@dataclass(frozen=True)
class Version:
    """A version of a key at a time, ms; `late`: it is accepted so much later, ms."""

    key: int
    at: int
    late: int = 0
    deleted: bool = False


def message(number: int, versions: Sequence[Version], now_ms: int) -> bytes:
    """Return the message of versions that are accepted together."""
    late = max((each.late for each in versions), default=0)
    stamp = Hlc((now_ms + late << position.COUNTER_BITS) + number)
    columns: dict[str, tuple[Any, list[Any]]] = {
        "k": (pl.Int64, [each.key for each in versions]),
        "v": (pl.Int64, [None if each.deleted else number for each in versions]),
        "at": (pl.Datetime("us", "UTC"), [each.at * MS for each in versions]),
        "__pos": (pl.Binary, position.stamp(stamp, 1, len(versions)).to_pylist()),
        "__sign": (pl.Int8, [1] * len(versions)),
        "__tombstone": (pl.Boolean, [each.deleted for each in versions]),
    }
    return encode_frame(pl.DataFrame([pl.Series(n, v, t) for n, (t, v) in columns.items()]))


@dataclass
class KeyedWorld(World):
    """A keyed dataset, its history and its objects; a record per list of versions."""

    written: list[Sequence[Version]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log.append = self.append  # type: ignore[method-assign]  # other rows

    def append(self, part: int, sizes: Sequence[int | None]) -> None:
        assert part == 0
        here = self.log.records.setdefault(PARTITION, [])
        for _ in sizes:
            number = len(here)
            versions = self.written[number]
            here.append(message(number, versions, number) if versions else None)

    async def expiries(self) -> Expiries:
        await self.step()
        expiry = TopicExpiry("at", Micros(self.oldest), EXPIRY.kept_us, EXPIRY.keys)
        readers = Readers(WORKSPACE, self.files.readers[WORKSPACE])
        topics = {} if self.gone_before is not None else {TOPIC: expiry}
        return Expiries(topics, {WORKSPACE: readers})

    async def expire(self, rounds: int) -> None:
        for _ in range(rounds):
            await self.step()
            try:
                await ReplacedVersionsRemoval(
                    *(Replacer(self.files, KEPT), self, self.expiries, self.bounds(), GRACE),
                    most_bytes=self.most_bytes,
                ).run()
            except Died:
                continue

    async def survey(self, tasks: Sequence[VersionSurvey]) -> Sequence[ReplacedRows | MergeRefused]:
        found = []
        for task in tasks:
            await self.step()
            found.append(survey(task, self.opened))
            self.survive()
        return found

    def opened(self, file: HistoryFile) -> BytesIO | RangedFile:
        return BytesIO(self.objects.contents[file.object_key])

    async def remove_replaced(
        self, files: Sequence[FileWithReplaced], expiries: Mapping[TopicName, TopicExpiry]
    ) -> Sequence[HistoryFile | MergeRefused]:
        rows = {each.file.object_key: each.rows for each in files}

        def rewrite(file: HistoryFile, **access: Any) -> HistoryFile | MergeRefused:
            item = FileWithReplaced(file, rows[file.object_key])
            return remove_replaced(item, expiries[TOPIC], **access)

        return await self.rewritten([each.file for each in files], rewrite)

    async def read(self) -> None:
        """Plan a read and read the files later; it has the records behind them from the topic."""
        files = await self.files.files(*PARTITION)
        hidden, needed, oldest = list(self.erased), self.bound, self.oldest
        whole = self.frame(0)
        tail = self.frame(files[-1].next_offset if files else 0)
        latest, found = self.now + KEPT, [tail]
        assert self.gone_before in (None, await self.gone()), "what a version needs stays"
        for file in files:
            await self.step()
            if self.now >= latest:
                return
            body = await self.objects.get(file.object_key)
            assert body is not None, "the object of a planned file is there"
            frame = parquet.decode_file(body)
            assert frame.height == file.row_count
            found.append(frame.select(whole.columns))
        rows = pl.concat(found)
        since = max((file.expired_to for file in files if file.expired_rows), default=0)
        assert since <= oldest, "it says what may lack"
        times = {since, oldest, *whole["at"].to_physical()}
        erased = [erased_keys(hidden)] if hidden else []
        for at in sorted(time for time in times if time >= since):
            seen, expected = (
                content(each, SCHEMA, Micros(at), erased).sort("k") for each in (rows, whole)
            )
            assert seen.equals(expected), f"a read as of {at}"
        replayed, needs = (
            each.filter(pl.col(parquet.OFFSET) >= needed).sort("__pos") for each in (rows, whole)
        )
        assert replayed.equals(needs), "a replay"

    def frame(self, first: int) -> pl.DataFrame:
        """Return the rows that were written from an offset on."""
        frames = [decode(message(0, [], 0)).with_columns(pl.lit(0, pl.Int64).alias(parquet.OFFSET))]
        frames += [
            decode(record.value).with_columns(pl.lit(record.offset, pl.Int64).alias(parquet.OFFSET))
            for record in self.log.read(PARTITION, first, len(self.log.records[PARTITION]))
        ]
        return pl.concat(frames).select(*SCHEMA.names, *META, parquet.OFFSET)


VERSIONS = st.builds(
    Version,
    st.integers(0, 2),
    st.integers(0, 12),
    st.sampled_from([0, 0, 0, 5]),
    st.sampled_from([False, False, True]),
)


@settings(deadline=None, max_examples=25)
@given(
    written=st.lists(st.lists(VERSIONS, max_size=5), min_size=2, max_size=12),
    seed=st.integers(0, 2**32),
    deaths=st.lists(st.booleans(), max_size=12),
    erased=st.lists(st.integers(0, 2), max_size=1, unique=True),
    distances=st.lists(st.integers(0, 5), max_size=8),
    ages=st.lists(st.integers(0, 6).map(lambda ms: ms * MS), max_size=5),
    changes=st.integers(0, 5),
)
def test_no_read_of_a_keyed_dataset_changes_whatever_else_happens(
    written: list[list[Version]],
    seed: int,
    deaths: list[bool],
    erased: list[int],
    distances: list[int],
    ages: list[int],
    changes: int,
) -> None:
    async def life() -> None:
        chosen = random.Random(seed)  # noqa: S311  # a seeded schedule
        turns = (chosen.choice([0, 1, 1, 2, 7]) for _ in itertools.count())
        world = KeyedWorld(turns, iter(deaths), written=written)
        world.log.records[PARTITION] = []
        await asyncio.gather(
            world.write([len(each) for each in written]),
            world.compact(8),
            world.erase(erased),
            world.advance(distances),
            world.remove(4),
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
        await world.read()
        await settled(world)
        await all_left(world)

    asyncio.run(life())


async def all_left(world: KeyedWorld) -> None:
    """When no replay needs them any more, replaced versions leave files with a tenth of them."""
    await world.advance([len(world.log.records[PARTITION])])
    await world.change_needs(world.commits % 2)
    first = world.oldest
    world.oldest += 2 * MS
    before = await world.gone()
    await world.expire(1)
    await settled(world)
    files = await world.files.files(*PARTITION)
    left = sum(file.row_count + file.removed_rows for file in files)
    assert left + await world.gone() == world.frame(0).height >= before
    bodies = [world.objects.contents[file.object_key] for file in files]
    rows = pl.concat(
        [parquet.decode_file(body).with_columns(f=pl.lit(n)) for n, body in enumerate(bodies)]
        or [world.frame(0).clear().with_columns(f=pl.lit(0))]
    )
    expired = rows.filter(TopicExpiry("at", Micros(first), 0).expired()).sort("at", "__pos")
    replaced = expired.filter(~expired.select(pl.col("k").is_last_distinct()).to_series())
    for n, file in enumerate(files):
        assert 10 * replaced.filter(pl.col("f") == n).height < max(file.row_count, 1)


async def stored(*records: Sequence[Version]) -> KeyedWorld:
    """Return a world with a file per record, none of which a replay needs."""
    world = KeyedWorld(iter(()), iter(()), written=list(records))
    await world.write([len(each) for each in records])
    await world.advance([len(records)])
    return world


async def left(world: KeyedWorld, oldest_ms: int) -> list[tuple[int, int]]:
    """Return the keys and times, ms, that are left when so old rows have expired."""
    world.oldest = oldest_ms * MS
    await world.expire(1)
    await world.read()
    files = await world.files.files(*PARTITION)
    frames = [parquet.decode_file(world.objects.contents[file.object_key]) for file in files]
    return sorted(pl.concat(frames).select("k", pl.col("at").to_physical() // MS).rows())


async def test_a_version_leaves_when_a_newer_one_has_expired_too() -> None:
    world = await stored([Version(1, 1), Version(2, 1)], [Version(1, 5)], [Version(1, 9)])
    assert await left(world, 5) == [(1, 1), (1, 5), (1, 9), (2, 1)]
    assert await left(world, 9) == [(1, 5), (1, 9), (2, 1)]
    files = await world.files.files(*PARTITION)
    assert [(file.expired_rows, file.expired_to) for file in files] == [(1, 9 * MS), (0, 0), (0, 0)]
    assert {file.expiry_searched_to for file in files} == {9 * MS, 0}, "nor is the last searched"


async def test_a_deletion_stays_because_a_late_row_must_not_revive_its_key() -> None:
    late = [Version(1, 2)]
    world = await stored([Version(1, 1)], [Version(1, 5, deleted=True)], [])
    assert await left(world, 20) == [(1, 5)]
    world.written.append(late)
    await world.write([1])
    await world.read()


async def test_a_version_is_not_compared_with_one_that_a_state_may_not_have_read() -> None:
    world = await stored([Version(1, 1)], [Version(1, 5)])
    world.bound = type(world.bound)(1)
    assert await left(world, 20) == [(1, 1), (1, 5)]


async def test_a_row_that_was_accepted_later_neither_leaves_nor_lets_another_leave() -> None:
    world = await stored([Version(1, 1)], [Version(1, 5, late=30)], [Version(1, 3)])
    assert await left(world, 20) == [(1, 3), (1, 5)]
    world = await stored([Version(1, 1, late=30)], [Version(1, 5)])
    assert await left(world, 20) == [(1, 1), (1, 5)]
    world = await stored([Version(1, 1)], [Version(1, 5, late=30)], [Version(1, 3)])
    await world.compact(1)
    assert len(await world.files.files(*PARTITION)) == 1
    assert await left(world, 20) == [(1, 3), (1, 5)], "also of one file"


async def test_new_files_wait_for_the_next_search_of_their_partition() -> None:
    world = await stored([Version(1, 1)], [Version(1, 3)], [Version(1, 5)])
    world.bound = type(world.bound)(2)
    assert await left(world, 20) == [(1, 3), (1, 5)]
    world.bound = type(world.bound)(3)
    assert await left(world, 21) == [(1, 3), (1, 5)], "a tenth of the time is two"
    assert await left(world, 22) == [(1, 5)]


async def test_versions_that_are_retracted_stay() -> None:
    world = await stored([Version(1, 1)], [Version(1, 5)])
    (first, second) = await world.files.files(*PARTITION)
    frame = parquet.decode_file(world.objects.contents[second.object_key])
    body = parquet.encode_file(frame.with_columns(pl.lit(-1, pl.Int8).alias("__sign")))
    task = VersionSurvey((first, second), replace(EXPIRY, oldest=Micros(20 * MS)), 0, 128)
    bodies = {**world.objects.contents, second.object_key: body}
    found = survey(task, lambda file: BytesIO(bodies[file.object_key]))
    assert isinstance(found, MergeRefused)
    assert "has retractions" in found.reason


async def test_a_file_that_loses_less_than_a_tenth_stays() -> None:
    others = [Version(key, 1) for key in range(10, 20)]
    world = await stored([Version(1, 1), *others], [Version(1, 5)])
    assert len(await left(world, 20)) == 12
    world = await stored([Version(1, 1), *others[1:]], [Version(1, 5)])
    assert len(await left(world, 20)) == 10


async def test_ranges_of_key_groups_find_together_what_one_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaced_versions, "SURVEYED_ROWS", 5)
    monkeypatch.setattr(replaced_versions, "SETTLED_ROWS", 3)
    every = [[Version(key, at) for key in range(40)] for at in (3, 1, 2)]
    world = await stored(*every)
    assert await left(world, 20) == [(key, 3) for key in range(40)]


async def test_needs_that_change_after_the_search_keep_the_rows() -> None:
    world = await stored([Version(1, 1)], [Version(1, 5)])
    search = world.survey

    async def interrupted(tasks: Sequence[VersionSurvey]) -> Any:
        found = await search(tasks)
        await world.change_needs(2)
        return found

    world.survey = interrupted  # type: ignore[method-assign]  # commits in between
    assert len(await left(world, 20)) == 2
    world.survey = search  # type: ignore[method-assign]  # as before
    assert await left(world, 20) == [(1, 5)]


async def test_a_partition_with_an_object_that_is_missing_stays() -> None:
    world = await stored([Version(1, 1)], [Version(1, 5)])
    _, second = await world.files.files(*PARTITION)

    class Missing(RangedFile):
        def fetch(self, first: int, size: int) -> bytes:
            raise FileNotFoundError(first, size)

    def opened(file: HistoryFile) -> BytesIO | RangedFile:
        return Missing(file.size_bytes) if file == second else whole(file)

    whole = world.opened
    world.opened = opened  # type: ignore[method-assign]  # one is lost
    assert len(await left(world, 20)) == 2
    world.opened = whole  # type: ignore[method-assign]  # as before
    assert await left(world, 20) == [(1, 5)]
