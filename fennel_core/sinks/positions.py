"""How far a sink got: the value that is written in the transaction of the changes before it.

Theory. A *sink position* says which message of each partition of a dataset's topic is next, and up
to which erasure keys were deleted. It is one record on the cluster that the sink writes to, in the
transaction that holds the changes. So changes and position are there together or not at all, and a
sink that starts, anywhere and with no memory, continues after the last committed change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class SinkPosition(msgspec.Struct, frozen=True):
    """The next offset of each partition (absent: 0) and the number of the last erasure.

    `origin` has the ids of cluster and topic, or of the table, or the URL: what was written to.
    `events`: how many were written since the sink began, without tombstones. `begun`: by partition,
    an offset and how many events of its message were written, of a message that was not written as
    a whole.
    """

    origin: str
    next: dict[int, int] = {}
    erased: int = 0
    events: int = 0
    begun: dict[int, tuple[int, int]] = {}

    def moved(self, following: Mapping[int, int], erased: int, events: int) -> SinkPosition:
        """Return the position after `events` more, up to the offsets `following`.

        A message that is begun and not behind `following` stays so, unless keys were erased since:
        then its events may be others.
        """
        assert all(offset >= self.next.get(part, 0) for part, offset in following.items()), (
            "a position only moves forward"
        )
        return SinkPosition(
            self.origin,
            {**self.next, **following},
            max(erased, self.erased),
            self.events + events,
            {}
            if erased > self.erased
            else {p: at for p, at in self.begun.items() if following.get(p, 0) <= at[0]},
        )


encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(SinkPosition).decode


def lost(stored: SinkPosition | None, known: SinkPosition | None) -> dict[int, tuple[int, int]]:
    """Return the partitions of which less is `stored` than was `known` before, with both offsets.

    `known`: a copy, which may be older than the truth and never newer.
    """
    found = {} if stored is None else stored.next
    return {
        part: (found.get(part, 0), offset)
        for part, offset in ({} if known is None else known.next).items()
        if found.get(part, 0) < offset
    }
