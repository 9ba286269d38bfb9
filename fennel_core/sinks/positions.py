"""How far a sink got: the value that is written in the transaction of the changes before it.

Theory. A *sink position* says which message of each partition of a dataset's topic is next, and up
to which erasure keys were deleted. It is one record on the cluster that the sink writes to, in the
transaction that holds the changes. So changes and position are there together or not at all, and a
sink that starts, anywhere and with no memory, continues after the last committed change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec


@dataclass(frozen=True, slots=True)
class SinkRewind:
    """An order to write a sink again from the offsets `to` on; absent partitions do not move.

    `number`: larger than that of earlier ones. `whole`: `to` is all that can be read, so what was
    written before may be gone.
    """

    number: int
    to: Mapping[int, int]
    whole: bool


class SinkPosition(msgspec.Struct, frozen=True):
    """The next offset of each partition (absent: 0) and the number of the last erasure.

    `origin` has the ids of cluster and topic, or of the table, or the URL: what was written to.
    `events`: how many were written since the sink began, without tombstones. `begun`: by partition,
    an offset and how many events of its message were written, of a message that was not written as
    a whole. `rewound`: the number of the last rewind that was carried out.
    """

    origin: str
    next: dict[int, int] = {}
    erased: int = 0
    events: int = 0
    begun: dict[int, tuple[int, int]] = {}
    rewound: int = 0

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
            self.rewound,
        )

    def back(self, rewind: SinkRewind, origin: str) -> SinkPosition:
        """Return the position that a rewind moves to: no partition moves forward, unless all is
        written again that can be read and a partition begins there.

        `origin`: of what is written to now; it may be another one if all is written again.
        """
        following = {
            part: offset if rewind.whole else min(self.next.get(part, 0), offset)
            for part, offset in rewind.to.items()
        }
        return SinkPosition(
            origin, {**self.next, **following}, self.erased, self.events, {}, rewind.number
        )


encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(SinkPosition).decode


def lost(stored: SinkPosition | None, known: SinkPosition | None) -> dict[int, tuple[int, int]]:
    """Return the partitions of which less is `stored` than was `known` before, with both offsets.

    `known`: a copy, which may be older than the truth and never newer. One of before a rewind that
    was carried out says nothing.
    """
    if stored is not None and known is not None and stored.rewound > known.rewound:
        return {}
    found = {} if stored is None else stored.next
    return {
        part: (found.get(part, 0), offset)
        for part, offset in ({} if known is None else known.next).items()
        if found.get(part, 0) < offset
    }
