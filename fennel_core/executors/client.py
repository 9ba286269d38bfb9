"""The platform's side of the executors: a pool of connections to the host's Unix socket.

A connection carries one call at a time. While all connections or workers are busy, the workspaces
take turns, here and in the host, and a call that has waited for its time limit fails. What comes
back from user code is validated before any other library reads it: its buffers may lie about
their lengths. During a call, user code may send requests (look a dataset up, read a secret),
which callbacks of the caller serve over the same connection. Cancelling a caller closes its
connection, which makes the host stop the worker. If an idle connection turns out to be closed (the
host was restarted), the call is sent again on a new one, because it has not run.

    executors = Executors(
        settings.executors_socket, time_limit_ms=settings.executor_time_limit_ms
    )
    callbacks = Callbacks(lookup=..., secret=...)
    table = await executors.run(ExtractCall(...), table, callbacks=callbacks, timeout_ms=2_000)
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import polars as pl
import pyarrow as pa

from fennel_core.executors import protocol
from fennel_core.executors.arrow_messages import refuse_compressed
from fennel_core.executors.call_failures import call_failure
from fennel_core.executors.calls import (
    ExecutorCall,
    code_text,
    describe_fields,
    entity_of,
    header_of,
    module_of,
)
from fennel_core.executors.errors import ExecutorCrashed, ExecutorUnavailable
from fennel_core.executors.fair_queue import FairCapacity
from fennel_core.executors.internal_errors import (
    AnswerTooLarge,
    ConnectionStale,
    LookupRefused,
    ProtocolError,
)
from fennel_core.vocab.dtypes import Field

MAX_CONNECTIONS = 64
"""Concurrent calls of one process; more wait. It is far above the number of workers, so that the
host's queue decides.
"""
WORKSPACE_CONNECTIONS = 32
"""Those of one workspace, so that its waiting calls leave connections to the others."""
GRACE_MS = 5_000
"""Time that the client waits beyond the host's own limits, for the kill."""
MAX_ANSWER_BYTES = 256 << 20
"""Largest result, or request, of user code: platform processes hold it in memory."""
READ_LIMIT_BYTES = 1 << 20
ARROW_ERRORS = (pa.ArrowException, OSError)
"""What pyarrow raises for malformed data."""


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """A call of `Dataset.lookup` by user code.

    `keys` are the key columns in the dataset's order, with the types of user code's columns: cast
    them to the dataset's. `at` has a timestamp per key. Empty `fields` mean all fields.
    """

    dataset: str
    fields: tuple[str, ...]
    keys: pa.Table
    at: pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class LookupReply:
    """The result of a lookup: one row per key in order, null where there is none.

    `fields` are the declared types of the columns of `table`.
    """

    table: pa.Table
    fields: tuple[Field, ...]
    found: pa.Array | pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions that serve the requests of user code. `secret` returns None for an unknown name.

    Calls of one `workspace` take turns with those of others.
    """

    lookup: Callable[[LookupRequest], Awaitable[LookupReply]] | None = None
    secret: Callable[[str], Awaitable[str | None]] | None = None
    workspace: str = ""


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
        share = crc32(f"{self._instance}/{callbacks.workspace}".encode())
        workspace = crc32(callbacks.workspace.encode())
        frame = protocol.pack(header_of(call), _payload(rows), limit_ms, share, workspace)
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
            return await self._exchange(call, frame, callbacks, limit_ms)
        finally:
            self._capacity.release(share)

    async def _exchange(
        self, call: ExecutorCall, frame: bytes, callbacks: Callbacks, limit_ms: int
    ) -> pa.Table:
        while True:
            connection, fresh = await self._connect(call)
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
            except BaseException:
                # In the middle of a call, also when cancelled: the host stops the worker.
                connection.close()
                raise
            self._idle.append(connection)
            return _result(call, *answer)

    async def _connect(self, call: ExecutorCall) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection, False
            connection.close()
        try:
            reader, writer = await asyncio.open_unix_connection(
                self._socket, limit=READ_LIMIT_BYTES
            )
        except OSError as error:
            raise ExecutorUnavailable(
                f"no executor host listens on {self._socket}: {error}", entity_of(call)
            ) from error
        return _Connection(reader, writer), True


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def usable(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        self._writer.close()

    async def exchange(
        self, call: ExecutorCall, frame: bytes, callbacks: Callbacks
    ) -> tuple[dict[str, Any], bytes]:
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
        return header, payload

    async def _receive(self) -> tuple[dict[str, Any], bytes]:
        prefix = await self._reader.readexactly(protocol.PREFIX.size)
        header_bytes, payload_bytes, _ = protocol.unpack_prefix(prefix)
        if payload_bytes > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(payload_bytes, MAX_ANSWER_BYTES)
        header = json.loads(await self._reader.readexactly(header_bytes))
        return header, await self._reader.readexactly(payload_bytes) if payload_bytes else b""


async def _reply(
    call: ExecutorCall, header: Mapping[str, Any], payload: bytes, callbacks: Callbacks
) -> bytes:
    match header["op"]:
        case "code":
            return _pack({"text": code_text(call.code, glued=module_of(call) is not None)})
        case "secret":
            if callbacks.secret is None:
                raise LookupRefused("secrets cannot be read here")
            return _pack({"value": await callbacks.secret(header["name"])})
        case "lookup":
            if callbacks.lookup is None:
                raise LookupRefused("datasets can only be looked up by extractors")
            try:
                table = _table(payload)
            except ARROW_ERRORS as wrong:
                raise LookupRefused(f"the keys are not valid Arrow data: {wrong}") from wrong
            asked = LookupRequest(
                header["dataset"],
                tuple(header["fields"]),
                table.drop_columns([protocol.TS]),
                table.column(protocol.TS),
            )
            found = await callbacks.lookup(asked)
            assert len(found.table) == len(table), "a lookup returns a row for every key"
            reply = found.table.append_column(protocol.FOUND, found.found)
            return _pack({"fields": describe_fields(found.fields)}, _payload(reply))
        case unknown:
            raise ProtocolError(
                f"a worker sent the request `{unknown}`, which this release does not know"
            )


def _result(call: ExecutorCall, header: dict[str, Any], payload: bytes) -> pa.Table:
    reason = header.get("error")
    if reason is not None:
        raise call_failure(call, reason, header.get("message", ""), header.get("traceback", ""))
    try:
        return _table(payload) if payload else pa.table({})
    except ARROW_ERRORS as wrong:
        text = f"its result is not valid Arrow data: {wrong}"
        raise call_failure(call, protocol.INVALID, text, "") from wrong


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


def _table(payload: bytes) -> pa.Table:
    """Parse Arrow data of user code; raises one of `ARROW_ERRORS` if it is not consistent."""
    refuse_compressed(payload)
    table = pa.ipc.open_stream(payload).read_all()
    # Offsets beyond a buffer would make a reader return other memory of this process.
    table.validate(full=True)
    return table
