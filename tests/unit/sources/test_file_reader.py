"""What a reader of files does about order, overwritten files, small files and time."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

import pytest

from fennel_core.connections.external_s3 import (
    ExternalBucketUnusable,
    FileChanged,
    FileRefused,
    ListedFile,
)
from fennel_core.graph.s3_paths import FilePath, PathWindow, file_path
from fennel_core.ingest.store import boot_s
from fennel_core.sources import file_reader
from fennel_core.sources import files as files_module
from fennel_core.sources.errors import SourceRewound, TooManyFiles
from fennel_core.sources.file_reader import FileReader, FileStore
from fennel_core.sources.file_rows import FilePiece
from fennel_core.sources.files import decode_cursor, plan
from fennel_core.sources.positions import restarted
from fennel_core.vocab.dead_letters import origin_of
from fennel_core.vocab.ids import Micros
from tests.support.ingest_world import catalog
from tests.support.source_world import POSITIONS, RAW, SourceWorld, partition, stream_source, users

ENDLESS_S = 1e9


@dataclass
class Bucket:
    """Files by key: what is listed of each, and its rows in pieces; FileChanged in between."""

    files: dict[str, tuple[ListedFile, list[int | Exception]]] = field(default_factory=dict)
    opened: list[tuple[str, int]] = field(default_factory=list)
    rows: int = 0

    def put(self, key: str, *pieces: int | Exception, etag: str = "1", at: int = 1) -> None:
        self.files[key] = ListedFile(key, etag, 1, Micros(at)), list(pieces)

    def store(self) -> FileStore:
        def pieces(file: ListedFile, first: int) -> Iterator[FilePiece]:
            self.opened.append((file.key, first))
            at = 0
            for count in self.files[file.key][1]:
                if isinstance(count, Exception):
                    raise count
                at += count
                if at > first:
                    self.rows += count
                    yield FilePiece((users(self.rows - count, count),), at, 1)

        return FileStore("S3 file `b`", lambda: [f for f, _ in self.files.values()], pieces)


@pytest.fixture
async def sources() -> AsyncIterator[SourceWorld]:
    made = SourceWorld()
    made.world.commit(main=catalog(stream_source()))
    yield made
    await made.world.close()


def reader(
    sources: SourceWorld,
    bucket: Bucket,
    path: FilePath | None = None,
    *,
    presorted: bool = False,
    rewinds: int = 0,
) -> FileReader:
    made, store = path or file_path("", ""), bucket.store()
    writer = sources.writer(rewinds=rewinds)
    # Each look at the clock takes a second, so a round of no time has one piece.
    clock = itertools.count().__next__
    return FileReader(writer, partition(), made, store, presorted=presorted, clock=clock)


def listed(*keys: str) -> list[ListedFile]:
    return [ListedFile(key, "1", 1, Micros(len(keys) - n)) for n, key in enumerate(keys)]


@pytest.mark.parametrize(
    ("path", "presorted", "order"),
    [
        (file_path("", ""), False, ["d=3/c", "d=2/a", "d=1/b"]),
        (file_path("", ""), True, ["d=1/b", "d=2/a", "d=3/c"]),
        (file_path("", "d=%d/*"), False, ["d=1/b", "d=2/a", "d=3/c"]),
    ],
)
def test_the_order_of_files(path: FilePath, presorted: bool, order: list[str]) -> None:
    found = plan(listed("d=1/b", "d=2/a", "d=3/c"), path, {}, None, presorted=presorted, rewinds=0)
    assert [file.key for file in found.files] == order


async def test_small_files_share_a_transaction(sources: SourceWorld) -> None:
    bucket = Bucket()
    for number in range(50):
        bucket.put(f"f{number:02}", 2)
    assert await reader(sources, bucket).round(ENDLESS_S) == 0
    assert len(sources.world.messages(RAW)) == 1
    assert len(sources.read()) == 100
    # A note of each, and one position.
    assert len(sources.world.messages(POSITIONS)) == 51


async def test_a_file_that_appears_with_an_earlier_name_and_time_is_read(
    sources: SourceWorld,
) -> None:
    bucket = Bucket()
    bucket.put("m", 2, at=100)
    own = reader(sources, bucket)
    await own.round(ENDLESS_S)
    bucket.put("a", 3, at=1)
    await own.round(ENDLESS_S)
    await reader(sources, bucket).round(ENDLESS_S)
    assert bucket.opened == [("m", 0), ("a", 0)]
    assert len(sources.read()) == 5


async def test_a_killed_reader_is_continued_in_the_middle_of_a_file(sources: SourceWorld) -> None:
    bucket = Bucket()
    bucket.put("a", 2, 2, 2)
    assert await reader(sources, bucket).round(0) == 1
    assert await reader(sources, bucket).round(ENDLESS_S) == 0
    assert bucket.opened == [("a", 0), ("a", 2)]
    assert len(sources.read()) == 6


async def test_an_open_file_is_read_on_in_the_next_round(sources: SourceWorld) -> None:
    bucket = Bucket()
    bucket.put("a", 2, 2, 2)
    own = reader(sources, bucket)
    while await own.round(0):
        pass
    assert bucket.opened == [("a", 0)]
    assert len(sources.read()) == 6


async def letters(sources: SourceWorld) -> list[str]:
    return [
        f"{origin_of(r.headers).source}: {origin_of(r.headers).reason}"
        for _, r in sources.world.messages("w.dead.1")
    ]


async def test_an_overwritten_file_is_another_file(sources: SourceWorld) -> None:
    bucket = Bucket()
    bucket.put("a", 2)
    own = reader(sources, bucket)
    await own.round(ENDLESS_S)
    bucket.put("a", 3, etag="2")
    await own.round(ENDLESS_S)
    await own.round(ENDLESS_S)
    assert len(sources.read()) == 5
    assert await letters(sources) == []


@pytest.mark.parametrize("kills", [False, True])
async def test_a_file_that_changes_while_it_is_read_is_named_and_its_new_content_read(
    sources: SourceWorld, kills: bool
) -> None:
    bucket = Bucket()
    bucket.put("a", 2, FileChanged("the file was overwritten while it was read"))
    own = reader(sources, bucket)
    if kills:
        await own.round(0)
        own = reader(sources, bucket)
    else:
        await own.round(ENDLESS_S)
    bucket.put("a", 4, etag="2")
    bucket.put("b", 1)
    await own.round(ENDLESS_S)
    assert len(sources.read()) == 7
    (letter,) = await letters(sources)
    assert letter.startswith("S3 file `b/a` at 2: the file was overwritten")
    assert letter.endswith("after 2 of its rows were read")


async def test_the_first_read_ends_with_the_newest_file_of_the_first_listing(
    sources: SourceWorld,
) -> None:
    bucket = Bucket()
    bucket.put("a", 2, at=5)
    bucket.put("b", 2, at=3)
    own = reader(sources, bucket)
    await own.round(ENDLESS_S)
    position = await sources.writer().position()
    assert position is not None
    cursor = decode_cursor(position.cursor)
    assert cursor is not None
    assert cursor.first_until_us == 5


async def test_more_files_than_can_be_remembered_are_refused(
    sources: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reader, "FILES", 3)
    bucket = Bucket()
    for number in range(4):
        bucket.put(f"f{number}", 1)
    with pytest.raises(TooManyFiles, match="more than 3 files"):
        await reader(sources, bucket).round(ENDLESS_S)


def test_what_is_remembered_is_the_content_and_not_the_name() -> None:
    (file,) = listed("a")
    notes = {files_module.note_name("a"): files_module.note_of(file, 0)}
    path = file_path("", "")
    assert plan([file], path, notes, None, presorted=False, rewinds=0).files == ()
    for changed in (replace(file, etag="2"), replace(file, size_bytes=2), replace(file, key="b")):
        assert plan([changed], path, notes, None, presorted=False, rewinds=0).files == (changed,)
    moved_only = replace(file, modified_us=Micros(99))
    assert plan([moved_only], path, notes, None, presorted=False, rewinds=0).files == ()


async def test_rounds_of_processes_that_take_turns_go_on_where_the_other_has_ended(
    sources: SourceWorld,
) -> None:
    bucket = Bucket()
    bucket.put("a", *[2] * 9)
    one, other = reader(sources, bucket), reader(sources, bucket)
    for own in (one, other, one, one, other, one):
        assert await own.round(0) == 1
    assert bucket.opened == [("a", row) for row in (0, 2, 4, 8, 10)]
    while await one.round(0):
        pass
    assert sorted(row["age"] for row in sources.read()) == list(range(18))


@pytest.mark.parametrize(("listing_s", "files"), [(100, 100), (1, 20)])
async def test_a_long_listing_is_followed_by_as_much_reading(
    sources: SourceWorld, listing_s: int, files: int
) -> None:
    bucket = Bucket()
    for number in range(200):
        bucket.put(f"f{number:03}", 1)
    now = 0.0
    store = bucket.store()

    def listing() -> list[ListedFile]:
        nonlocal now
        now += listing_s
        return store.files()

    def pieces(file: ListedFile, first: int) -> Iterator[FilePiece]:
        nonlocal now
        now += 1
        return store.pieces(file, first)

    slow = replace(store, files=listing, pieces=pieces)
    own = FileReader(sources.writer(), partition(), file_path("", ""), slow, clock=lambda: now)
    # The end of the last one is not known yet.
    assert await own.round(20) == 200 - files + 1


async def test_a_long_way_into_a_file_is_followed_by_as_much_reading(sources: SourceWorld) -> None:
    bucket = Bucket()
    bucket.put("a", *[1] * 200)
    now = 0.0
    store = bucket.store()

    def pieces(file: ListedFile, first: int) -> Iterator[FilePiece]:
        nonlocal now
        now += first  # what was read is passed again
        for piece in store.pieces(file, first):
            now += 1
            yield piece

    slow = replace(store, pieces=pieces)
    ends = []
    for _ in range(4):  # each in another process
        path = file_path("", "")
        own = FileReader(sources.writer(), partition(), path, slow, clock=lambda: now)
        await own.round(20)
        ends.append(len(sources.read()))
    # The first row behind those that were passed takes a second, too.
    assert ends == [20, 42, 86, 174]


REFUSED = FileRefused("InvalidObjectState")


async def test_a_file_that_is_refused_is_left_and_tried_again_after_the_others(
    sources: SourceWorld,
) -> None:
    bucket = Bucket()
    bucket.put("a", REFUSED, at=1)
    bucket.put("b", REFUSED, at=2)
    bucket.put("c", 2, at=3)
    own = reader(sources, bucket)
    assert await own.round(ENDLESS_S) == 2
    assert own.unread == {"a": "InvalidObjectState", "b": "InvalidObjectState"}
    assert len(sources.read()) == 2
    bucket.put("d", 2, at=4)
    bucket.put("a", 3, at=1)
    bucket.opened.clear()
    # One file per round: those that were refused keep their place at the end.
    assert await own.round(1.5) == 2
    assert await own.round(1.5) == 1
    assert await own.round(1.5) == 1
    assert [key for key, _ in bucket.opened] == ["d", "a", "b"]
    assert own.unread == {"b": "InvalidObjectState"}
    assert len(sources.read()) == 7
    assert await letters(sources) == []


async def test_a_file_that_is_refused_in_its_middle_is_not_left(sources: SourceWorld) -> None:
    bucket = Bucket()
    bucket.put("a", 2, REFUSED)
    bucket.put("b", 2, at=9)
    own = reader(sources, bucket)
    assert await own.round(0) == 2
    for _ in range(2):
        with pytest.raises(ExternalBucketUnusable, match="after 2 of its rows"):
            await own.round(ENDLESS_S)
    bucket.put("a", 2, 2)
    assert await own.round(ENDLESS_S) == 0
    assert len(sources.read()) == 6
    assert await letters(sources) == []


async def test_a_file_that_always_differs_from_its_listing_is_left(sources: SourceWorld) -> None:
    bucket = Bucket()
    bucket.put("a", FileChanged("the file was overwritten while it was read"))
    own = reader(sources, bucket)
    for _ in range(2):
        assert await own.round(ENDLESS_S) == 1
        assert list(own.unread) == ["a"]
    bucket.put("a", 2, etag="2")
    assert await own.round(ENDLESS_S) == 0
    assert len(sources.read()) == 2


async def restart(sources: SourceWorld) -> None:
    """Rewind to the beginning, as `rewind.py` does."""
    session = await sources.open(partition())
    assert session.position is not None
    await session.commit((), restarted(session.position), boot_s() + 60)
    session.close()


@pytest.mark.parametrize("middle", [False, True])
async def test_a_rewound_source_reads_all_files_again_once(
    sources: SourceWorld, middle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reader, "FILES", 3)
    bucket = Bucket()
    bucket.put("a", 2, 2, at=1)
    bucket.put("b", 3, at=2)
    first = reader(sources, bucket)
    await first.round(0 if middle else ENDLESS_S)
    read = 2 if middle else 7
    assert len(sources.read()) == read
    await restart(sources)
    with pytest.raises(SourceRewound):
        await first.round(ENDLESS_S)
    again = reader(sources, bucket, rewinds=1)
    assert await again.round(ENDLESS_S) == 0
    assert len(sources.read()) == read + 7
    bucket.put("c", 1, at=3)
    assert await reader(sources, bucket, rewinds=1).round(ENDLESS_S) == 0
    assert len(sources.read()) == read + 8, "what was read since the rewind is remembered"
    assert await letters(sources) == []
    await restart(sources)
    assert await reader(sources, bucket, rewinds=2).round(ENDLESS_S) == 0
    assert len(sources.read()) == read + 16


async def test_files_outside_of_the_window_are_not_read_but_one_that_was_begun_is(
    sources: SourceWorld,
) -> None:
    bucket, path = Bucket(), file_path("", "%Y/*")
    bucket.put("2023/a", 2, 2, 2)
    assert await reader(sources, bucket, path).round(0) == 1
    bucket.put("2022/b", 2)
    bucket.put("2024/a", 2)
    since_us = path.time_us("2024/a")
    later = replace(path, window=PathWindow(since_us, None))
    assert await reader(sources, bucket, later).round(ENDLESS_S) == 0
    assert bucket.opened == [("2023/a", 0), ("2023/a", 2), ("2024/a", 0)]
    assert await reader(sources, bucket, path).round(ENDLESS_S) == 0, "a wider window reads them"
    assert bucket.opened[3:] == [("2022/b", 0)]
    assert len(sources.read()) == 10


async def test_a_round_ends_behind_the_piece_that_has_its_last_row(sources: SourceWorld) -> None:
    bucket = Bucket()
    bucket.put("a", 3, 3, 3, at=2)
    bucket.put("b", 3)
    own = reader(sources, bucket)
    found = []
    for _ in range(4):
        left = await own.round(ENDLESS_S, 4)
        found.append((left, own.rows, len(sources.read())))
    assert found == [(1, 6, 6), (1, 6, 12), (0, 0, 12), (0, 0, 12)]
