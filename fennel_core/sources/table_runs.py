"""When a source on a schedule is read: pure decisions over the row of its last run.

    state      condition                              next
    unread     there is no row                        due at once
    running    its lease has not ended                not due
    lost       its lease has ended without a report   due, as one that failed
    partial    it gave way to others                  due again, behind those that wait
    complete   it read all that there was             due `every` after it started
    failed     it raised an error                     due after a pause that doubles, up to `every`

A complete run may have a reason, too: rows that it could not read. A source that is paused or has
ended is never due.

As many runs are started as may run at once, those first that have waited longest, so each starts
soon after it was claimed. A long read gives way after a time, so each source has its turn.
 Runs may overlap nevertheless (a server that was suspended): each
fences the writes of those before it, so the schedule decides only when a source is read. `store`
methods compare the name of the run, so a lost run cannot report in the name of its successor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from fennel_core.vocab.ids import TopicName

START_LEASE: Final = timedelta(seconds=300)
"""How long a run may wait for a worker and its JVM before it reports."""
LEASE: Final = timedelta(seconds=60)
"""How long a run that has reported is believed to go on."""
FIRST_PAUSE: Final = timedelta(seconds=10)
LATE_AFTER: Final = 3
"""A source is not fresh when it has not completed a run for so many times `every`."""
LOST: Final = "the run ended without a report: its process was killed, or has not started in time"


@dataclass(frozen=True, slots=True)
class TableRun:
    """The last run of a source. The fields are the columns of `source_run`."""

    run: str
    started_at: datetime
    first_at: datetime
    lease_until: datetime | None = None
    completed_at: datetime | None = None
    failures: int = 0
    retry_at: datetime | None = None
    reason: str | None = None
    rows_read: int = 0
    cursor: str | None = None
    held_by: int | None = None
    last_rows_at: datetime | None = None


class RunState(StrEnum):
    """See the module."""

    RUNNING = "running"
    LOST = "lost"
    PARTIAL = "partial"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TableProgress:
    """What a run has read so far."""

    rows_read: int
    cursor: str | None
    held_by: int | None = None


def state_of(row: TableRun, now: datetime) -> RunState:
    """Return the state of the last run."""
    if row.lease_until is not None:
        return RunState.RUNNING if now < row.lease_until else RunState.LOST
    if row.retry_at is None:
        return RunState.COMPLETE
    return RunState.PARTIAL if row.reason is None else RunState.FAILED


def next_at(row: TableRun | None, every: timedelta, now: datetime) -> datetime:
    """Return when a source is due; in the past or now if it is due already."""
    if row is None:
        return now
    match state_of(row, now):
        case RunState.RUNNING | RunState.LOST:
            assert row.lease_until is not None, "a run that has not ended has a lease"
            return row.lease_until
        case RunState.COMPLETE:
            return row.started_at + every
        case RunState.PARTIAL | RunState.FAILED:
            assert row.retry_at is not None, "a run that has not read all is tried again"
            return row.retry_at


def due(
    every: Mapping[TopicName, timedelta],
    runs: Mapping[TopicName, TableRun],
    paused: Collection[TopicName],
    now: datetime,
    at_once: int,
) -> list[TopicName]:
    """Return the sources to read now: those without a run, then those that have waited longest.

    With the runs that go on, `at_once` at most. Those of sources that are gone or paused count, as
    long as they report: they have a worker.
    """
    running = sum(state_of(row, now) is RunState.RUNNING for row in runs.values())
    found = [
        (topic in runs, next_at(runs.get(topic), each, now), topic)
        for topic, each in every.items()
        if topic not in paused
    ]
    return [topic for _, at, topic in sorted(found) if at <= now][: max(0, at_once - running)]


def claimed(row: TableRun | None, run: str, every: timedelta, now: datetime) -> TableRun:
    """Return the row of a run that begins now; one that was lost before it counts as failed."""
    if row is None:
        return TableRun(run, now, now, lease_until=now + START_LEASE)
    if state_of(row, now) is RunState.LOST:
        # It may have read rows since its last report.
        row = replace(failed(row, LOST, every, now), last_rows_at=now)
    return replace(
        row,
        run=run,
        started_at=now,
        lease_until=now + START_LEASE,
        retry_at=None,
        rows_read=0,
        held_by=None,
    )


def reported(row: TableRun, progress: TableProgress, now: datetime) -> TableRun:
    """Return the row of a run that goes on."""
    return replace(
        row,
        lease_until=now + LEASE,
        rows_read=progress.rows_read,
        cursor=progress.cursor or row.cursor,
        held_by=progress.held_by,
        # Whatever becomes of the run: a bounded source that had rows in it has not ended.
        last_rows_at=now if progress.rows_read else row.last_rows_at,
    )


def gave_way(row: TableRun, progress: TableProgress, now: datetime) -> TableRun:
    """Return the row of a run that has read a part, and lets others read."""
    return replace(
        reported(row, progress, now),
        lease_until=None,
        failures=0,
        retry_at=now,
        reason=None,
    )


def completed(
    row: TableRun, progress: TableProgress, now: datetime, complaint: str | None = None
) -> TableRun:
    """Return the row of a run that has read all that there was; `complaint`: but for what."""
    return replace(
        reported(row, progress, now),
        lease_until=None,
        completed_at=now,
        failures=0,
        retry_at=None,
        reason=complaint,
    )


def failed(
    row: TableRun,
    reason: str,
    every: timedelta,
    now: datetime,
    owed: timedelta = timedelta(0),
) -> TableRun:
    """Return the row of a run that has failed: it is tried again after a pause.

    `owed`: how long the limit of the source holds it up.
    """
    pause = min(max(every, FIRST_PAUSE), FIRST_PAUSE * 2 ** min(row.failures, 20))
    pause = max(pause, owed)
    return replace(
        row, lease_until=None, failures=row.failures + 1, retry_at=now + pause, reason=reason
    )


def stopped(row: TableRun, reason: str, now: datetime) -> TableRun:
    """Return the row of a run that was order to stop: it has not failed, and is due again."""
    return replace(row, lease_until=None, retry_at=now, reason=reason)


def is_exhausted(
    row: TableRun, idleness: timedelta, now: datetime, reopened_at: datetime | None = None
) -> bool:
    """Return whether a bounded source has ended: a run found no row for so long after the last.

    Rows of transactions that were running are found by a later run, so such a run says nothing.
    `reopened_at`: when it was last read on after an end.
    """
    if state_of(row, now) is not RunState.COMPLETE or row.rows_read or row.held_by:
        return False
    quiet_since = [at for at in (row.first_at, row.last_rows_at, reopened_at) if at is not None]
    return row.started_at - max(quiet_since) > idleness


def overdue(row: TableRun, every: timedelta, now: datetime) -> timedelta | None:
    """Return for how long a source was not read to its end, if that is too long; else None."""
    age = now - (row.completed_at or row.first_at)
    return age if age > LATE_AFTER * every else None


class TableRuns(Protocol):
    """The stored runs. Every method raises `SystemUnavailable`."""

    async def read(self) -> tuple[datetime, Mapping[TopicName, TableRun]]:
        """Return the time of the store, and the last run of each source."""
        ...

    async def put(self, topic: TopicName, before: TableRun | None, after: TableRun) -> bool:
        """Replace the row `before`; return False if it has changed, or the source is gone."""
        ...


@dataclass(slots=True)
class MemoryTableRuns:
    """In-memory `TableRuns`; `topics` are those that exist, `now` is the store's clock."""

    now: datetime
    topics: Collection[TopicName]
    rows: dict[TopicName, TableRun] = field(default_factory=dict)

    async def read(self) -> tuple[datetime, Mapping[TopicName, TableRun]]:
        return self.now, dict(self.rows)

    async def put(self, topic: TopicName, before: TableRun | None, after: TableRun) -> bool:
        if topic not in self.topics or self.rows.get(topic) != before:
            return False
        self.rows[topic] = after
        return True
