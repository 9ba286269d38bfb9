"""Compute a share of a backfill with the step that the live path runs.

Theory. A step accepts any split and order of its inputs, and its state keys start with the key
group. So key groups can be computed independently, by as many tasks as there are cores, each with a
scratch store; the states of different groups are disjoint. Rows are read in order of offsets, the
last input first: a table before the rows that are joined to it causes fewer retractions. A
stateless step does not even need key groups: its shares are runs of files.

The result is staged in chunks of bounded size: outputs first, as they are produced, then the state
in order of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import polars as pl

from fennel_core.blueprints.spec import Job
from fennel_core.engine.backfill.manifest import Chunk
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.outputs import output_records
from fennel_core.hangar.store import Hangar, WriteBatch
from fennel_core.history.parquet import GROUP, OFFSET
from fennel_core.operators.build import build
from fennel_core.operators.spec import MapSpec
from fennel_core.vocab.ids import PartitionIndex
from fennel_core.vocab.keys import KEY_GROUPS

BATCH_ROWS: Final = 50_000
"""Rows per step: enough to be vectorized, and few enough that the changes fit in memory."""
CHUNK_BYTES: Final = 4 << 20
"""Outputs or state per chunk: one Kafka transaction and one write batch."""
LAST_KEY: Final = b"\xff" * 8
_PAGE: Final = 4096
F = TypeVar("F")
"""A file, as the caller names it."""


@dataclass(frozen=True, slots=True)
class Share:
    """Share `number` of `shares` of a job partition's backfill."""

    number: int
    shares: int

    def groups(self) -> tuple[int, int]:
        """Return the key groups [first, stop) of this share."""
        return self.number * KEY_GROUPS // self.shares, (
            self.number + 1
        ) * KEY_GROUPS // self.shares


def compute(
    job: Job,
    part: PartitionIndex,
    share: Share,
    files: Sequence[Sequence[F]],
    fetch: Callable[[F], pl.DataFrame],
    scratch: Hangar,
) -> Iterator[Chunk]:
    """Yield the chunks of a share.

    `files[i]`: input i's files in order of offsets. `fetch` reads one file. `scratch`:
    an empty store.
    """
    step = build(job.step)
    waiting: list[OutgoingRecord] = []
    size = 0
    for source in reversed(range(len(job.inputs))):
        for batch in _batches(job, share, files[source], fetch):
            outcome = step.apply(scratch, source, batch)
            scratch.write(WriteBatch(outcome.puts, outcome.deletes))
            made = output_records(job, part, outcome.emits, outcome.dead)
            waiting += made
            size += sum(len(message.value) for message in made)
            if size >= CHUNK_BYTES:
                yield Chunk(tuple(waiting), {})
                waiting, size = [], 0
    if waiting:
        yield Chunk(tuple(waiting), {})
    yield from _entries(scratch)


def _batches(
    job: Job, share: Share, files: Sequence[F], fetch: Callable[[F], pl.DataFrame]
) -> Iterator[pl.DataFrame]:
    stateless = isinstance(job.step, MapSpec)
    first, stop = share.groups()
    if stateless:
        files = files[
            share.number * len(files) // share.shares : (share.number + 1)
            * len(files)
            // share.shares
        ]
    for file in files:
        rows = fetch(file)
        if not stateless and share.shares > 1:
            rows = rows.filter(pl.col(GROUP).is_between(first, stop, closed="left"))
        yield from (
            rows.sort(OFFSET, maintain_order=True).drop(OFFSET, GROUP).iter_slices(BATCH_ROWS)
        )


def _entries(scratch: Hangar) -> Iterator[Chunk]:
    puts: dict[bytes, bytes] = {}
    size, start = 0, b""
    while page := scratch.scan(start, LAST_KEY, limit=_PAGE):
        start = page[-1][0] + b"\0"
        for key, value in page:
            puts[key] = value
            size += len(key) + len(value)
            if size >= CHUNK_BYTES:
                yield Chunk((), puts)
                puts, size = {}, 0
    # Even if empty: a backfill has a last chunk, which moves the offsets.
    yield Chunk((), puts)
