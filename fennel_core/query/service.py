"""The calls that a query server serves itself, without HTTP.

A workspace, a branch and a body go in, JSON bytes come out. Every call uses one view from start to
end. A view may be behind Postgres by as long as a notification takes, so a call that fails because
the view lacks something (a branch, a dataset, a feature, a job) is repeated once on the reloaded
view. Nothing else is repeated here. Every call but the barrier, which has its own, ends at one
deadline, which cancels its lookups in the slots and its extractors in the executors.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol, TypeVar

from prometheus_client import Counter, Histogram

from fennel_core.executors.client import Callbacks, Executors
from fennel_core.query.barrier import Barrier
from fennel_core.query.batch_thread import BYTES_IN_LOOP, ROWS_IN_LOOP, off_loop
from fennel_core.query.bodies import (
    DEFAULT_WORKFLOW,
    FeatureQuery,
    LookupBody,
    dump,
    dump_columns,
    dump_rows,
    key_columns,
    lookup_body,
    query_body,
    timestamp_column,
)
from fennel_core.query.columns import QueryColumn
from fennel_core.query.datasets import (
    ExtractorLookups,
    LookupResult,
    NotLaterThan,
    chosen_fields,
    look_up,
    serving_check,
)
from fennel_core.query.encode import json_values
from fennel_core.query.errors import (
    ExpressionRejected,
    LookupRejected,
    MissingInput,
    QueryRejected,
    QueryTimeout,
    UnknownDataset,
    UnknownField,
    ViewOutdated,
)
from fennel_core.query.execution import KeyTrace, ProgramRunner, QueryRequest
from fennel_core.query.inspect import Inspector
from fennel_core.query.log_blocks import LoggedQuery, LogOptions, kept_rows, sampled_rows
from fennel_core.query.lookups import Lookups, ReadOutcome
from fennel_core.query.program import QueryProgram, ServedDataset
from fennel_core.query.values import input_column
from fennel_core.query.view import BranchKey, View, Views
from fennel_core.telemetry import metrics
from fennel_core.vocab.dtypes import Field
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import DatasetName, WorkspaceId

MAYBE_STALE = (
    QueryRejected,
    LookupRejected,
    ExpressionRejected,
    UnknownDataset,
    UnknownField,
    ViewOutdated,
)
"""Errors that a newer view may resolve."""

OTHER_WORKFLOWS = "other"
WORKFLOW_LABELS = 100
"""Callers choose names of workflows freely; a metric's labels must stay few."""

T = TypeVar("T")
SecretReader = Callable[[WorkspaceId, str, str], Awaitable[str | None]]
"""Reads a secret of a workspace for a version of its code."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of one request."""

    query_rows: int
    query_timeout_s: float
    barrier_timeout_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON response. `stale`: a slot whose lease has ended served a part of it."""

    body: bytes
    stale: bool = False
    logged: LogReceipt | None = None
    """Of a query that was to be logged."""
    rest: Sequence[bytes] = ()
    """Further pieces of the body."""


@dataclass(frozen=True, slots=True)
class LogReceipt:
    """What was logged of a query. `dropped`: rows that did not fit into the log's queue."""

    request_id: str
    rows: int
    dropped: int


class LogsQueries(Protocol):
    """Logs queries without waiting; `query_log.QueryLog` is the real one."""

    def put(self, query: LoggedQuery) -> bool:
        """Log a query; False if it was dropped."""
        ...


