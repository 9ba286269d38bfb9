"""Every message of a source partition enters once, whatever its readers do.

Readers start at any position that was committed at some time, deliver as much as they like, run at
the same time, lose responses and are abandoned in the middle. The oracle is the list of messages.
"""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.errors import TransactionAborted
from fennel_core.sources.errors import RowsNotWritten
from fennel_core.sources.positions import SourcePosition, decode
from tests.support.ingest_world import catalog
from tests.support.source_world import (
    LOST_AFTER,
    LOST_BEFORE,
    POSITIONS,
    Fault,
    SourceWorld,
    batch,
    message,
    stream_source,
)

AT = 1_700_000_000_000
MESSAGES = 12
REFUSED = Fault(TransactionAborted("the broker refused"), committed=False)
outcomes = st.sampled_from([None, None, None, LOST_AFTER, LOST_BEFORE, REFUSED])


@st.composite
def readers(draw):
    """Per round: readers that run at once, each with the lengths of its batches."""
    lengths = st.lists(st.integers(1, 5), min_size=1, max_size=4)
    return draw(st.lists(st.lists(lengths, min_size=1, max_size=3), min_size=1, max_size=4))


def messages(broken: set[int]) -> list[bytes]:
    return [
        b"broken" if n in broken else message(user=f"u{n}", age=n, at=AT + n)
        for n in range(MESSAGES)
    ]


def committed(sources: SourceWorld) -> SourcePosition | None:
    records = [record for _, record in sources.world.messages(POSITIONS)]
    return decode(records[-1].value) if records else None


async def run(rounds, turns, faults, broken) -> SourceWorld:
    sources = SourceWorld(turns=lambda: turns.pop() if turns else 0)
    sources.fault = lambda: faults.pop() if faults else None
    sources.world.commit(main=catalog(stream_source()))
    stream = messages(broken)

    async def read(start: int, lengths: list[int]) -> None:
        writer = sources.writer()
        for length in lengths:
            part = stream[start : start + length]
            if not part:
                return
            try:
                await writer.write(batch(part, first=start))
            except RowsNotWritten:
                return
            start += length

    for parallel in rounds:
        found = committed(sources)
        start = 0 if found is None else found.next
        await asyncio.gather(*(read(start, lengths) for lengths in parallel))
    faults.clear()
    last = committed(sources)
    await read(0 if last is None else last.next, [MESSAGES])
    await sources.world.close()
    return sources


@settings(deadline=None)
@given(
    readers(),
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(outcomes, max_size=12),
    st.sets(st.integers(0, MESSAGES - 1), max_size=4),
)
def test_every_message_enters_once(rounds, turns, faults, broken) -> None:
    sources = asyncio.run(run(rounds, turns, faults, broken))
    good = [n for n in range(MESSAGES) if n not in broken]
    assert [row["age"] for row in sources.read()] == good
    assert sorted(row["age"] for row in sources.world.rows("w.topic.users.1")) == good
    letters = sources.world.rows("w.dead.1")
    assert len(letters) == len(broken)
    end = committed(sources)
    assert end is not None
    assert end.next == MESSAGES
    counts = end.datasets[stream_source().identity]
    assert (counts.accepted, counts.late, counts.dead) == (len(good), 0, len(broken))
