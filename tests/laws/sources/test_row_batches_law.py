"""Every row enters once, whatever readers of a stream without offsets do.

Readers begin at the position, cut the rows into batches of their own, run at the same time, lose
responses and are abandoned. The oracle is the list of rows.
"""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.errors import TransactionAborted
from fennel_core.sources.errors import ReaderSuperseded, RowsNotWritten
from tests.support.ingest_world import catalog
from tests.support.source_world import (
    LOST_AFTER,
    LOST_BEFORE,
    Fault,
    SourceWorld,
    row_batch,
    stream_source,
)

ROWS = 12
REFUSED = Fault(TransactionAborted("the broker refused"), committed=False)
outcomes = st.sampled_from([None, None, None, LOST_AFTER, LOST_BEFORE, REFUSED])
lengths = st.lists(st.integers(1, 5), min_size=1, max_size=4)
readers = st.lists(st.lists(lengths, min_size=1, max_size=3), min_size=1, max_size=4)


async def run(rounds, turns, faults) -> SourceWorld:
    sources = SourceWorld(turns=lambda: turns.pop() if turns else 0)
    sources.fault = lambda: faults.pop() if faults else None
    sources.world.commit(main=catalog(stream_source()))

    async def read(cuts: list[int]) -> None:
        writer = sources.writer()
        position = await writer.position()
        start = 0 if position is None else position.next
        for length in cuts:
            count = min(length, ROWS - start)
            if not count:
                return
            try:
                await writer.write_rows(row_batch(start, count))
            except (ReaderSuperseded, RowsNotWritten):
                return
            start += count

    for parallel in rounds:
        await asyncio.gather(*(read(cuts) for cuts in parallel))
    faults.clear()
    await read([ROWS])
    await sources.world.close()
    return sources


@settings(deadline=None)
@given(readers, st.lists(st.integers(0, 3), max_size=60), st.lists(outcomes, max_size=12))
def test_every_row_enters_once(rounds, turns, faults) -> None:
    sources = asyncio.run(run(rounds, turns, faults))
    assert [row["age"] for row in sources.read()] == list(range(ROWS))
    assert sorted(r["age"] for r in sources.world.rows("w.topic.users.1")) == list(range(ROWS))
