"""The platform's end of the executors: a pool of connections to the host's Unix socket.

Theory. A connection carries one call at a time; the host queues calls in the order they come when
all its workers are busy. While a call runs, user code may ask questions (look a dataset up, read a
secret); they are answered here, by callbacks of the caller, over the same connection. When a caller
is cancelled its connection is closed, which makes the host stop the worker. A connection that was
closed while idle (the host was restarted) is replaced once and the call is sent again; nothing of
it had run.

    executors = Executors(settings.executors_socket)
    table = await executors.run(Extract(...), table, callbacks=Callbacks(lookup=..., secret=...),
    timeout_ms=2_000)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import polars as pl
import pyarrow as pa

from fennel_core.executors import protocol
from fennel_core.executors.calls import (
    ExecutorCall,
    code_text,
    describe_fields,
    entity_of,
    header_of,
    module_of,
)
from fennel_core.executors.errors import ExecutorCrashed, ExecutorUnavailable, failure
from fennel_core.vocab.dtypes import Field

MAX_CONNECTIONS = 32
"""Calls under way from one process; more wait here. Far above the number of workers, so that the
host's queue decides.
"""
GRACE_MS = 5_000
"""How much longer than the host's own limit the client waits: queueing and the kill have to fit
in.
"""
READ_LIMIT_BYTES = 1 << 20


class LookupRefused(Exception):
    """Raised by callbacks for what user code asked wrongly (unknown dataset, no index): user code
    sees it as a ValueError.
    """


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """User code called `Dataset.lookup`. `keys`: the key columns in the dataset's order; `at`: a
    timestamp per key; no `fields`: all.

    The types of `keys` are those of user code's columns: cast them to the dataset's.
    """

    dataset: str
    fields: tuple[str, ...]
    keys: pa.Table
    at: pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class LookupReply:
    """The reply: one row per key in order; `fields` are the declared types of the columns of
    `table`, null where there is no row.
    """

    table: pa.Table
    fields: tuple[Field, ...]
    found: pa.Array | pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Callbacks:
    """How questions of user code are answered. `secret` returns None for a name that does not
    exist.
    """

    lookup: Callable[[LookupRequest], Awaitable[LookupReply]] | None = None
    secret: Callable[[str], Awaitable[str | None]] | None = None


NO_CALLBACKS = Callbacks()


class Executors:
    """Runs user code; use from one event loop. Close it, or use it as an async context manager."""

    def __init__(
        self, socket: Path, *, time_limit_ms: int = 10_000, connections: int = MAX_CONNECTIONS
    ) -> None:
        self._socket = str(socket)
        self._time_limit_ms = time_limit_ms
        self._idle: list[_Connection] = []
        self._room = asyncio.Semaphore(connections)

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
        """The answer of `call` on `rows`, in the platform's layout (see each call for its columns).

        `timeout_ms` bounds the call's wall time, callbacks included; the host's own limit holds as
        well. Raises `ExecutorError`; an exception of a callback other than `LookupRefused` is
        raised as it is.
        """
        limit_ms = self._time_limit_ms if timeout_ms is None else timeout_ms
        frame = protocol.pack(header_of(call), _payload(rows), limit_ms)
        async with self._room:
            while True:
                connection, fresh = await self._connect(call)
                try:
                    async with asyncio.timeout((limit_ms + GRACE_MS) / 1000):
                        answer = await connection.exchange(call, frame, callbacks)
                except _Untouched as lost:
                    connection.close()
                    if fresh:
                        raise ExecutorCrashed(
                            f"the executors closed the connection: {lost}", entity_of(call)
                        ) from lost
                    continue
                except TimeoutError as late:
                    connection.close()
                    raise ExecutorUnavailable(
                        f"no executor answered within {limit_ms + GRACE_MS} ms", entity_of(call)
                    ) from late
                except BaseException:
                    connection.close()  # mid-call, also when cancelled: the host stops the worker
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
                f"no executors listen on {self._socket}: {error}", entity_of(call)
            ) from error
        return _Connection(reader, writer), True


class _Untouched(Exception):
    """The connection was gone before anything of the answer came."""


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
        """Send the call, answer its questions, return its answer. `_Untouched` when the connection
        is lost before anything comes back.
        """
        unanswerable: Exception | None = None
        self._writer.write(frame)
        try:
            header, payload = await self._receive()
        except (ConnectionError, asyncio.IncompleteReadError) as lost:
            raise _Untouched(str(lost)) from lost
        while header["op"] != "answer":
            try:
                reply = await _reply(call, header, payload, callbacks)
            except LookupRefused as refused:
                reply = _refusal(str(refused))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it once user code has unwound
                unanswerable = error
                reply = _refusal(f"the platform could not answer: {error}")
            self._writer.write(reply)
            try:
                header, payload = await self._receive()
            except (ConnectionError, asyncio.IncompleteReadError) as lost:
                raise ExecutorCrashed(
                    f"the connection to the executors was lost during the call: {lost}",
                    entity_of(call),
                ) from lost
        if unanswerable is not None:
            raise unanswerable
        return header, payload

    async def _receive(self) -> tuple[dict[str, Any], bytes]:
        prefix = await self._reader.readexactly(protocol.PREFIX.size)
        header_bytes, payload_bytes, _ = protocol.unpack_prefix(prefix)
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
            table = _table(payload)
            asked = LookupRequest(
                header["dataset"],
                tuple(header["fields"]),
                table.drop_columns([protocol.TS]),
                table.column(protocol.TS),
            )
            found = await callbacks.lookup(asked)
            assert len(found.table) == len(table), "a lookup answers every key"
            reply = found.table.append_column(protocol.FOUND, found.found)
            return _pack({"fields": describe_fields(found.fields)}, _payload(reply))
        case unknown:
            raise protocol.ProtocolError(
                f"a worker asked for `{unknown}`, which this release does not know"
            )


def _result(call: ExecutorCall, header: dict[str, Any], payload: bytes) -> pa.Table:
    reason = header.get("error")
    if reason is not None:
        raise failure(call, reason, header.get("message", ""), header.get("traceback", ""))
    return _table(payload) if payload else pa.table({})


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
    return pa.ipc.open_stream(payload).read_all()
