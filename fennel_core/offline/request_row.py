"""A request for training data as it is stored, and every change of it as a pure function.

Theory. A change takes the row and the database's time and returns the new row, or raises and
changes nothing; stores apply it under a lock (`request_store`). Two numbers keep runs apart.
`starts` counts runs that were asked for, and is part of their names, but for the first run of a
request from Airflow's form, which is the form's own. `epoch` counts claims: a run may write only
while its epoch is that of the row, so a run that was replaced, or whose request was cancelled,
cannot change the outcome.

Example. Run 1 claims the request (epoch 1) and its machine stops. The lease ends, run 2 is started
and claims it (epoch 2). When run 1 continues, its next report is refused and it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from fennel_core.offline.api_errors import OfflineQueueFull
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.request_states import OPEN, RequestEvent, RequestState, next_state
from fennel_core.offline.s3_places import S3Source, S3Target
from fennel_core.vocab.ids import BranchName, WorkspaceId

START_LEASE: Final = timedelta(minutes=10)
"""How long a started run may take until it claims its request: Airflow schedules it, a JVM starts,
and other runs may hold the workers."""
RUN_LEASE: Final = timedelta(seconds=45)
"""A run that has not reported for this long is dead. It reports every few seconds."""
AFTER_REFUSAL: Final = timedelta(seconds=15)
"""Pause after the orchestrator did not accept a run, or a run ended before it claimed."""
MAX_STARTS: Final = 3
"""Runs that may be lost before the request fails: it would kill further ones as well."""
MAX_CLAIMS: Final = 3
"""Claims that may end without an outcome; Airflow claims again by itself, without a start."""
ALMOST: Final = 0.99
"""The most that a run reports before its result counts."""
LOST: Final = "offline-run-lost"


class RunSuperseded(OfflineError):
    """Another run has claimed the request, or it has ended: this run must stop."""

    code = "offline-run-superseded"


@dataclass(frozen=True, slots=True)
class ReadEstimate:
    """What a request reads besides its rows, as known when it is stored.

    `versions` of datasets in files of history, the `bytes` of those files, of which some columns
    are read, and `tail_records` of topics that are not in history yet: batches of versions.
    """

    versions: int
    bytes: int
    tail_records: int


@dataclass(frozen=True, slots=True)
class RequestDefinition:
    """What is to be computed. `input_key`: of the rows, relative to the installation's prefix.

    `earliest_us` and `latest_us` are the bounds of the rows' times, None without any. `estimate`:
    None if it was not known.

    `source`: the place of rows that do not come with the request; then `input_key` is empty, and
    their number, 0 here, is known when the result is. `target`: where the result is copied to.
    `keys_key`: the object with the sealed keys of both, empty without keys.
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
    estimate: ReadEstimate | None = None
    source: S3Source | None = None
    target: S3Target | None = None
    keys_key: str = ""


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

    @property
    def row_count(self) -> int:
        return sum(file.row_count for file in self.files)


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request failed: a stable code, and a text for its user."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is: the part of its work that is done, and the rows that have failed so far."""

    completion: float
    failed_rows: int = 0


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request to store. `run_name`: the run of Airflow's form that computes it."""

    id: str
    workspace: WorkspaceId
    branch: BranchName
    actor: str
    definition: RequestDefinition
    run_name: str | None = None


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """One request. `run_name`: of the run that was started last."""

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
    run_name: str | None = None
    failed_rows: int = 0

    @property
    def newest_run(self) -> str | None:
        """The name of the run that was started last, None before the first."""
        return (self.run_name or run_name(self.id, self.starts)) if self.starts else None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    def has_run(self, now: datetime) -> bool:
        """Whether a run was started or works on it, and has time left."""
        return self.is_open and self.lease_until is not None and self.lease_until > now


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Runs at a time: of one workspace, and of all together (None: any number)."""

    of_workspace: int
    in_total: int | None = None


def run_name(id_: str, number: int) -> str:
    """Return the name of run `number` of a request, in Airflow and in logs."""
    return f"offline-{id_}-{number}"


def admitted(new: NewRequest, open_requests: int, limit: int, now: datetime) -> OfflineRequest:
    """Return the row of a new request; `open_requests`: those of its workspace that have not ended.

    Raises `OfflineQueueFull`.
    """
    if open_requests >= limit:
        raise OfflineQueueFull(new.workspace, limit)
    place = (new.id, new.workspace, new.branch, new.actor, new.definition)
    row = OfflineRequest(*place, created_at=now)
    if new.run_name is None:
        return row
    # It exists before its request does, so no other run may be started for the request.
    return replace(row, starts=1, run_name=new.run_name, lease_until=now + START_LEASE)


def requests_to_start(
    open_requests: Sequence[OfflineRequest], now: datetime, limits: RunLimits
) -> tuple[OfflineRequest, ...]:
    """Return the requests that need a run now, oldest first.

    A workspace with fewer runs goes before one with more, so that a long queue delays no other's.
    """
    running = Counter(row.workspace for row in open_requests if row.has_run(now))
    waiting = [row for row in open_requests if not row.has_run(now)]
    total = len(open_requests) if limits.in_total is None else limits.in_total
    chosen: list[OfflineRequest] = []
    while waiting and running.total() < total:
        row = min(waiting, key=lambda each: (running[each.workspace], *_age(each)))
        if running[row.workspace] >= limits.of_workspace:
            break
        running[row.workspace] += 1
        waiting.remove(row)
        chosen.append(row)
    return tuple(sorted(chosen, key=_age))


def started(row: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row for whose next run the orchestrator is asked; it fails after `MAX_STARTS`.

    Raises `RunSuperseded` if it has a run or needs none.
    """
    if not row.is_open or row.has_run(now):
        raise RunSuperseded(f"request `{row.id}` needs no run; nothing is to be done")
    if row.starts >= MAX_STARTS or row.epoch >= MAX_CLAIMS:
        return _lost(row, now)
    number = row.starts + 1
    return replace(
        row, starts=number, run_name=run_name(row.id, number), lease_until=now + START_LEASE
    )


