"""One executor process: accept connections from the router and run one call at a time.

It runs in the executor environment, confined, and serves one scope (a version of a workspace's
code) for its whole life. The router passes a connection that has a frame waiting (its descriptor
travels over the control socket). The worker reads the call, requests the code's text from the
platform if it does not know it, runs it, responds on the connection and reports that it is done.
Before the first byte of a response it raises a flag in shared memory (`answering_page`).

User code shares this process and may replace every function here, so nothing that leaves it is
trusted: the router checks each control message, and the platform validates each response.
"""

from __future__ import annotations

import resource
import socket
import threading
from dataclasses import dataclass
from json import dumps, loads
from typing import Any

import fennel.datasets.datasets
import fennel.lib
import numpy as np
import pandas as pd
import pyarrow as pa

from fennel_core.executors import protocol
from fennel_core.executors.code_cache import CodeCache, message_of
from fennel_core.executors.columns_in import frame
from fennel_core.executors.internal_errors import (
    CodeLoadFailed,
    PeerClosed,
    ResultInvalid,
    UserCodeRaised,
)
from fennel_core.executors.invocation import KINDS
from fennel_core.executors.programs import PROGRAMS

RUN = b"R"
"""The control message of the router, with the descriptor of a connection."""
DONE, WORN = b"D", b"W"
"""The control messages of a worker after a call; `WORN`: it must be replaced."""
PAGE_BYTES = resource.getpagesize()
REPORTED_CHARS = 16_000
"""Length of messages and tracebacks that are reported; the end of longer ones is."""
FAILURE_COLUMNS = {
    protocol.ROW: pa.int64(),
    protocol.REASON: pa.string(),
    protocol.MESSAGE: pa.string(),
    protocol.TRACE: pa.string(),
}
"""The result of a call with each row alone."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    memory_bytes: int
    calls: int


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes; raises `PeerClosed` at the end of the stream."""
    if not size:
        return b""
    chunk = sock.recv(size, socket.MSG_WAITALL)
    if len(chunk) == size:
        return chunk
    parts = [chunk]
    got = len(chunk)
    while got < size:
        chunk = sock.recv(size - got)
        if not chunk:
            raise PeerClosed
        parts.append(chunk)
        got += len(chunk)
    return b"".join(parts)


class CallChannel:
    """The connection of the running call, which carries the requests of user code."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # User code may send requests from several threads.
        self._lock = threading.Lock()

    def receive(self) -> tuple[dict[str, Any], bytes]:
        prefix = protocol.unpack_prefix(receive_exactly(self._sock, protocol.PREFIX.size))
        header = loads(receive_exactly(self._sock, prefix.header_bytes))
        return header, receive_exactly(self._sock, prefix.payload_bytes)

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self._sock.sendall(protocol.pack(dumps(header).encode(), payload))

    def request(self, header: dict[str, Any], payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Send a request to the platform and return its reply; ValueError when it refuses."""
        with self._lock:
            self.send(header, payload)
            reply, data = self.receive()
        if "refused" in reply:
            raise ValueError(reply["refused"])
        return reply, data


