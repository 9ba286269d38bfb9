"""The bodies of the tasks of the DAG `offline_query`; see `task_bodies`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any, TypeVar

import psutil
from airflow.sdk.exceptions import AirflowFailException

from fennel_airflow.task_bodies import reporting
from fennel_core.connections import postgres
from fennel_core.connections.airflow_users import actor_of, permit
from fennel_core.connections.audit_events import Action, audited_command
from fennel_core.connections.postgres import Pool
from fennel_core.connections.roles import Permission
from fennel_core.connections.workspaces import checked_name
from fennel_core.offline.api_errors import OfflineQueryUnknown
from fennel_core.offline.parts import offline_requests
from fennel_core.offline.request_postgres import PostgresRequests
from fennel_core.offline.request_row import OfflineRequest
from fennel_core.offline.request_service import FormRun
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.run_watch import RunWatch, family_of
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName

T = TypeVar("T")
log = logging.getLogger("fennel.airflow")
REQUIRED = ("workspace", "inputs", "outputs", "timestamp_column", "rows")


def accept(params: Mapping[str, Any], user: str, run: FormRun) -> str:
    """Return the id of the request to compute: that of the API, or that of the form of `run`."""
    request_id = reporting(lambda: _accepted(params, user, run))
    _log_size(_row(request_id))
    return request_id


def is_cancelled(request_id: str) -> bool:
    """Return whether nothing is to be computed: it was cancelled, or its workspace deleted."""
    row = _found(request_id)
    return row is None or row.state is RequestState.CANCELLED


@contextmanager
def watched(request_id: str) -> Iterator[None]:
    """End the programs below this process if the request is cancelled during the block."""
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    others = frozenset(_children())

    def programs() -> list[psutil.Process]:
        return [each for each in _children() if each not in others]

    async def watch(pool: Pool) -> None:
        await RunWatch(PostgresRequests(pool), request_id, programs).run(ended)

    thread = Thread(target=lambda: loop.run_until_complete(_in_pool(watch)), name="watch")
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def _children() -> list[psutil.Process]:
    """Return the processes below this one."""
    return family_of(os.getpid())[1:]


def raise_failure(request_id: str) -> None:
    """Fail the task for good if the request has failed, with its reason."""
    row = _found(request_id)
    if row is not None and row.failure is not None:
        raise AirflowFailException(f"{row.failure.text} [{row.failure.code}]")


def log_outcome(request_id: str) -> None:
    """Log how the request ended."""
    row = _found(request_id)
    if row is None:
        log.info("offline query %s was deleted with its workspace", request_id)
        return
    failed = 0 if row.result is None else row.result.failed
    log.info(
        "offline query %s is %s: %d rows, %d failed",
        row.id,
        row.state,
        row.definition.row_count,
        failed,
    )
    for each in () if row.result is None else row.result.sample:
        log.warning("row %d failed: %s", each.row, each.reason)


def _log_size(row: OfflineRequest) -> None:
    """Log what a request has to read before it begins."""
    rows, estimate = row.definition.row_count, row.definition.estimate
    if estimate is None:
        log.info("offline query %s: %d rows; what they read is not known", row.id, rows)
        return
    log.info(
        "offline query %s: %d rows, about %d versions in %d bytes of history and %d records of "
        "topics to read",
        *(row.id, rows, estimate.versions, estimate.bytes, estimate.tail_records),
    )


def _accepted(params: Mapping[str, Any], user: str, run: FormRun) -> str:
    settings = Settings()
    if params["request_id"] is not None:
        row = _row(params["request_id"])
        if settings.airflow_workspaces and user != settings.airflow_user:
            subject = f"request {row.id}"
            permit(settings, user, {row.workspace}, Permission.READ, Action.QUERY_OFFLINE, subject)
        return row.id
    missing = [name for name in REQUIRED if not params[name]]
    if missing:
        raise ApiError(
            400,
            "form-incomplete",
            f"the form has no {' and no '.join(missing)}. Fill in all of them",
        )
    workspace, branch = checked_name(params["workspace"]), BranchName(params["branch"])
    subject = f"branch {branch}"
    permit(settings, user, {workspace}, Permission.READ, Action.QUERY_OFFLINE, subject)
    dsn = settings.postgres_dsn.get_secret_value()

    async def submit(pool: Pool) -> str:
        requests = offline_requests(settings, pool, lambda: None)
        status = await requests.submit((workspace, branch), actor_of(user), _body(params), run)
        for warning in status["warnings"]:
            log.warning("%s", warning)
        return str(status["request_id"])

    with audited_command(dsn, actor_of(user), Action.QUERY_OFFLINE, subject, workspace):
        return _with_pool(submit)


def _body(params: Mapping[str, Any]) -> bytes:
    """Return the form as the body that the client sends."""
    return json.dumps(
        {
            "input_features": params["inputs"],
            "output_features": params["outputs"],
            "timestamp_column": params["timestamp_column"],
            "input": {"Pandas": params["rows"]},
            "workflow": params["workflow"],
        }
    ).encode()


def _row(request_id: str) -> OfflineRequest:
    row = _found(request_id)
    if row is None:
        raise OfflineQueryUnknown(request_id)
    return row


def _found(request_id: str) -> OfflineRequest | None:
    async def read(pool: Pool) -> OfflineRequest | None:
        return await PostgresRequests(pool).read(request_id)

    return _with_pool(read)


def _with_pool(work: Callable[[Pool], Awaitable[T]]) -> T:
    return asyncio.run(_in_pool(work))


async def _in_pool(work: Callable[[Pool], Awaitable[T]]) -> T:
    dsn = Settings().postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name="fennel-airflow", size=2) as pool:
        return await work(pool)
