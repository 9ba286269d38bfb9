"""What was accepted after replays equals a recompute, whatever orders are given and how they end.

Rows of a stream do not fit, the definition of the source is corrected, and orders to replay run one
after the other and at the same time, lose responses and are refused. The oracle types the accepted
raw requests again, row by row, as a dataset that is made now would: with their positions.
"""

import asyncio
import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.admission.source_replay import replay_requests
from fennel_core.admission.validator import Validator
from fennel_core.connections.errors import TransactionAborted
from fennel_core.executors.client import NO_CALLBACKS
from fennel_core.redrive.api_errors import RedriveStopped
from fennel_core.redrive.letters import LetterFilter
from fennel_core.vocab.dtypes import Int
from fennel_core.wire.connectors import Constant
from tests.support.ingest_world import WORKSPACE, NoExecutors, catalog
from tests.support.redrive_world import RedriveWorld
from tests.support.source_world import (
    LOST_AFTER,
    LOST_BEFORE,
    RAW,
    Fault,
    batch,
    message,
    stream_source,
)

AT = 1_700_000_000_000
REFUSED = Fault(TransactionAborted("the broker refused"), committed=False)
faults = st.lists(st.sampled_from([None, None, LOST_AFTER, LOST_BEFORE, REFUSED]), max_size=6)
BAD = {"age": "old"}, {"age": None}, {"user": None}
WITH_AGE = stream_source(preproc=(("age", Constant(0, Int())),))


def messages(kinds: list[int]) -> list[bytes]:
    """Return messages: 0 fits, 1 to 3 have a bad value, 4 is no row."""
    return [
        b"broken"
        if kind == 4
        else message(
            **({"user": f"u{n}", "age": n, "at": AT + n} | (BAD[kind - 1] if kind else {}))
        )
        for n, kind in enumerate(kinds)
    ]


async def recomputed(world: RedriveWorld) -> set[tuple[bytes, str, int]]:
    """Return position, key and age of the rows that a dataset made now would have."""
    groups = await replay_requests(
        Validator(NoExecutors(), NO_CALLBACKS), WITH_AGE, world.sources.world.raw(RAW), ()
    )
    return {
        (group.positions[int(number)].as_py(), row["user"], row["age"])
        for group in groups
        for rows in group.good
        for number, row in zip(rows.numbers, rows.frame.to_dicts(), strict=True)
    }


async def run(kinds: list[int], turns: list[int], script: list[Fault | None], at_once: int) -> None:
    world = RedriveWorld(turns=lambda: turns.pop() if turns else 0)
    ingest = world.sources.world
    ingest.commit("1", main=catalog(stream_source()))
    writer = world.sources.writer()
    stream = messages(kinds)
    for first in range(0, len(stream), 3):
        await writer.write(batch(stream[first : first + 3], first))
    ingest.commit("2", main=catalog(WITH_AGE))
    world.fault = lambda: script.pop() if script else None

    async def order() -> None:
        with contextlib.suppress(RedriveStopped):
            await world.orders().replay(WORKSPACE, LetterFilter(), dry_run=False)

    await asyncio.gather(*(order() for _ in range(at_once)))
    script.clear()
    report = await world.orders().replay(WORKSPACE, LetterFilter(), dry_run=False)
    again = await world.orders().replay(WORKSPACE, LetterFilter(), dry_run=False)
    assert (again.accepted, again.refused) == (0, report.refused)
    rows = ingest.rows(WITH_AGE.topic)
    written = [(row["__pos"], row["user"], row["age"]) for row in rows]
    fitting = {(pos, user) for pos, user, _ in await recomputed(world)}
    # A row that fitted before the correction keeps what it was typed as.
    assert sorted((pos, user) for pos, user, _ in written) == sorted(fitting)
    assert sum(letter.rows for letter in world.open_letters()) == sum(k in (3, 4) for k in kinds)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=10),
    st.lists(st.integers(0, 3), max_size=10),
    faults,
    st.integers(1, 3),
)
def test_each_row_that_fits_now_is_in_the_dataset_once(kinds, turns, script, at_once) -> None:
    asyncio.run(run(kinds, turns, script, at_once))
