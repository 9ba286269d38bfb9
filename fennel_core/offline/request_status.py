"""What the API returns for a request.

The client documents `request_id`, the bucket and prefix of the output, `completion_rate` and
`failure_rate`: 1.0 for a completion rate means that all processing has ended, so a program that
waits for it also ends when the request failed or was cancelled, and then the failure rate is 1.0,
too. While a request is running, the rate counts the rows that are known to have failed so far.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from fennel_core.offline.request_files import request_folder
from fennel_core.offline.request_row import OfflineRequest, RequestResult
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.s3_places import published_key


@dataclass(frozen=True, slots=True)
class ResultPlaces:
    """Where results are: a bucket, the installation's prefix, and for how long."""

    bucket: str
    root: str
    kept: timedelta


def summary_of(row: OfflineRequest, places: ResultPlaces) -> dict[str, Any]:
    """Return a request as a list shows it."""
    wanted = row.definition
    return {
        "request_id": row.id,
        "state": row.state.value,
        "output_bucket": places.bucket if wanted.target is None else wanted.target.bucket,
        "output_prefix": (
            places.root + _prefix(row) if wanted.target is None else wanted.target.folder(row.id)
        ),
        "completion_rate": 1.0 if not row.is_open else row.completion,
        "failure_rate": _failure_rate(row),
        "rows": _row_count(row),
        "failed_rows": _failed_rows(row),
        "estimate": None if wanted.estimate is None else asdict(wanted.estimate),
        "branch": row.branch,
        "workflow": wanted.workflow,
        "requested_by": row.actor,
        "created_at": _time(row.created_at),
        "began_at": _time(row.began_at),
        "ended_at": _time(row.ended_at),
        "expires_at": _expires_at(row, places),
    }


def status_of(row: OfflineRequest, places: ResultPlaces) -> dict[str, Any]:
    """Return everything about a request but its features."""
    wanted, result = row.definition, row.result
    error = None if row.failure is None else {"code": row.failure.code, "text": row.failure.text}
    return summary_of(row, places) | {
        "inputs": wanted.inputs,
        "outputs": wanted.outputs,
        "timestamp_column": wanted.timestamp_column,
        "warnings": [*wanted.warnings, *(() if result is None else result.warnings)],
        "error": error,
        "failures": [] if result is None else _sample(result),
        "files": _files(row, places),
    }


def _prefix(row: OfflineRequest) -> str:
    if row.result is not None:
        return row.result.prefix
    return f"{request_folder(row.workspace, row.id)}result"


def _failed_rows(row: OfflineRequest) -> int | None:
    """Return the failed rows, so far while a run works; None if no run does or has finished."""
    if row.result is not None:
        return row.result.failed
    return row.failed_rows if row.state is RequestState.RUNNING else None


def _failure_rate(row: OfflineRequest) -> float | None:
    if row.state in {RequestState.FAILED, RequestState.CANCELLED}:
        return 1.0
    failed = _failed_rows(row)
    rows = _row_count(row)
    return None if failed is None or rows is None else failed / max(rows, 1)


def _row_count(row: OfflineRequest) -> int | None:
    """Return the rows; None as long as those of files are not counted."""
    if row.result is not None:
        return row.result.row_count
    return row.definition.row_count if row.definition.source is None else None


def _expires_at(row: OfflineRequest, places: ResultPlaces) -> str | None:
    if row.state is not RequestState.DONE or row.ended_at is None:
        return None
    return _time(row.removed_at or row.ended_at + places.kept)


def _sample(result: RequestResult) -> list[dict[str, Any]]:
    return [{"row": each.row, "reason": each.reason} for each in result.sample]


def _files(row: OfflineRequest, places: ResultPlaces) -> list[dict[str, Any]]:
    """Return the files of a result: those in the user's bucket, which do not expire, or ours."""
    result, target = row.result, row.definition.target
    if result is None or (target is None and row.removed_at):
        return []
    found = []
    for number, file in enumerate(result.files):
        key, failed_key = places.root + file.object_key, places.root + file.failed_key
        if target is not None:
            folder = target.folder(row.id)
            key, failed_key = (published_key(folder, number, failed=f) for f in (False, True))
        found.append(
            {
                "key": key,
                "failed_key": failed_key if file.failed_key else None,
                "rows": file.row_count,
                "failed_rows": file.failed,
            }
        )
    return found


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="milliseconds")