class QueryService:
    """Serves queries, lookups, inspect and barrier; `now_us` is read once per call."""

    def __init__(
        self,
        views: Views,
        lookups: Lookups,
        executors: Executors,
        inspector: Inspector,
        barrier: Barrier,
        secret: SecretReader,
        now_us: Callable[[], int],
        bounds: QueryLimits,
        query_log: LogsQueries | None = None,
    ) -> None:
        self._views = views
        self._lookups = lookups
        self._runner = ProgramRunner(lookups, executors)
        self._inspector = inspector
        self._barrier = barrier
        self._secret = secret
        self._now_us = now_us
        self._bounds = bounds
        self._query_log = query_log
        self._workflows: set[str] = set()

    async def query(self, key: BranchKey, body: bytes, request_id: str | None = None) -> Answer:
        """Serve `POST /query`: columns of the requested features, in the order requested.

        `request_id`: under which it is logged; None: a new one.
        """
        began = time.perf_counter()
        workflow = DEFAULT_WORKFLOW
        try:
            async with self._deadline():
                large = len(body) > BYTES_IN_LOOP
                asked = await off_loop(large, partial(query_body, body, self._bounds.query_rows))
                workflow = self._workflow(asked.workflow)
                logged = None
                if asked.log is not None:
                    logged = _LogRequest(asked.log, request_id or uuid.uuid4().hex, len(body))
                answer = await self._on_view(key, partial(self._features, key, asked, logged))
        except ApiError as refused:
            metrics.EXTRACT_FEATURES_ERRORS.labels(workflow, refused.code).inc()
            raise
        finally:
            _seconds(workflow).observe(time.perf_counter() - began)
        _rows(workflow).inc(asked.rows)
        return answer

    async def _features(
        self, key: BranchKey, asked: FeatureQuery, wanted: _LogRequest | None, view: View
    ) -> Answer:
        program = view.program((asked.inputs, asked.outputs))
        large = asked.rows > ROWS_IN_LOOP
        given = await off_loop(large, partial(_given, program, asked))
        trace = None if wanted is None else KeyTrace()
        request = QueryRequest(given, asked.rows, self._now_us(), large, trace=trace)
        columns = await self._runner.run(program, request, self._callbacks(key, view, request))
        logged: list[QueryColumn] = [] if wanted is None else list(columns)
        encoded = await off_loop(large, partial(_encoded, program, columns, asked))
        if wanted is None:
            return Answer(encoded, request.outcome.stale)
        receipt = await self._logged(key, view, wanted, program, request, logged, len(encoded))
        return Answer(encoded, request.outcome.stale, receipt)

    async def _logged(
        self,
        key: BranchKey,
        view: View,
        wanted: _LogRequest,
        program: QueryProgram,
        request: QueryRequest,
        outputs: list[QueryColumn],
        response_bytes: int,
    ) -> LogReceipt:
        """Hand a served query to the log; nothing of it waits for Kafka."""
        assert self._query_log is not None, "a server that serves queries logs them"
        assert request.trace is not None, "a logged query has a trace"
        assert view.commit is not None, "features belong to a commit"
        names = [name for name, _, _ in program.outputs]
        columns = request.given | dict(zip(names, outputs, strict=True))
        outputs.clear()
        kept = await off_loop(request.large, partial(_keep_sample, wanted, request, columns))
        query = LoggedQuery(
            key=key,
            commit=view.commit,
            options=wanted.options,
            request_id=wanted.request_id,
            now_us=request.now_us,
            program=program,
            columns=columns,
            kept=kept,
            trace=request.trace,
            size_bytes=_share(wanted.body_bytes + response_bytes, len(kept), request.rows),
        )
        taken = self._query_log.put(query)
        return LogReceipt(wanted.request_id, len(kept) if taken else 0, 0 if taken else len(kept))

    def _workflow(self, name: str | None) -> str:
        """Return the workflow as a metric label: the first hundred names get one each, others share
        one.
        """
        if not name:
            return DEFAULT_WORKFLOW
        if len(self._workflows) < WORKFLOW_LABELS:
            self._workflows.add(name)
        return name if name in self._workflows else OTHER_WORKFLOWS

    async def lookup(self, key: BranchKey, dataset: str, body: bytes) -> Answer:
        """Serve `POST /dataset/{name}/lookup`: `{"data": columns, "found": [...]}`."""

        async def answer(asked: LookupBody, view: View) -> Answer:
            table, outcome = _table(view, dataset), ReadOutcome()
            serving_check(table, as_of=bool(asked.timestamps))
            schema = table.view.schema
            names = chosen_fields(schema, asked.fields or ())
            large = len(asked.keys) > ROWS_IN_LOOP
            keys = await off_loop(large, partial(key_columns, asked.keys, schema.keys, dataset))
            as_of: int | Sequence[int] = self._now_us()
            if asked.timestamps:
                as_of = await off_loop(large, partial(timestamp_column, asked.timestamps))
            found = [await look_up(self._lookups, table, keys, names, as_of, outcome)]
            return Answer(await off_loop(large, partial(_found, found)), outcome.stale)

        async with self._deadline():
            large = len(body) > BYTES_IN_LOOP
            asked = await off_loop(large, partial(lookup_body, body, self._bounds.query_rows))
            return await self._on_view(key, partial(answer, asked))

    async def inspect(self, key: BranchKey, dataset: str, rows: int) -> Answer:
        """Serve `GET /dataset/{name}/inspect`: columns of the last rows."""

        async def answer(view: View) -> Answer:
            outcome = ReadOutcome()
            columns = await self._inspector.last_rows(
                _table(view, dataset), rows, self._now_us(), outcome
            )
            large = any(len(column) > ROWS_IN_LOOP for _, column in columns)
            return Answer(await off_loop(large, partial(_shown, columns)), outcome.stale)

        async with self._deadline():
            return await self._on_view(key, answer)

    async def barrier(self, key: BranchKey, timeout_s: float | None) -> Answer:
        """Serve `POST /barrier`: `{}` once everything accepted before has been applied."""
        limit_s = self._bounds.barrier_timeout_s if timeout_s is None else timeout_s

        async def answer(view: View) -> Answer:
            if view.catalog is not None:
                await self._barrier.wait(view.catalog, limit_s)
            return Answer(b"{}")

        return await self._on_view(key, answer)

    def _callbacks(self, key: BranchKey, view: View, request: QueryRequest) -> Callbacks:
        workspace, version = key[0], f"{key[1]}@{view.commit}"
        return Callbacks(
            lookup=ExtractorLookups(
                self._lookups,
                view.tables,
                NotLaterThan(request.now_us),
                request.outcome,
                request.trace,
            ),
            secret=lambda name: self._secret(workspace, version, name),
            workspace=workspace,
            version=version,
        )

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """Cancel the block at the deadline of a read, and raise `QueryTimeout`."""
        try:
            async with asyncio.timeout(self._bounds.query_timeout_s):
                yield
        except TimeoutError as late:
            raise QueryTimeout(self._bounds.query_timeout_s) from late

    async def _on_view(self, key: BranchKey, answer: Callable[[View], Awaitable[T]]) -> T:
        view = await self._views.get(key)
        try:
            return await answer(view)
        except MAYBE_STALE:
            newer = await self._views.reload(key)
            if newer is view:
                raise
            return await answer(newer)


