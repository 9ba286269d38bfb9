"""Which rows of a table were read, and the query for the next ones: pure decisions.

Theory. A cursor says where a reader is, and nothing about rows that appear behind it: a transaction
takes its cursor value (a sequence, `now()`) when it begins to write, and its rows appear when it
commits, perhaps after rows with higher values were read. So what was read is remembered with the
*horizon* of the read: the oldest transaction that was running then. Postgres keeps with each row
the transaction that wrote it (`xmin`, a subtransaction too, whose id is higher than its parent's).
A read takes only rows of transactions below its horizon. All of these have ended, so no such row
appears later; the others are taken by a later read, whatever their cursor values are.

What was read is therefore a chain of *levels*: all rows up to a place that were written below a
horizon. Places are (value of the cursor, place of the row in the file), so rows with equal values
are in order, too. A row is read if any level has it. A page continues behind them, in order:

    levels              next read, with horizon 90
    ≤ 100 below 50      rows > 100 below 90, and rows ≤ 100 of transactions from 50 to 89
    page ends at 40     ≤ 40 below 90, ≤ 100 below 50      a kill here loses nothing
    page ends at 120    ≤ 120 below 90

A row that is changed has a new transaction, so it is read again as a new version of its row: right
for `upsert`, and for `append` as if it was added. Reading every row for its transaction would take
longer the more there are, so rows below a *floor* are not looked at. When a read has ended, it is
*settled*: the floor becomes the value of the `NEAR_ROWS`-th highest row less the *look-back*
(`disorder` for times), or the lowest value of a row that the read has left to the next one, if that
is lower. So no row that a read has seen is lost, however old it is, and the few rows with values
far above all others do not hide those that come.

The place of a row in the file only orders rows of one value, and only where a batch ends between
them. It means nothing in another *file* of the table, which VACUUM FULL and others write. The last
row that was read is a *witness* of what wrote it: its value and its transaction, which VACUUM FULL
keeps, and pg_repack does not. If it is gone, it is not known which rows were read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from fennel_core.connections.external_postgres import (
    OWN_PREFIX,
    CursorKind,
    ExternalColumn,
    ExternalTable,
    TransactionClock,
)
from fennel_core.sources.errors import SourceError

IDS: Final = 1 << 32
"""Postgres stores the lower half of a transaction's id with a row."""
MOST_APART: Final = 1 << 31
NEWER: Final = 1 << 24
"""Transactions that may begin between the look at the clock and the end of a query."""
LOOK_BACK_VALUES: Final = 1_000_000
"""Look-back of a numeric cursor: so many values are looked at again by each read."""
NEAR_ROWS: Final = 10_000
"""So many rows with the highest values may be wrong without hiding the rows that come: the
look-back begins below them. A table with fewer rows is looked at as a whole."""
FIRST_READS: Final = 2
"""Rows of so many reads are never late: the second one reads what the first had to leave."""
DAY_US: Final = 86_400_000_000
AHEAD_US: Final = DAY_US
"""How far the times of a cursor may be ahead of the database's clock: time zones, and clocks."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
VALUE: Final = f"{OWN_PREFIX}value"
BLOCK: Final = f"{OWN_PREFIX}block"
OFFSET: Final = f"{OWN_PREFIX}offset"
PLACE: Final = f"{OWN_PREFIX}place"
FILE: Final = f"{OWN_PREFIX}file"
WRITER: Final = f"{OWN_PREFIX}writer"
OWN: Final = (VALUE, BLOCK, OFFSET, PLACE, FILE, WRITER)
"""Columns that a page has besides those of the table."""


class TableChanged(SourceError):
    """A column is gone or has another type, so rows read before and after would not be alike."""

    code = "source-table-changed"


class TableMoved(SourceError):
    """The table was written again, or replaced, while it was read: the next run sees what it is."""

    code = "source-table-moved"


class CursorWentBack(SourceError):
    """Every value of the cursor is so low that new rows would not be seen."""

    code = "source-cursor-went-back"


class HorizonWentBack(SourceError):
    """The server has had fewer transactions than when rows were read: it is not the same."""

    code = "source-horizon-went-back"


class TimelineChanged(SourceError):
    """The server was promoted or restored: transactions that were read may be gone."""

    code = "source-timeline-changed"


class ReadTooOld(SourceError):
    """The database has had so many transactions since the last read that their ids repeat."""

    code = "source-read-too-old"


class ReadLevel(msgspec.Struct, frozen=True, array_like=True):
    """All rows at or before a place that transactions below `horizon` wrote were read.

    `row`: the place in the file of the last one of that value (block, offset), where rows of the
    same value follow; None: all of it.
    """

    value: int
    row: tuple[int, int] | None
    horizon: int

    @property
    def place(self) -> tuple[int, float, int]:
        """Return what places are ordered by."""
        block, offset = (float("inf"), 0) if self.row is None else self.row
        return self.value, block, offset


class Witness(msgspec.Struct, frozen=True, array_like=True):
    """A row that was read: its value, and the lower half of the id of what wrote it."""

    value: int
    writer: int


class TableCursor(msgspec.Struct, frozen=True):
    """What was read of a table: see the module. Stored as the cursor of a position.

    `floor`: rows with lower values are not looked at; None: all are. `reads`: how many have ended
    and were settled, `FIRST_READS` at most. `timeline`: of the server; None: not known. `emptied`:
    the highest value that was read when another file had none of the rows, as after TRUNCATE.
    `taken`: a user has said that all rows which are there up to the highest value were read.
    """

    levels: tuple[ReadLevel, ...]
    columns: dict[str, str]
    """Types of the columns when they were read last."""
    file: int
    column: str
    """Name of the column whose values the levels have."""
    kind: CursorKind
    floor: int | None = None
    reads: int = 0
    witness: Witness | None = None
    timeline: int | None = None
    emptied: int | None = None
    taken: bool = False

    @property
    def highest(self) -> int:
        """The highest value that was read."""
        return max(level.value for level in self.levels)

    @property
    def full(self) -> bool:
        """Whether all rows were read that there were at first, so that rows may be late."""
        return self.reads >= FIRST_READS

    @property
    def partial(self) -> bool:
        """Whether a value was read in part, so that places in the file matter."""
        return any(level.row is not None for level in self.levels)


encode: Final = msgspec.json.Encoder(order="sorted").encode
decode: Final = msgspec.json.Decoder(TableCursor).decode


def cursor_of(text: str) -> TableCursor | None:
    """Return the cursor of a position; None before the first read."""
    return decode(text) if text else None


@dataclass(frozen=True, slots=True)
class TableRead:
    """One read of a table: everything that its queries need.

    `look_back`: in the units of the cursor's values, below the `near`-th highest row.
    """

    table: ExternalTable
    cursor: ExternalColumn
    kind: CursorKind
    columns: tuple[ExternalColumn, ...]
    clock: TransactionClock
    look_back: int
    near: int = NEAR_ROWS
    seen: int | None = None
    """The highest value that was read before: the clock may have gone back since."""
    timeline: int | None = None
    emptied: int | None = None
    """These are stored as they are: see `TableCursor`."""

    @property
    def latest(self) -> int | None:
        """The highest value that is read: rows above are far in the future. None: any."""
        latest = self.clock.now_us + AHEAD_US
        match self.kind:
            case CursorKind.INTEGER:
                return None
            case CursorKind.DATE:
                latest //= DAY_US
            case _:
                pass
        return latest if self.seen is None else max(latest, self.seen)

    def floor(self, before: TableCursor | None) -> int | None:
        """Return the lowest value of rows that are looked at; None: all are."""
        if before is None or before.floor is None:
            return None
        return min(before.floor, before.highest - self.look_back)

    @property
    def types(self) -> dict[str, str]:
        return {each.name: each.declared for each in self.columns}


def look_back_of(kind: CursorKind, disorder_us: int) -> int:
    """Return how far behind the highest value rows are looked for.

    Times may be ahead of the clock, so they are looked for that much further back.
    """
    match kind:
        case CursorKind.INTEGER:
            return LOOK_BACK_VALUES
        case CursorKind.DATE:
            return -(-(disorder_us + AHEAD_US) // DAY_US)
        case _:
            return disorder_us + AHEAD_US


def require_same_columns(read: TableRead, before: TableCursor | None, title: str) -> None:
    """Raise `TableChanged` unless the columns that were read before are there as they were."""
    if before is None:
        return
    if (before.column, before.kind) != (read.cursor.name, read.kind):
        raise TableChanged(
            f"{title} was read by `{before.column}` ({before.kind.value}) and has the cursor "
            f"`{read.cursor.name}` ({read.kind.value}) now, so it cannot be known which rows were "
            "read; commit the source with the cursor that it had, or rewind it to `earliest`"
        )
    now = read.types
    for name, declared in before.columns.items():
        if name not in now:
            raise TableChanged(
                f"{title} has no column `{name}` any more, which was read before; add it again, or "
                "give the connector another name to read the table as it is now"
            )
        if now[name] != declared:
            raise TableChanged(
                f"{title}: column `{name}` is {now[name]} now and was {declared} when rows were "
                "read; change it back, or give the connector another name to read all of the table"
            )


@dataclass(frozen=True, slots=True)
class FoundRows:
    """What of the rows that were read is there. `witness`: the witness; `older`: any at all.

    `refilled`: any up to the highest value of a file whose rows were gone.
    """

    witness: bool
    older: bool
    refilled: bool = False


def begins_again(
    read: TableRead, before: TableCursor, found: FoundRows, title: str, *, versioned: bool
) -> bool:
    """Return whether the table is read from its beginning: what of it was read is not known.

    `versioned`: all its datasets take a row that is read twice for one version (`upsert`). Raises
    `TableChanged` or `TimelineChanged` if the rows would enter twice.
    """
    promoted = None not in (read.timeline, before.timeline) and read.timeline != before.timeline
    same_file = read.table.file == before.file
    known = same_file or not found.older or (found.witness and not before.partial)
    if known and not found.refilled and not promoted:
        return False
    if versioned:
        return True
    if promoted:
        raise TimelineChanged(
            f"{title}: its server was promoted or restored since it was read (timeline "
            f"{before.timeline}, now {read.timeline}). If transactions were lost, others have "
            "their ids, and it cannot be known which rows were read; with cdc `append` they would "
            "enter twice. Rewind the source to `current` if none were lost, as in a planned "
            "switchover, or to `earliest` if rows may enter twice"
        )
    raise TableChanged(
        f"{title} was written again as a whole (as by pg_repack, TRUNCATE, ALTER TABLE, or VACUUM "
        "FULL during a read), so it cannot be known which rows were read, and with cdc `append` "
        "they would enter twice; rewind the source to `earliest` if they may, or to `current` if "
        "what is there up to the highest value was read"
    )


def taken(before: TableCursor) -> TableCursor:
    """Return the cursor by which the next run takes for read all rows up to the highest value."""
    return msgspec.structs.replace(before, taken=True)


def as_taken(read: TableRead, before: TableCursor) -> TableCursor:
    """Return what was read, as a user has said it, at the begin of the next read.

    It stays `taken` until a batch or the end of the read stores the next cursor.
    """
    if not before.taken:
        return before
    return msgspec.structs.replace(
        before,
        levels=(ReadLevel(before.highest, None, read.clock.horizon),),
        file=read.table.file,
        timeline=read.timeline,
        emptied=None,
    )


def going_on(read: TableRead, before: TableCursor, found: FoundRows) -> TableRead:
    """Return the read that goes on behind what was read before."""
    emptied = before.emptied
    if read.table.file != before.file and not found.older:
        emptied = before.highest
    timeline = before.timeline if read.timeline is None else read.timeline
    return replace(read, seen=before.highest, timeline=timeline, emptied=emptied)


def require_same_file(read: TableRead, now: ExternalTable, title: str) -> None:
    """Raise `TableMoved` unless `now` is the table that the read began with."""
    if (now.origin, now.file) != (read.table.origin, read.table.file):
        raise moved(title)


def moved(title: str) -> TableMoved:
    """Return the error of a page that has rows of another file or table."""
    return TableMoved(
        f"{title} was written again as a whole, or replaced, while it was read; what was read is "
        "kept, and the next run goes on if it can"
    )


def require_readable(
    read: TableRead, before: TableCursor | None, highest: int | None, title: str
) -> None:
    """Raise `CursorWentBack`, `HorizonWentBack` or `ReadTooOld`.

    `highest`: the highest value of the cursor in the table now.
    """
    if before is None:
        return
    newest = max(level.horizon for level in before.levels)
    if read.clock.horizon < newest:
        raise HorizonWentBack(
            f"{title}: all transactions below {newest} had ended when rows were read, and only "
            f"those below {read.clock.horizon} have now, so new rows would be taken for rows that "
            "were read. The server is a replica that is behind, or was restored: wait for it, or "
            "rewind the source to `current` (rows up to the highest value were read) or `earliest`"
        )
    floor = read.floor(before)
    if highest is not None and floor is not None and highest < floor:
        raise CursorWentBack(
            f"{title}: the highest `{read.cursor.name}` is {shown(read.kind, highest)} now, and "
            f"was {shown(read.kind, before.highest)}, so new rows would not be seen; rewind the "
            "source to `earliest` if the table was filled again"
        )
    oldest = min(level.horizon for level in before.levels)
    if read.clock.end - oldest + NEWER >= MOST_APART:
        raise ReadTooOld(
            f"{title} was not read for {read.clock.end - oldest} transactions of its database, so "
            "new rows cannot be order from old ones; rewind the source to `earliest`"
        )


def following(
    before: TableCursor | None,
    read: TableRead,
    last: ReadLevel,
    witness: Witness | None,
    *,
    complete: bool,
) -> TableCursor:
    """Return the cursor after rows up to `last` were read, in order; `complete`: no more are left.

    The floor stays where the read has it until it is settled.
    """
    levels = () if before is None else before.levels
    reads = 0 if before is None else before.reads
    if complete:
        highest = max((last, *levels), key=lambda level: level.place)
        chain: tuple[ReadLevel, ...] = (ReadLevel(highest.value, None, read.clock.horizon),)
    else:
        chain = (last, *(level for level in levels if level.place > last.place))
    return _cursor(read, chain, read.floor(before), reads, witness)


def settled(
    before: TableCursor, read: TableRead, near: int | None, waiting: int | None
) -> TableCursor | None:
    """Return the cursor of a read that has ended; None if it is stored well enough.

    `near`: the value of the row that the look-back begins at; None if there are fewer rows.
    `waiting`: the lowest value of a row from the floor up that the read has left; None without one.
    A horizon that stays behind for 2^31 transactions would end in `ReadTooOld`.
    """
    floor = None
    if near is not None:
        look = near - read.look_back
        floor = look if waiting is None else min(look, waiting)
    reads = min(before.reads + 1, FIRST_READS)
    oldest = min(level.horizon for level in before.levels)
    stored = before.floor, before.reads, before.file, before.timeline, before.emptied
    kept = (floor, reads, read.table.file, read.timeline, read.emptied) == stored
    if (
        kept
        and not before.taken
        and len(before.levels) == 1
        and not before.partial
        and read.clock.horizon - oldest < NEWER
    ):
        return None
    chain = (ReadLevel(before.highest, None, read.clock.horizon),)
    return _cursor(read, chain, floor, reads, before.witness)


def _cursor(
    read: TableRead,
    chain: tuple[ReadLevel, ...],
    floor: int | None,
    reads: int,
    witness: Witness | None,
) -> TableCursor:
    return TableCursor(
        chain,
        read.types,
        read.table.file,
        read.cursor.name,
        read.kind,
        floor,
        reads,
        witness,
        read.timeline,
        read.emptied,
    )


def at_page(read: TableRead, now: TransactionClock) -> TableRead:
    """Return a read for its next page; `now`: the clock, a page after the last one's.

    The horizon stays that of the run, so the rows of a run are bounded. Transactions that began
    since are newer, and conditions must know of their ids.
    """
    return replace(read, clock=replace(read.clock, end=now.end))


def shown(kind: CursorKind, value: int) -> str:
    """Return a value of the cursor for people."""
    match kind:
        case CursorKind.INTEGER:
            return str(value)
        case CursorKind.DATE:
            return (EPOCH + timedelta(days=value)).date().isoformat()
        case _:
            return (EPOCH + timedelta(microseconds=value)).isoformat()
