"""A request for training data as it is stored, and every change of it as a pure function.

Theory. A change takes the row and the database's time and returns the new row, or raises and
changes nothing; stores apply it under a lock (`request_store`). Two numbers keep runs apart.
`starts` counts runs that the definition server has started, and is part of their names. `epoch`
counts claims: a run may write only while its epoch is that of the row, so a run that was
replaced, or whose request was cancelled, cannot change the outcome.

Example. Run 1 claims the request (epoch 1) and its machine stops. The lease ends, run 2 is started
and claims it (epoch 2). When run 1 continues, its next report is refused and it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from fennel_core.offline.errors import OfflineError
from fennel_core.offline.request_states import OPEN, RequestEvent, RequestState, next_state
from fennel_core.vocab.ids import BranchName, WorkspaceId

START_LEASE: Final = timedelta(minutes=10)
"""How long a started run may take until it claims its request: Airflow schedules it, a JVM starts,
and other runs may hold the workers."""
RUN_LEASE: Final = timedelta(seconds=45)
"""A run that has not reported for this long is dead. It reports every few seconds."""
AFTER_REFUSAL: Final = timedelta(seconds=15)
"""Pause after the orchestrator did not accept a run."""
MAX_STARTS: Final = 3
"""Runs that may be lost before the request fails: it would kill further ones as well."""
ALMOST: Final = 0.99
"""The most that a run reports before its result counts."""
LOST: Final = "offline-run-lost"


class RunSuperseded(OfflineError):
    """Another run has claimed the request, or it has ended: this run must stop."""

    code = "offline-run-superseded"


@dataclass(frozen=True, slots=True)
class RequestDefinition:
    """What is to be computed. `input_key`: of the rows, relative to the installation's prefix.

    `earliest_us` and `latest_us` are the bounds of the rows' times, None without any.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    timestamp_column: str
    workflow: str
    row_count: int
    input_key: str
    earliest_us: int | None
    latest_us: int | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row of the input, counted from 0, and why it has no features."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a result; keys are relative to the installation's prefix, `failed_key` is empty
    without failed rows.
    """

    object_key: str
    failed_key: str
    row_count: int
    failed: int


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What a run has written. `columns_key`: a small result as JSON, None for a large one."""

    prefix: str
    files: tuple[StoredFile, ...]
    sample: tuple[FailedRow, ...]
    columns_key: str | None
    warnings: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        return sum(file.failed for file in self.files)


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request failed: a stable code, and a text for its user."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """One request."""

    id: str
    workspace: WorkspaceId
    branch: BranchName
    actor: str
    definition: RequestDefinition
    created_at: datetime
    state: RequestState = RequestState.QUEUED
    starts: int = 0
    epoch: int = 0
    lease_until: datetime | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    completion: float = 0.0
    result: RequestResult | None = None
    failure: RequestFailure | None = None
    removed_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    def has_run(self, now: datetime) -> bool:
        """Whether a run was started or works on it, and has time left."""
        return self.is_open and self.lease_until is not None and self.lease_until > now


def requests_to_start(
    open_requests: Sequence[OfflineRequest], now: datetime, at_once: int
) -> tuple[OfflineRequest, ...]:
    """Return the requests that need a run now, oldest first, `at_once` of a workspace at a time."""
    running: dict[WorkspaceId, int] = {}
    for row in open_requests:
        running[row.workspace] = running.get(row.workspace, 0) + row.has_run(now)
    chosen = []
    for row in sorted(open_requests, key=lambda each: (each.created_at, each.id)):
        if not row.has_run(now) and running[row.workspace] < at_once:
            running[row.workspace] += 1
            chosen.append(row)
    return tuple(chosen)


def started(row: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row for whose next run the orchestrator is asked; it fails after `MAX_STARTS`.

    Raises `RunSuperseded` if it has a run or needs none.
    """
    if not row.is_open or row.has_run(now):
        raise RunSuperseded(f"request `{row.id}` needs no run; nothing is to be done")
    if row.starts >= MAX_STARTS:
        text = (
            f"{row.starts} runs of the request ended without an outcome: they were killed, or ran "
            "out of memory. See the log of the DAG `offline_query`; ask for fewer rows, or raise "
            "FENNEL_OFFLINE_MEMORY"
        )
        return _failed(row, RequestFailure(LOST, text), now)
    return replace(row, starts=row.starts + 1, lease_until=now + START_LEASE)


