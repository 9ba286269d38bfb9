"""Decide where the consumer reads in a partition that several readers share.

Theory. The client has one position per partition, its *cursor*; the readers of the partition (jobs
of this slot) may want different offsets. A reader accepts a record only while it is *in step*: the
cursor has passed nothing that the reader still wants. A gap between two records it accepts is then
a transaction marker or an aborted record, never a record that was delivered to another reader only.
Everything else follows from that rule: a reader that was full, that joined later, or whose
partition was reassigned is simply behind the cursor, and gets nothing until the cursor is moved to
the offset it wants.

The cursor serves one offset at a time. Readers that want other offsets take turns, each for at most
`turn_bytes` or until the end of the partition, so that a reader with a long backlog does not keep
the others waiting, and a slow one does not have its records read again and again. When no reader
has space, the partition is paused.

Example. Readers A and B want offset 500, the end. C joins at 0: A and B have reached the end, so
the cursor moves to 0. After 8 MiB, at offset 80, it moves to 500 for A and B, meets the end, and
returns to 80. When C reaches 500, all three are served together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fennel_core.vocab.ids import Offset


@dataclass(frozen=True, slots=True)
class Stay:
    """Go on as it is."""


@dataclass(frozen=True, slots=True)
class Pause:
    """No reader has space."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A reader wants what comes next."""


@dataclass(frozen=True, slots=True)
class MoveTo:
    """Assign the partition at this offset."""

    offset: Offset


Move = Stay | Pause | Resume | MoveTo


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the client reads in one partition."""

    position: Offset
    """The client delivers nothing below it."""
    paused: bool = False
    at_end: bool = False
    turn_bytes: int = 0
    """Delivered since the cursor was moved or met the end."""


def is_in_step(position: Offset, wanted: Offset) -> bool:
    """Return True if a cursor at `position` has passed nothing that the reader still wants."""
    return wanted >= position


def next_move(cursor: Cursor | None, wanted: Sequence[Offset], turn_bytes: int) -> Move:
    """Return what to do with a partition.

    `cursor`: None if the partition is not assigned. `wanted`: the next offsets of the readers that
    have space. `turn_bytes`: what readers at one offset get before others have their turn.
    """
    if cursor is None:
        return MoveTo(min(wanted)) if wanted else Stay()
    if not wanted:
        return Stay() if cursor.paused else Pause()
    elsewhere = [offset for offset in wanted if offset != cursor.position]
    turn_is_over = cursor.at_end or cursor.turn_bytes >= turn_bytes
    if cursor.position in wanted and not (elsewhere and turn_is_over):
        return Resume() if cursor.paused else Stay()
    ahead = [offset for offset in elsewhere if offset > cursor.position]
    return MoveTo(min(ahead or elsewhere))