class Worker:
    """The state of one process."""

    def __init__(self, control: socket.socket, answering: Any, limits: WorkerLimits) -> None:
        self._control = control
        self._answering = answering
        self._limits = limits
        self._code = CodeCache()
        self._call: CallChannel | None = None
        self._header: dict[str, Any] = {}
        self._calls = 0
        self._retire_at_bytes = address_space_bytes() + limits.memory_bytes // 2
        fennel.datasets.datasets.dataset_lookup = self._lookup
        # The attribute is the inner module, which is the one that user code reaches.
        fennel.lib.secrets.get = self._secret

    def run(self) -> None:
        """Serve until the host closes the control socket."""
        try:
            while True:
                self._handle_message()
        except (PeerClosed, ConnectionError):
            return

    def _handle_message(self) -> None:
        kind, descriptors, _, _ = socket.recv_fds(self._control, len(RUN), 1)
        if kind != RUN:
            raise PeerClosed
        with socket.socket(fileno=descriptors[0]) as sock:
            self._serve(sock)
        self._calls += 1
        worn = self._calls >= self._limits.calls or address_space_bytes() > self._retire_at_bytes
        self._control.sendall(WORN if worn else DONE)

    def _serve(self, sock: socket.socket) -> None:
        """Run the call that waits on the connection and send its response."""
        call = CallChannel(sock)
        self._call = call
        try:
            self._header, payload = call.receive()
            answer, out = self._respond(call, self._header, payload)
            self._answering[0] = 1
            call.send(answer, out)
        except (PeerClosed, ConnectionError):
            return  # The caller disconnected, so a response has no receiver.
        finally:
            self._call = None

    def _respond(
        self, call: CallChannel, header: dict[str, Any], payload: bytes
    ) -> tuple[dict[str, Any], bytes]:
        try:
            return {"op": "answer"}, self._result(call, header, payload)
        except CodeLoadFailed as failed:
            return failure(protocol.IMPORT, str(failed), failed.trace), b""
        except MemoryError as error:
            # Retire: the state of the process is unreliable after a MemoryError.
            self._calls = self._limits.calls
            text = f"{message_of(error)} (the limit of a call is {self._limits.memory_bytes} bytes)"
            return failure(protocol.MEMORY, text, ""), b""
        except (PeerClosed, ConnectionError):
            raise
        except BaseException as error:  # noqa: BLE001  # a result may be an object of user code
            return failure(*self._cause(error, header)), b""

    def _cause(self, error: BaseException, header: dict[str, Any]) -> tuple[str, str, str]:
        """Return the reason, the message and the traceback of a call that failed by its code."""
        if isinstance(error, ResultInvalid):
            return protocol.INVALID, str(error), ""
        if not isinstance(error, UserCodeRaised):
            return protocol.INVALID, f"its result cannot be read: {message_of(error)}", ""
        if isinstance(error.cause, PeerClosed | ConnectionError):
            raise error.cause from error
        return protocol.RAISED, str(error), self._code.trace(header.get("code", ""), error.cause)

    def _result(self, call: CallChannel, header: dict[str, Any], payload: bytes) -> bytes:
        kind = header["kind"]
        if kind in PROGRAMS:
            # What such code leaves behind must not meet another call.
            self._calls = self._limits.calls
            return PROGRAMS[kind](call, header)
        if header["code"] not in self._code:
            reply, _ = call.request({"op": "code", "code": header["code"]})
            self._code.load(header["code"], reply["text"], header["entry"], header["module"])
        if kind == "warm":
            return b""
        table = pa.ipc.open_stream(payload).read_all()
        function = self._code.function(header["code"])
        if header.get("each"):
            return batch_bytes(self._failing_rows(function, header, table))
        return batch_bytes(KINDS[kind](function, header, table))

    def _failing_rows(self, function: Any, header: dict[str, Any], table: pa.Table) -> pa.Table:
        """Call the function with each row alone; return the rows on which it fails."""
        failures: dict[str, list[Any]] = {name: [] for name in FAILURE_COLUMNS}
        for number in range(len(table)):
            try:
                KINDS[header["kind"]](function, header, table.slice(number, 1))
            except (MemoryError, PeerClosed, ConnectionError):
                raise
            except BaseException as error:  # noqa: BLE001  # a result may be an object of user code
                texts = self._cause(error, header)
                # Half of a surrogate pair is no text in Arrow.
                shown = [text[-REPORTED_CHARS:].encode(errors="replace").decode() for text in texts]
                for column, value in zip(failures.values(), (number, *shown), strict=True):
                    column.append(value)
        return pa.table(
            [pa.array(failures[name], dtype) for name, dtype in FAILURE_COLUMNS.items()],
            names=list(FAILURE_COLUMNS),
        )

    def _lookup(
        self, cls_name: str, ts: pd.Series, fields: list[str], keys: pd.DataFrame
    ) -> tuple[pd.DataFrame, pd.Series]:
        """Implement `Dataset.lookup` for user code."""
        call = self._running_call()
        allowed = self._header.get("datasets", [])
        if self._header.get("kind") == "extract" and cls_name not in allowed:
            raise ValueError(
                f"Extractor `{self._header['extractor']}` is not allowed to access "
                f"dataset `{cls_name}`, enabled datasets are {allowed}. "
                f"Use `depends_on` param in @extractor to specify dataset dependencies."
            )
        columns = [key_array(keys[name]) for name in keys.columns]
        at = pa.array(pd.to_datetime(ts, utc=True)).cast(pa.timestamp("us", tz="UTC"), safe=False)
        asked = pa.table([*columns, at], names=[*map(str, keys.columns), protocol.TS])
        if ts.index.dtype.kind == "i":
            asked = asked.append_column(protocol.ROW, pa.array(ts.index, pa.int64()))
        reply, data = call.request(
            {"op": "lookup", "dataset": cls_name, "fields": list(fields)}, ipc_bytes(asked)
        )
        table = pa.ipc.open_stream(data).read_all()
        found = frame(table, reply["fields"])
        return found, pd.Series(
            table.column(protocol.FOUND).to_numpy(zero_copy_only=False).astype(bool)
        )

    def _secret(self, name: str) -> str | None:
        """Implement `secrets.get` for user code."""
        reply, _ = self._running_call().request({"op": "secret", "name": name})
        if reply["value"] is None:
            raise KeyError(f"Secret : `{name}` does not exist.")
        value: str = reply["value"]
        return value

    def _running_call(self) -> CallChannel:
        if self._call is None:
            raise ValueError(
                "datasets and secrets can be read only during a call, not while its code is loaded"
            )
        return self._call


def failure(reason: str, message: str, trace: str) -> dict[str, Any]:
    """Return the header of a response that reports a failure."""
    return {
        "op": "answer",
        "error": reason,
        "message": message[-REPORTED_CHARS:],
        "traceback": trace[-REPORTED_CHARS:],
    }


def batch_bytes(table: pa.Table) -> bytes:
    """Encode a table of a declared schema as one record batch message, without the schema."""
    batches = table.combine_chunks().to_batches()
    assert len(batches) <= 1, "a table without chunks is one batch"
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
    value: bytes = batch.serialize().to_pybytes()
    return value


def ipc_bytes(table: pa.Table) -> bytes:
    """Encode a table as an Arrow IPC stream of one record batch."""
    batches = table.combine_chunks().to_batches()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def key_array(column: pd.Series) -> pa.Array:
    """Convert a key column to Arrow, with inferred type; the platform casts it to the key's type.

    Structs and frozendicts become plain dicts first.
    """
    if column.dtype == object:
        plain = [_plain(v) for v in column]
        return pa.array(plain, from_pandas=True)
    array = pa.array(column)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _plain(value: Any) -> Any:
    if hasattr(value, "__fennel_struct__"):
        value = value.as_json()
    if hasattr(value, "items"):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | np.ndarray):
        return [_plain(v) for v in value]
    return None if value is pd.NA else value


def address_space_bytes() -> int:
    """Return the size of this process' address space."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * PAGE_BYTES