def start_refused(row: OfflineRequest, number: int, now: datetime) -> OfflineRequest:
    """Return the row whose run `number` the orchestrator did not accept; it is tried again."""
    if not row.is_open or row.starts != number or row.epoch:
        return row
    return replace(row, starts=number - 1, lease_until=now + AFTER_REFUSAL)


def still_starting(row: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row of a request whose run has not reported, but the orchestrator still has it."""
    if not row.is_open or row.has_run(now):
        return row
    return replace(row, lease_until=now + RUN_LEASE)


def claimed(row: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row for a run that begins; earlier runs are fenced. Raises `TransitionRefused`."""
    return replace(
        row,
        state=next_state(row.state, RequestEvent.CLAIM),
        epoch=row.epoch + 1,
        lease_until=now + RUN_LEASE,
        began_at=row.began_at or now,
        completion=0.0,
    )


def reported(row: OfflineRequest, epoch: int, completion: float, now: datetime) -> OfflineRequest:
    """Return the row after a report of its run. Raises `RunSuperseded`."""
    _require_current(row, epoch)
    reached = max(row.completion, min(completion, ALMOST))
    return replace(row, completion=reached, lease_until=now + RUN_LEASE)


def finished(
    row: OfflineRequest, epoch: int, result: RequestResult, now: datetime
) -> OfflineRequest:
    """Return the row whose run has written a result. Raises `RunSuperseded`."""
    _require_current(row, epoch)
    ended = _ended(row, RequestEvent.FINISH, now)
    return replace(ended, result=result, completion=1.0)


def failed(
    row: OfflineRequest, epoch: int, failure: RequestFailure, now: datetime
) -> OfflineRequest:
    """Return the row whose run cannot succeed. Raises `RunSuperseded`."""
    _require_current(row, epoch)
    return _failed(row, failure, now)


def cancelled(row: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row that its user has cancelled. Raises `TransitionRefused`."""
    if row.state is RequestState.CANCELLED:
        return row
    ended = _ended(row, RequestEvent.CANCEL, now)
    # A run works until it notices, so the lease stays, and objects are removed after that.
    lease = row.lease_until if row.state is RequestState.RUNNING else None
    return replace(ended, lease_until=lease)


def removed(row: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row whose objects were deleted."""
    assert not row.is_open, "the objects of an open request are in use"
    return replace(row, removed_at=row.removed_at or now)


def is_removable(row: OfflineRequest, now: datetime, kept: timedelta) -> bool:
    """Return whether the objects of a request may be deleted.

    A result is kept for a time; what a failed or cancelled request has left is deleted when no run
    can still be writing.
    """
    if row.ended_at is None or row.removed_at is not None:
        return False
    if row.state is RequestState.DONE:
        return row.ended_at + kept <= now
    return row.lease_until is None or row.lease_until <= now


def _require_current(row: OfflineRequest, epoch: int) -> None:
    if row.state is not RequestState.RUNNING:
        raise RunSuperseded(f"request `{row.id}` is {row.state}; its run ends")
    if row.epoch != epoch:
        raise RunSuperseded(f"another run has claimed request `{row.id}`; this run ends")


def _failed(row: OfflineRequest, failure: RequestFailure, now: datetime) -> OfflineRequest:
    return replace(_ended(row, RequestEvent.FAIL, now), failure=failure)


def _ended(row: OfflineRequest, event: RequestEvent, now: datetime) -> OfflineRequest:
    state = next_state(row.state, event)
    return replace(row, state=state, ended_at=now, lease_until=None)
