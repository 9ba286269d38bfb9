"""How far a partition of a source was read: the value that is written with the rows it covers.

Theory. A *position* says which message or row of a source partition is next, and how far each
source dataset progressed by this partition. It is one record on the feed's positions topic, in the
transaction that holds the rows before it. So rows and position are there together or not at all,
and a reader that starts, anywhere and with no memory, continues after the last committed row.

Lateness is judged per partition of the source: its messages are in order, while partitions are
read at different speeds. A partition that is a month behind the others is not late. Progress is
part of the position, so a restart judges rows as the reader before it did.

What "next" means to a source that has no offsets is in its *cursor*: a text that only the source
reads, such as a file and a row in it. Then the number next to it counts the rows that were read.

Example: partition 3 was read up to offset 41, and `Users` has seen an event of 12:00 there:

    {"next": 42, "origin": "mkq…/x5Z…", "datasets": {"4f1c…": {"latest_us": …, "accepted": 40, …}}}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from fennel_core.blueprints.spec import SourceBinding
from fennel_core.ingest.acceptance import SourceProgress, advance_progress
from fennel_core.ingest.batches import IngestTransaction
from fennel_core.vocab.ids import Identity, Micros, TopicName


class DatasetPosition(msgspec.Struct, frozen=True):
    """The progress of one source of a dataset in one partition, and what became of its rows."""

    watermark_us: int | None = None
    latest_us: int | None = None
    last_rows_us: int | None = None
    accepted: int = 0
    late: int = 0
    dead: int = 0

    @property
    def progress(self) -> SourceProgress:
        """The part that lateness is judged by."""
        return SourceProgress(
            *(
                None if us is None else Micros(us)
                for us in (self.watermark_us, self.latest_us, self.last_rows_us)
            )
        )


class SourcePosition(msgspec.Struct, frozen=True):
    """The next offset of a source partition, and the stream in which that offset has a meaning:
    the ids of the external cluster and topic.

    `cursor`: see the module; empty for a topic of Kafka, whose offset says it all.
    """

    next: int
    origin: str
    datasets: dict[Identity, DatasetPosition] = {}
    rewinds: int = 0
    """How often a user has moved the position: a reader that began before a move must begin again,
    because what it delivers next does not follow the position any more.
    """
    cursor: str = ""

    def progress(self) -> dict[Identity, SourceProgress]:
        """Return the progress of each source of a dataset."""
        return {identity: each.progress for identity, each in self.datasets.items()}


encode: Final = msgspec.json.Encoder(order="sorted").encode
decode: Final = msgspec.json.Decoder(SourcePosition).decode


def advanced(
    position: SourcePosition,
    transaction: IngestTransaction,
    next_offset: int,
    now_us: Micros,
    present: Collection[Identity],
    cursor: str = "",
) -> SourcePosition:
    """Return the position after a transaction with the messages before `next_offset`.

    `present`: the sources of datasets that the feed has now; others are forgotten. A file without
    rows moves the `cursor` only.
    """
    assert next_offset > position.next or (
        next_offset == position.next and cursor != position.cursor
    ), "a position only moves forward"
    accepted = _rows((a.binding, a.rows) for a in transaction.accepted)
    dead = _rows(transaction.dead)
    advances = {a.identity: a for a in transaction.advances}
    datasets: dict[Identity, DatasetPosition] = {}
    for identity in present:
        before = position.datasets.get(identity, DatasetPosition())
        advance = advances.get(identity)
        progress = advance_progress(
            before.progress, None if advance is None else advance.latest_us, now_us
        )
        datasets[identity] = DatasetPosition(
            progress.watermark_us,
            progress.latest_us,
            progress.last_rows_us,
            before.accepted + accepted.get(identity, 0),
            before.late + (0 if advance is None else advance.discarded),
            before.dead + dead.get(identity, 0),
        )
    return SourcePosition(next_offset, position.origin, datasets, position.rewinds, cursor)


def rewound(position: SourcePosition, next_offset: int, cursor: str = "") -> SourcePosition:
    """Return the position after a user has moved it to `next_offset`.

    Moved back, the partition is read again as at first: nothing is late by what was read later.
    """
    datasets = position.datasets
    if next_offset < position.next:
        datasets = {
            identity: msgspec.structs.replace(
                each, watermark_us=None, latest_us=None, last_rows_us=None
            )
            for identity, each in datasets.items()
        }
    return SourcePosition(next_offset, position.origin, datasets, position.rewinds + 1, cursor)


def restarted(position: SourcePosition) -> SourcePosition:
    """Return the position of a stream that is read from its beginning; ordinals go on."""
    before = msgspec.structs.replace(position, next=position.next + 1)
    return msgspec.structs.replace(rewound(before, position.next), cursor="")


def _rows(counted: Iterable[tuple[SourceBinding, int]]) -> dict[Identity, int]:
    """Return the rows of each source: those of one of its topics, as all get the same."""
    by_topic: dict[tuple[Identity, TopicName], int] = {}
    for binding, rows in counted:
        feed = (binding.identity, binding.topic)
        by_topic[feed] = by_topic.get(feed, 0) + rows
    found: dict[Identity, int] = {}
    for (identity, _), rows in by_topic.items():
        found[identity] = max(rows, found.get(identity, 0))
    return found
