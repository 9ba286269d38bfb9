"""The platform's side of the executors: a pool of connections to the host's Unix socket.

A connection carries one call at a time, and calls of one scope: a version of one workspace's code.
While all connections or workers are busy, the workspaces take turns, here and in the host, and a
call that has waited for its time limit fails. What comes back from user code is hostile until it
has been checked (`responses`, `hostile_arrow`, `results`). During a call, user code may send
requests (look a dataset up, read a secret), which callbacks of the caller serve over the same
connection. Cancelling a caller closes its connection, which makes the host stop the worker. If an
idle connection turns out to be closed (the host was restarted), the call is sent again on a new
one, because it has not run. After a malformed message, or bytes behind a response, the connection
is closed and the host replaces the processes of its scope, so that neither answers another call.

    executors = Executors(
        settings.executors_socket, time_limit_ms=settings.executor_time_limit_ms
    )
    callbacks = Callbacks(lookup=..., secret=..., workspace="shop", version="main@7")
    table = await executors.run(ExtractCall(...), table, callbacks=callbacks, timeout_ms=2_000)
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import termios
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import polars as pl
import pyarrow as pa
import structlog

from fennel_core.executors import protocol
from fennel_core.executors.call_failures import call_failure
from fennel_core.executors.calls import (
    CollectCall,
    ExecutorCall,
    Program,
    ProgramCall,
    describe_fields,
    entity_of,
    header_of,
    text_of_code,
)
from fennel_core.executors.errors import CallFailed, ExecutorCrashed, ExecutorUnavailable
from fennel_core.executors.fair_queue import FairCapacity
from fennel_core.executors.hostile_arrow import read_stream
from fennel_core.executors.internal_errors import (
    AnswerTooLarge,
    ArrowRefused,
    ConnectionStale,
    LookupRefused,
    ProtocolError,
    ResponseMalformed,
)
from fennel_core.executors.report import ExecutorReport, parse_report
from fennel_core.executors.responses import (
    MOST_HEADER_BYTES,
    names_of,
    parse_header,
    secret_use,
    text_of,
)
from fennel_core.executors.results import read_result
from fennel_core.vocab.dtypes import Field

log = structlog.get_logger(__name__)
MAX_CONNECTIONS = 64
"""Concurrent calls of one process; more wait. It is far above the number of workers, so that the
host's queue decides.
"""
WORKSPACE_CONNECTIONS = 32
"""Those of one workspace, so that its waiting calls leave connections to the others."""
GRACE_MS = 5_000
"""Time that the client waits beyond the host's own limits, for the kill."""
MAX_ANSWER_BYTES = 64 << 20
"""Largest result, or request, of user code: platform processes hold it in memory."""
MAX_LOOKUP_ROWS = 1_000_000
READ_LIMIT_BYTES = 1 << 20
REPORT_MS = 2_000
TIMESTAMPS = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """A call of `Dataset.lookup` by user code.

    `keys` are the key columns in the dataset's order, with the types of user code's columns: cast
    them to the dataset's. `at` has a timestamp per key. Empty `fields` mean all fields. `rows` has
    the label of each timestamp, if these are integers (`protocol.ROW`).
    """

    dataset: str
    fields: tuple[str, ...]
    keys: pa.Table
    at: pa.ChunkedArray
    rows: pa.ChunkedArray | None = None