@dataclass(frozen=True, slots=True)
class _LogRequest:
    """How the caller of a query wants it to be logged, and the size of its body."""

    options: LogOptions
    request_id: str
    body_bytes: int


def _keep_sample(
    wanted: _LogRequest, request: QueryRequest, columns: dict[str, QueryColumn]
) -> Sequence[int]:
    """Return the numbers of the rows to log; take the others out of `columns` and the trace.

    What is taken out is freed here, and not on the event loop.
    """
    assert request.trace is not None, "a logged query has a trace"
    kept = sampled_rows(wanted.request_id, request.rows, wanted.options.sampling_rate)
    if len(kept) < request.rows:
        for name in columns:
            columns[name] = kept_rows(columns[name], kept)
        registers = request.trace.registers
        for place in registers:
            registers[place] = kept_rows(registers[place], kept)
    return kept


def _share(size: int, kept: int, rows: int) -> int:
    """Return the part of `size` that belongs to the `kept` ones of `rows`."""
    return size if kept == rows else size * kept // rows


@lru_cache(maxsize=WORKFLOW_LABELS + 2)
def _seconds(workflow: str) -> Histogram:
    return metrics.EXTRACT_FEATURES_SECONDS.labels(workflow)


@lru_cache(maxsize=WORKFLOW_LABELS + 2)
def _rows(workflow: str) -> Counter:
    return metrics.EXTRACT_FEATURES.labels(workflow)


def _given(program: QueryProgram, asked: FeatureQuery) -> dict[str, QueryColumn]:
    given = {}
    for name, dtype, _ in program.inputs:
        values = asked.column(name)
        if values is None:
            raise MissingInput(name)
        given[name] = input_column(values, dtype, name)
    return given


def _encoded(program: QueryProgram, columns: list[QueryColumn], asked: FeatureQuery) -> bytes:
    """Encode the columns of the outputs, and take them out of the list.

    Each is freed here: to free half a million values on the event loop takes 20 ms.
    """
    assert len(columns) == len(program.outputs), "a column per output"
    columns.reverse()
    encoded = ((name, encode(columns.pop())) for name, encode, _ in program.outputs)
    return dump_rows(dict(encoded), asked.rows) if asked.by_row else dump_columns(encoded)


def _found(results: list[LookupResult]) -> bytes:
    """Encode the one result and take it out of the list, so that it is freed here."""
    result = results.pop()
    return b'{"data":' + _shown(result.columns) + b',"found":' + dump(result.found) + b"}"


def _shown(columns: Iterable[tuple[Field, QueryColumn]]) -> bytes:
    return dump_columns((field.name, json_values(column)) for field, column in columns)


def _table(view: View, dataset: str) -> ServedDataset:
    table = view.tables.get(DatasetName(dataset))
    if table is None:
        raise UnknownDataset(dataset)
    return table
