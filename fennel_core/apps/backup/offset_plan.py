"""Plan how to write records so that each gets the offset that it had before. Pure.

Theory. Kafka chooses offsets: the next record gets the end of the log. But the offsets of a topic's
records have gaps, because each end of a transaction takes one, and so do the records of aborted
transactions. Readers of committed records see neither. So a gap is written as what it was:

- before the first offset that is kept: plain records, which are deleted afterwards
- one offset after a record: the end of the transaction in which the record is written
- n offsets: an aborted transaction of n - 1 records, whose end takes the n-th
- the first offset of a log, alone: it held a record of a transaction that was aborted later, so one
  record is written in a transaction that stays open until the next gap

Example. A log is kept from 2 to 8 and has the records 2, 3 and 6: `Fill(2)`, `Write(2, 3)`,
`Abort(1)` (offsets 4 and 5), `Write(6)` in a transaction (its end is offset 7).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fennel_core.vocab.ids import Offset

LONGEST_WRITE: Final = 500
"""Records of one `Write`: bounds what is held in memory."""


@dataclass(frozen=True, slots=True)
class SavedRecord:
    """One committed record of a topic partition."""

    offset: Offset
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Fill:
    """Write `count` plain records; they are deleted at the end."""

    count: int


@dataclass(frozen=True, slots=True)
class Write:
    """Write records with successive offsets; with `in_transaction` its end takes one more."""

    records: tuple[SavedRecord, ...]
    in_transaction: bool


@dataclass(frozen=True, slots=True)
class Abort:
    """Write `count` records in a transaction and abort it, which takes one offset more."""

    count: int


@dataclass(frozen=True, slots=True)
class OpenFirst:
    """Write one record in a transaction of its own that stays open."""


@dataclass(frozen=True, slots=True)
class CloseFirst:
    """Abort the transaction of `OpenFirst`, which takes one offset."""


PlanStep = Fill | Write | Abort | OpenFirst | CloseFirst


def plan_writes(start: Offset, end: Offset, records: Iterator[SavedRecord]) -> Iterator[PlanStep]:
    """Yield the steps that make a new log equal to a former one from `start` to `end`.

    `records`: all committed records of that range, by offset. Afterwards everything below `start`
    is to be deleted.
    """
    upcoming = next(records, None)
    gap = (end if upcoming is None else upcoming.offset) - start
    assert gap >= 0, "records are in the range"
    has_open = start == 0 and gap == 1
    if has_open:
        assert upcoming is not None, "a transaction has an end, so its record is not alone"
        yield OpenFirst()
    elif gap == 1:
        if start > 1:
            yield Fill(start - 1)
        yield Abort(1)
    else:
        if start:
            yield Fill(start)
        if gap:
            yield Abort(gap - 1)
    while upcoming is not None:
        run, upcoming = _run(upcoming, records)
        gap = (end if upcoming is None else upcoming.offset) - run[-1].offset - 1
        assert gap >= 0, "records are ordered and in the range"
        closes = has_open and gap > 0
        has_open = has_open and not closes
        gap -= closes
        yield Write(run, in_transaction=gap == 1)
        if closes:
            yield CloseFirst()
        if gap > 1:
            yield Abort(gap - 1)
    assert not has_open, "the first transaction ended before the end of the log"


def _run(
    first: SavedRecord, records: Iterator[SavedRecord]
) -> tuple[tuple[SavedRecord, ...], SavedRecord | None]:
    """Return records with successive offsets from `first` on, and the record after them."""
    run = [first]
    for record in records:
        if record.offset != run[-1].offset + 1 or len(run) == LONGEST_WRITE:
            return tuple(run), record
        run.append(record)
    return tuple(run), None