@dataclass(frozen=True, slots=True)
class LookupReply:
    """The result of a lookup: one row per key in order, null where there is none.

    `fields` are the declared types of the columns of `table`.
    """

    table: pa.Table
    fields: tuple[Field, ...]
    found: pa.Array | pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class ModuleText:
    """A module of a project: its file, for messages, its text, and whether it is a package."""

    file: str
    text: str
    is_package: bool


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions that serve the requests of user code. `secret` returns None for an unknown name.

    Calls of one `workspace` take turns with those of others. Only calls of one workspace and one
    `version` of its code ever run in the same process. `module` returns a module of the project
    that a `CollectCall` loads, None if it has none of that name.
    """

    lookup: Callable[[LookupRequest], Awaitable[LookupReply]] | None = None
    secret: Callable[[str], Awaitable[str | None]] | None = None
    workspace: str = ""
    version: str = ""
    module: Callable[[str], Awaitable[ModuleText | None]] | None = None


NO_CALLBACKS = Callbacks()


class Executors:
    """Runs user code. Use from one event loop, and close it or use it as an async context
    manager.
    """

    def __init__(
        self, socket: Path, *, time_limit_ms: int, connections: int = MAX_CONNECTIONS
    ) -> None:
        self._socket = str(socket)
        self._time_limit_ms = time_limit_ms
        self._idle: list[_Connection] = []
        self._capacity = FairCapacity(connections, min(connections, WORKSPACE_CONNECTIONS))
        self._instance = uuid.uuid4().hex

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every idle connection."""
        while self._idle:
            self._idle.pop().close()

    async def run(
        self,
        call: ExecutorCall,
        rows: pa.Table | pl.DataFrame | None,
        *,
        callbacks: Callbacks = NO_CALLBACKS,
        timeout_ms: int | None = None,
    ) -> pa.Table:
        """Return the result of `call` on `rows` in the platform's layout (see each call).

        `timeout_ms` bounds the wall time of the call, callbacks included; the host's own limit
        holds as well. Raises `CallFailed`. An exception of a callback other than `LookupRefused`
        propagates.
        """
        limit_ms = self._time_limit_ms if timeout_ms is None else timeout_ms
        payload = _payload(rows)
        scope = protocol.digest(callbacks.workspace, callbacks.version)
        answer = await self._in_turn(call, payload, callbacks, scope, limit_ms)
        try:
            return read_result(call, answer, 0 if rows is None else len(rows))
        except ArrowRefused as wrong:
            text = f"its result is not valid Arrow data: {wrong}"
            raise call_failure(call, protocol.INVALID, text, "") from wrong

    async def run_program(self, call: Program, *, callbacks: Callbacks, timeout_ms: int) -> bytes:
        """Return the result of a program, which runs in a process of its own.

        Raises `CallFailed`.
        """
        scope = protocol.digest(callbacks.workspace, uuid.uuid4().hex)
        return await self._in_turn(call, b"", callbacks, scope, timeout_ms)

    async def report(self) -> ExecutorReport:
        """Return what the host reports of itself; raises `ExecutorUnavailable`."""
        return await self._asked(protocol.pack(b""))

    async def _replace(self, workspace: str, scope: bytes) -> None:
        """Have the host replace the processes of a scope, which have sent what they must not."""
        for place in reversed(range(len(self._idle))):
            if self._idle[place].scope == scope:
                self._idle.pop(place).close()
        digest = protocol.digest(workspace)
        try:
            await self._asked(protocol.pack(b"", workspace=digest, scope=scope))
        except ExecutorUnavailable as gone:
            # A host that is gone has taken its processes along.
            log.warning("processes of user code were not replaced", error=str(gone))

    async def _asked(self, frame: bytes) -> ExecutorReport:
        try:
            async with asyncio.timeout(REPORT_MS / 1000):
                reader, writer = await asyncio.open_unix_connection(self._socket)
                try:
                    writer.write(frame)
                    prefix = protocol.unpack_prefix(await reader.readexactly(protocol.PREFIX.size))
                    return parse_report(await reader.readexactly(prefix.header_bytes))
                finally:
                    writer.close()
        except (OSError, TimeoutError, ProtocolError, asyncio.IncompleteReadError) as failed:
            raise ExecutorUnavailable(
                f"no executor host reports on {self._socket}: {failed}", "executors"
            ) from failed

    async def _in_turn(
        self,
        call: ExecutorCall,
        payload: bytes,
        callbacks: Callbacks,
        scope: bytes,
        limit_ms: int,
    ) -> bytes:
        share = crc32(f"{self._instance}/{callbacks.workspace}".encode())
        workspace = protocol.digest(callbacks.workspace)
        frame = protocol.pack(header_of(call), payload, limit_ms, share, workspace, scope)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._capacity.acquire(share)
        except TimeoutError as late:
            raise ExecutorUnavailable(
                f"the code of `{entity_of(call)}` was not run: no connection to the executors "
                f"became free within {limit_ms} ms",
                entity_of(call),
            ) from late
        try:
            return await self._exchange(call, frame, callbacks, scope, limit_ms)
        finally:
            self._capacity.release(share)

    async def _exchange(
        self,
        call: ExecutorCall,
        frame: bytes,
        callbacks: Callbacks,
        scope: bytes,
        limit_ms: int,
    ) -> bytes:
        while True:
            connection, fresh = await self._connect(call, callbacks.workspace, scope)
            try:
                # The call may wait for a worker as long as it may run.
                async with asyncio.timeout((2 * limit_ms + GRACE_MS) / 1000):
                    answer = await connection.exchange(call, frame, callbacks)
            except ConnectionStale as lost:
                connection.close()
                if fresh:
                    raise ExecutorCrashed(
                        f"the executors closed the connection: {lost}", entity_of(call)
                    ) from lost
                continue
            except TimeoutError as late:
                connection.close()
                raise ExecutorUnavailable(
                    f"no executor responded within {2 * limit_ms + GRACE_MS} ms", entity_of(call)
                ) from late
            except AnswerTooLarge as large:
                connection.close()
                raise call_failure(call, protocol.INVALID, str(large), "") from large
            except (ResponseMalformed, ProtocolError) as wrong:
                connection.close()
                await self._replace(callbacks.workspace, scope)
                raise ExecutorCrashed(
                    f"the process that runs the code of `{entity_of(call)}` sent a malformed "
                    f"message: {wrong}",
                    entity_of(call),
                ) from wrong
            except BaseException:
                # In the middle of a call, also when cancelled: the host stops the worker.
                connection.close()
                raise
            self._keep(connection, call)
            if answer.failure is not None:
                raise answer.failure
            return answer.payload

    def _keep(self, connection: _Connection, call: ExecutorCall) -> None:
        if isinstance(call, ProgramCall | CollectCall):
            connection.close()  # Its scope has no other call.
            return
        self._idle.append(connection)
        if len(self._idle) > MAX_CONNECTIONS:
            self._idle.pop(0).close()

    async def _connect(
        self, call: ExecutorCall, workspace: str, scope: bytes
    ) -> tuple[_Connection, bool]:
        while (connection := self._idle_of(scope)) is not None:
            if connection.usable and not connection.has_unread:
                return connection, False
            # What nothing asked for would be taken for the response of this call.
            interfered = connection.usable
            connection.close()
            if interfered:
                log.warning("code sent more than its response", entity=entity_of(call))
                await self._replace(workspace, scope)
        try:
            reader, writer = await asyncio.open_unix_connection(
                self._socket, limit=READ_LIMIT_BYTES
            )
        except OSError as error:
            raise ExecutorUnavailable(
                f"no executor host listens on {self._socket}: {error}", entity_of(call)
            ) from error
        return _Connection(reader, writer, scope), True

    def _idle_of(self, scope: bytes) -> _Connection | None:
        """Return the idle connection of the scope that was used last, which is idle no more."""
        for place in reversed(range(len(self._idle))):
            if self._idle[place].scope == scope:
                return self._idle.pop(place)
        return None