def start_refused(row: OfflineRequest, asked: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row after the orchestrator did not accept the run of `asked` (see `started`).

    It is tried again, and does not count; unless a run has begun since.
    """
    if not row.is_open or (row.starts, row.epoch) != (asked.starts, asked.epoch):
        return row
    return replace(row, starts=row.starts - 1, run_name=None, lease_until=now + AFTER_REFUSAL)


def still_starting(row: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row of a request whose run has not reported, but the orchestrator still has it."""
    if not row.is_open or row.has_run(now):
        return row
    return replace(row, lease_until=now + RUN_LEASE)


def claimed(row: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row for a run that begins; earlier runs are fenced.

    It fails if `MAX_CLAIMS` runs have ended without an outcome. Raises `TransitionRefused`.
    """
    state = next_state(row.state, RequestEvent.CLAIM)
    if row.epoch >= MAX_CLAIMS:
        return _lost(row, now)
    return replace(
        row,
        state=state,
        epoch=row.epoch + 1,
        lease_until=now + RUN_LEASE,
        began_at=row.began_at or now,
        completion=0.0,
        failed_rows=0,
    )


def reported(
    row: OfflineRequest, epoch: int, progress: RunProgress, now: datetime
) -> OfflineRequest:
    """Return the row after a report of its run. Raises `RunSuperseded`."""
    _require_current(row, epoch)
    return replace(
        row,
        completion=max(row.completion, min(progress.completion, ALMOST)),
        failed_rows=max(row.failed_rows, progress.failed_rows),
        lease_until=now + RUN_LEASE,
    )


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
    return ended if row.state is RequestState.RUNNING else replace(ended, lease_until=None)


def released(row: OfflineRequest, now: datetime) -> OfflineRequest:
    """Return the row of which a run has ended: the objects of a cancelled one may be deleted now.

    Of one that was not claimed, the orchestrator is soon asked whether the newest run exists.
    """
    if row.state is RequestState.CANCELLED:
        return replace(row, lease_until=None)
    if row.state is RequestState.QUEUED and row.has_run(now):
        until = now + AFTER_REFUSAL
        return replace(row, lease_until=min(until, row.lease_until or until))
    return row


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


def is_forgettable(row: OfflineRequest, now: datetime, kept: timedelta) -> bool:
    """Return whether a request that has ended need not be listed any more.

    Its objects were deleted before, so none is left without a row that says whose it is.
    """
    if row.ended_at is None or row.removed_at is None:
        return False
    return row.ended_at + kept <= now


def _require_current(row: OfflineRequest, epoch: int) -> None:
    if row.state is not RequestState.RUNNING:
        raise RunSuperseded(f"request `{row.id}` is {row.state}; its run ends")
    if row.epoch != epoch:
        raise RunSuperseded(f"another run has claimed request `{row.id}`; this run ends")


def _lost(row: OfflineRequest, now: datetime) -> OfflineRequest:
    text = (
        f"{max(row.starts, row.epoch)} runs of the request ended without an outcome: they were "
        "killed, or ran out of memory. See the log of the DAG `offline_query`; ask for fewer rows, "
        "or raise FENNEL_OFFLINE_MEMORY"
    )
    return _failed(row, RequestFailure(LOST, text), now)


def _failed(row: OfflineRequest, failure: RequestFailure, now: datetime) -> OfflineRequest:
    return replace(_ended(row, RequestEvent.FAIL, now), failure=failure)


def _ended(row: OfflineRequest, event: RequestEvent, now: datetime) -> OfflineRequest:
    """Return the row at its end. The lease stays: a run works until it notices."""
    return replace(row, state=next_state(row.state, event), ended_at=now)


def _age(row: OfflineRequest) -> tuple[datetime, str]:
    return (row.created_at, row.id)
