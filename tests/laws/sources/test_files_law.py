"""Every row of every file enters once: any order of arrival, times and names, batches and kills.

Files appear between the rounds of readers, with any name and any time, also before those that were
read. Readers stop in the middle of files, lose responses, run at the same time, are killed, and see
listings of different moments. The oracle is the rows of the files.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.errors import TransactionAborted
from fennel_core.connections.external_s3 import ListedFile
from fennel_core.graph.s3_paths import file_path
from fennel_core.sources.errors import ReaderSuperseded, RowsNotWritten
from fennel_core.sources.file_reader import FileReader, FileStore
from fennel_core.sources.file_rows import FilePiece, FileUnreadable
from fennel_core.sources.files import decode_cursor
from fennel_core.vocab.ids import Micros
from tests.support.ingest_world import catalog
from tests.support.source_world import (
    LOST_AFTER,
    LOST_BEFORE,
    Fault,
    SourceWorld,
    partition,
    stream_source,
    users,
)

ENDLESS_S = 1e9
REFUSED = Fault(TransactionAborted("the broker refused"), committed=False)
outcomes = st.sampled_from([None, None, None, LOST_AFTER, LOST_BEFORE, REFUSED])


@dataclass
class Bucket:
    """Files of rows with ages of their own; `cut` rows are read at once."""

    cut: int
    files: dict[str, tuple[ListedFile, range]] = field(default_factory=dict)
    rows: int = 0
    broken: int = 0

    def put(self, name: int, time: int, count: int) -> None:
        """Put a file of `count` rows, over another one of its name; of none if it is broken."""
        key = f"f{name}"
        if key in self.files:
            return
        file = ListedFile(key, f"etag-{self.rows}", count, Micros(time))
        self.files[key] = file, range(self.rows, self.rows + max(0, count))
        self.rows += max(0, count)
        self.broken += count < 0

    def store(self) -> FileStore:
        def pieces(file: ListedFile, first: int) -> Iterator[FilePiece]:
            if file.size_bytes < 0:
                raise FileUnreadable("no Parquet")
            _, ages = self.files[file.key]
            for at in range(first, len(ages), self.cut):
                part = users(ages[at], min(self.cut, len(ages) - at))
                yield FilePiece((part,), at + part.rows.num_rows, 0)

        return FileStore("S3 file `b`", lambda: [f for f, _ in self.files.values()], pieces)


files = st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(-1, 5))
steps = st.lists(
    st.one_of(
        files.map(lambda each: ("put", each)),
        st.tuples(st.just("read"), st.lists(st.integers(0, 2), min_size=1, max_size=3)),
        st.tuples(st.just("kill"), st.integers(0, 2)),
    ),
    max_size=14,
)


async def run(todo, cut, turns, faults) -> tuple[SourceWorld, Bucket]:
    sources = SourceWorld(turns=lambda: turns.pop() if turns else 0)
    sources.fault = lambda: faults.pop() if faults else None
    sources.world.commit(main=catalog(stream_source()))
    bucket = Bucket(cut)
    alive: dict[int, FileReader] = {}

    async def read(number: int, seconds: float = 0.0) -> None:
        if number not in alive:
            path, store = file_path("", ""), bucket.store()
            clock = itertools.count().__next__
            alive[number] = FileReader(sources.writer(), partition(), path, store, clock=clock)
        try:
            await alive[number].round(seconds)
        except (ReaderSuperseded, RowsNotWritten):
            return

    for what, given_ in todo:
        if what == "put":
            bucket.put(*given_)
        elif what == "kill":
            alive.pop(given_, None)
        else:
            await asyncio.gather(*(read(number) for number in set(given_)))
    faults.clear()
    await read(9, ENDLESS_S)
    assert await alive[9].round(ENDLESS_S) == 0
    await sources.world.close()
    return sources, bucket


@settings(deadline=None)
@given(
    steps,
    st.integers(1, 3),
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(outcomes, max_size=12),
)
def test_every_row_of_every_file_enters_once(todo, cut, turns, faults) -> None:
    sources, bucket = asyncio.run(run(todo, cut, turns, faults))
    assert sorted(row["age"] for row in sources.read()) == list(range(bucket.rows))
    assert sorted(r["age"] for r in sources.world.rows("w.topic.users.1")) == list(
        range(bucket.rows)
    )
    assert len(sources.world.rows("w.dead.1")) == bucket.broken
    if bucket.files:
        position = asyncio.run(sources.writer().position())
        assert position is not None
        cursor = decode_cursor(position.cursor)
        assert cursor is not None
        assert (cursor.read, cursor.done, position.next) == (len(bucket.files), True, bucket.rows)