@dataclass(frozen=True, slots=True)
class _Answer:
    """A response: the failure that it reports, or its payload."""

    failure: CallFailed | None
    payload: bytes


class _Connection:
    """A connection, whose calls are all of one scope."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, scope: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.scope = scope

    @property
    def usable(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing())

    @property
    def has_unread(self) -> bool:
        """Whether bytes have come that no call of this connection has read."""
        if self._reader._buffer:  # type: ignore[attr-defined]  # no public name
            return True
        in_kernel = fcntl.ioctl(self._writer.get_extra_info("socket"), termios.FIONREAD, b"1234")
        return any(in_kernel)

    def close(self) -> None:
        self._writer.close()

    async def exchange(self, call: ExecutorCall, frame: bytes, callbacks: Callbacks) -> _Answer:
        """Send the call, serve its requests, and return its response.

        Raises `ConnectionStale` when the connection is lost before any response.
        """
        callback_error: Exception | None = None
        self._writer.write(frame)
        try:
            header, payload = await self._receive()
        except (ConnectionError, asyncio.IncompleteReadError) as lost:
            raise ConnectionStale(str(lost)) from lost
        while header["op"] != "answer":
            try:
                reply = await _reply(call, header, payload, callbacks)
            except LookupRefused as refused:
                reply = _refusal(str(refused))
            except Exception as error:  # noqa: BLE001  # raised below, once user code has unwound
                callback_error = error
                reply = _refusal(f"the platform could not serve the request: {error}")
            self._writer.write(reply)
            try:
                header, payload = await self._receive()
            except (ConnectionError, asyncio.IncompleteReadError) as lost:
                raise ExecutorCrashed(
                    f"the connection to the executors was lost during the call: {lost}",
                    entity_of(call),
                ) from lost
        if callback_error is not None:
            raise callback_error
        return _Answer(_failure_in(call, header), payload)

    async def _receive(self) -> tuple[dict[str, Any], bytes]:
        prefix = protocol.unpack_prefix(await self._reader.readexactly(protocol.PREFIX.size))
        if prefix.payload_bytes > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(prefix.payload_bytes, MAX_ANSWER_BYTES)
        if prefix.header_bytes > MOST_HEADER_BYTES:
            raise ResponseMalformed(f"its header has {prefix.header_bytes} bytes")
        header = parse_header(await self._reader.readexactly(prefix.header_bytes))
        size = prefix.payload_bytes
        return header, await self._reader.readexactly(size) if size else b""


async def _reply(
    call: ExecutorCall, header: dict[str, Any], payload: bytes, callbacks: Callbacks
) -> bytes:
    match header["op"]:
        case "code" if not isinstance(call, ProgramCall | CollectCall):
            return _pack({"text": text_of_code(call)})
        case "secret":
            return _pack({"value": await _secret(call, text_of(header, "name"), callbacks)})
        case "lookup":
            return await _looked_up(header, payload, callbacks)
        case "module" if callbacks.module is not None:
            found = await callbacks.module(text_of(header, "name"))
            if found is None:
                return _pack({"file": None})
            return _pack({"file": found.file, "text": found.text, "package": found.is_package})
        case unknown:
            raise ResponseMalformed(f"the request `{unknown[:100]}` has no meaning here")


async def _secret(call: ExecutorCall, name: str, callbacks: Callbacks) -> str | None:
    """Return a secret of the caller's workspace whose use the call's own code declares."""
    if callbacks.secret is None or isinstance(call, ProgramCall | CollectCall):
        raise LookupRefused("secrets cannot be read here")
    if not secret_use(text_of_code(call)).covers(name):
        raise LookupRefused(
            f"the code of `{entity_of(call)}` does not declare to use the secret `{name}`; call "
            f'secrets.get("{name}") in it'
        )
    return await callbacks.secret(name)


async def _looked_up(header: dict[str, Any], payload: bytes, callbacks: Callbacks) -> bytes:
    if callbacks.lookup is None:
        raise LookupRefused("datasets can only be looked up by extractors")
    try:
        table = read_stream(payload, MAX_LOOKUP_ROWS)
        if protocol.TS not in table.column_names or table.schema.field(protocol.TS).type != (
            TIMESTAMPS
        ):
            raise ArrowRefused("they have no column of timestamps")
        if protocol.ROW in table.column_names and table.schema.field(protocol.ROW).type != (
            pa.int64()
        ):
            raise ArrowRefused("their labels are no integers")
    except ArrowRefused as wrong:
        raise LookupRefused(f"the keys are not valid Arrow data: {wrong}") from wrong
    labelled = protocol.ROW in table.column_names
    asked = LookupRequest(
        text_of(header, "dataset"),
        names_of(header, "fields"),
        table.drop_columns([protocol.TS, *([protocol.ROW] if labelled else [])]),
        table.column(protocol.TS),
        table.column(protocol.ROW) if labelled else None,
    )
    found = await callbacks.lookup(asked)
    assert len(found.table) == len(table), "a lookup returns a row for every key"
    reply = found.table.append_column(protocol.FOUND, found.found)
    return _pack({"fields": describe_fields(found.fields)}, _payload(reply))


def _failure_in(call: ExecutorCall, header: dict[str, Any]) -> CallFailed | None:
    """Return the failure that a response reports, if it does; raises `ResponseMalformed`."""
    if header.get("error") is None:
        return None
    reason, message = text_of(header, "error"), text_of(header, "message")
    return call_failure(call, reason, message, text_of(header, "traceback"))


def _refusal(text: str) -> bytes:
    return _pack({"refused": text})


def _pack(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    return protocol.pack(json.dumps(header, separators=(",", ":")).encode(), payload)


def _payload(rows: pa.Table | pl.DataFrame | None) -> bytes:
    if rows is None:
        return b""
    table = (
        rows.to_arrow(compat_level=pl.CompatLevel.oldest())
        if isinstance(rows, pl.DataFrame)
        else rows
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    value: bytes = sink.getvalue().to_pybytes()
    return value
