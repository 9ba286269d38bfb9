"""The calls about training data, without HTTP: submit, status, list, cancel and download.

A request is checked and its rows are stored on S3 before it has a row in Postgres, so what is
accepted can be computed, and a restart of any part loses nothing. An input whose request was never
stored is found by its id and deleted (`request_removal`).

A run of Airflow's form stores its own request: the id is a function of the run, so a task that is
repeated finds the request that it has stored, and no other run is started while that one exists.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.object_store import ObjectStore
from fennel_core.offline import request_row
from fennel_core.offline.api_errors import (
    OfflineQueryEnded,
    OfflineQueryInvalid,
    OfflineQueryUnknown,
    OfflineQueueFull,
    OfflineResultMissing,
)
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.place_checks import NONE_ALLOWED, RequestPlaces
from fennel_core.offline.planned_query import PlannedQuery
from fennel_core.offline.request_body import (
    CheckedOfflineQuery,
    OfflineBody,
    check_request,
    parse_body,
)
from fennel_core.offline.request_files import input_file, input_key
from fennel_core.offline.request_row import (
    NewRequest,
    OfflineRequest,
    ReadEstimate,
    RequestDefinition,
)
from fennel_core.offline.request_states import RequestState, TransitionRefused
from fennel_core.offline.request_status import ResultPlaces, status_of, summary_of
from fennel_core.offline.request_store import RequestStore
from fennel_core.offline.s3_keys import keys_object
from fennel_core.offline.s3_places import PlaceKeys
from fennel_core.query.errors import ViewOutdated
from fennel_core.query.view import BranchKey, ServingSource, ServingVersion, View
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import Micros, WorkspaceId
from fennel_core.vocab.problems import Problem

_FORM_RUNS: Final = uuid.UUID("4a1f7f9c-5e0b-4c0e-9d50-3f2f0e6d8a71")
"""Namespace of the ids of requests from forms. Never change it."""
LISTED: Final = 100
"""Requests of a list without a number."""
log = logger(__name__)


class RequestObjects(ObjectStore, Protocol):
    """The objects of this installation (`connections.installation`)."""

    async def root(self) -> str:
        """Return the prefix of all keys."""
        ...


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """`queued`: requests of a workspace that have not ended. `kept_s`: of a result."""

    queued: int
    places: Callable[[str], ResultPlaces]


@dataclass(frozen=True, slots=True)
class FormRun:
    """A run of the DAG that a user has started with its form. `name`: the id of the run;
    `run_after`: its time, which no run of the same name shares after the first was deleted.
    """

    name: str
    run_after: datetime

    @property
    def request_id(self) -> str:
        """The id of the request that the run stores."""
        return uuid.uuid5(_FORM_RUNS, f"{self.name} {self.run_after.timestamp()}").hex


@dataclass(frozen=True, slots=True)
class OfflineRequests:
    """Serves the calls. `wake`: look for requests to start now. `estimate`: see
    `planning.estimate_read`. `places`: users' buckets.
    """

    store: RequestStore
    serving: ServingSource
    objects: RequestObjects
    limits: RequestLimits
    new_id: Callable[[], str]
    wake: Callable[[], None]
    estimate: Callable[[PlannedQuery, Micros | None], Awaitable[ReadEstimate]]
    places: RequestPlaces = NONE_ALLOWED

    async def submit(
        self, key: BranchKey, actor: str, body: bytes, form: FormRun | None = None
    ) -> dict[str, Any]:
        """Check and store a request, and return its status. `form`: the run that computes it.

        Raises `OfflineApiError`, `QueryError` and SystemUnavailable.
        """
        id_ = self.new_id() if form is None else form.request_id
        stored = None if form is None else await self.store.read(id_)
        if stored is None:
            stored = await self._store(key, actor, body, id_, None if form is None else form.name)
        self.wake()
        return status_of(stored, await self._places())

    async def _store(
        self, key: BranchKey, actor: str, body: bytes, id_: str, run: str | None
    ) -> OfflineRequest:
        workspace, queued = key[0], self.limits.queued
        if await self.store.count_open(workspace) >= queued:
            raise OfflineQueueFull(workspace, queued)  # before its rows are read
        version = await self.serving.read_serving(key, None)
        assert version is None or isinstance(version, ServingVersion), "no version is known"
        now = await self.store.now()
        checked = partial(check_request, places=self.places.rules)
        asked, file = await asyncio.to_thread(partial(_checked, checked, body, version, now))
        estimate = await self._estimate(asked)
        if asked.source is not None or asked.target is not None:
            await asyncio.to_thread(self.places.check, asked, id_)
        keys_key = await self._keys_key(workspace, id_, asked.keys)
        input_ = "" if asked.source else input_key(workspace, id_, file)
        definition = _definition(asked, input_, estimate, keys_key)
        if input_:
            await self.objects.put(input_, file)
        return await self.store.add(NewRequest(id_, *key, actor, definition, run), queued)

    async def _keys_key(self, workspace: WorkspaceId, id_: str, keys: PlaceKeys) -> str:
        """Store the keys of a request, and return the key of their object; empty without keys."""
        if keys.is_empty:
            return ""
        sealed = self.places.sealed(workspace, id_, keys)
        key = keys_object(workspace, id_, sealed)
        await self.objects.put(key, sealed)
        return key

    async def _estimate(self, asked: CheckedOfflineQuery) -> ReadEstimate | None:
        """Return what a request reads; None if that cannot be known now.

        Raises `OfflineQueryInvalid` if what it reads is not there.
        """
        _, latest = asked.bounds
        try:
            return await self.estimate(asked.planned, None if latest is None else Micros(latest))
        except OfflineError as refused:
            problem = Problem(refused.code, "query", str(refused))
            raise OfflineQueryInvalid([problem]) from refused
        except (ConnectionsError, ViewOutdated) as unknown:
            log.warning("offline query accepted without an estimate", reason=str(unknown))
            return None

    async def status(self, workspace: WorkspaceId, id_: str) -> dict[str, Any]:
        """Return a request, with its features if they are few. Raises `OfflineQueryUnknown`."""
        row = await self._row(workspace, id_)
        status = status_of(row, await self._places())
        if row.result is not None and row.result.columns_key and row.removed_at is None:
            columns = await self.objects.get(row.result.columns_key)
            if columns is not None:
                status["data"] = msgspec.Raw(columns)
        return status

    async def newest(self, workspace: WorkspaceId, rows: int) -> dict[str, Any]:
        """Return the newest requests of a workspace, newest first."""
        places = await self._places()
        found = await self.store.newest(workspace, rows)
        return {"requests": [summary_of(row, places) for row in found]}

    async def cancel(self, workspace: WorkspaceId, id_: str) -> dict[str, Any]:
        """Cancel a request; its run stops within seconds. Again without effect.

        Raises `OfflineQueryUnknown` and `OfflineQueryEnded`.
        """
        row = await self._row(workspace, id_)
        try:
            changed = await self.store.change(id_, request_row.cancelled)
        except TransitionRefused as refused:
            current = await self.store.read(id_) or row
            raise OfflineQueryEnded(id_, current.state) from refused
        if changed is None:
            raise OfflineQueryUnknown(id_)
        self.wake()
        return status_of(changed, await self._places())

    async def file(
        self, workspace: WorkspaceId, id_: str, number: int, failed: bool
    ) -> AsyncIterator[bytes]:
        """Return file `number` of a result, or that of its failed rows, as Parquet in pieces.

        Raises `OfflineQueryUnknown` and `OfflineResultMissing`.
        """
        row = await self._row(workspace, id_)
        if row.result is None or row.state is not RequestState.DONE:
            raise OfflineResultMissing(f"offline query `{id_}` is {row.state} and has no result")
        if row.removed_at is not None:
            raise OfflineResultMissing(
                f"the result of offline query `{id_}` has expired; send the request again"
            )
        files = row.result.files
        if not 0 <= number < len(files):
            raise OfflineResultMissing(
                f"the result of offline query `{id_}` has {len(files)} files, counted from 0; "
                f"there is no file {number}"
            )
        key = files[number].failed_key if failed else files[number].object_key
        pieces = await self.objects.stream(key) if key else None
        if pieces is None:
            what = "failed rows" if failed else "object"
            raise OfflineResultMissing(f"file {number} of offline query `{id_}` has no {what}")
        return pieces

    async def _row(self, workspace: WorkspaceId, id_: str) -> OfflineRequest:
        row = None if "\0" in id_ else await self.store.read(id_)
        if row is None or row.workspace != workspace:
            raise OfflineQueryUnknown(id_)
        return row

    async def _places(self) -> ResultPlaces:
        return self.limits.places(await self.objects.root())


def _checked(
    check: Callable[[OfflineBody, View, datetime], CheckedOfflineQuery],
    body: bytes,
    version: ServingVersion | None,
    now: datetime,
) -> tuple[CheckedOfflineQuery, bytes]:
    asked = check(parse_body(body), View.of(version), now)
    return asked, b"" if asked.source else input_file(asked.rows)


def _definition(
    asked: CheckedOfflineQuery, key: str, estimate: ReadEstimate | None, keys_key: str
) -> RequestDefinition:
    earliest, latest = asked.bounds
    return RequestDefinition(
        asked.inputs,
        asked.outputs,
        asked.timestamp_column,
        asked.workflow,
        asked.rows.height,
        key,
        earliest,
        latest,
        asked.warnings,
        estimate,
        asked.source,
        asked.target,
        keys_key,
    )
