"""One executor process: accept connections from the host and run one call at a time.

It runs in the executor environment. The host passes a connection that has a frame waiting (its
descriptor travels over the control socket). The worker reads the call, requests the code's text if
it does not know it, runs it, responds on the connection and reports `done`. It never outlives the
host and never touches another worker's connection. Before the first byte of a response it raises a
flag in shared memory, so that the host knows, after a crash, whether it may still respond in the
worker's place.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
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

CONTROL = struct.Struct(">cI")
"""A control message: its kind and the length of its body."""
RUN, LOAD, DONE, KNOWN = b"R", b"L", b"D", b"K"
PAGE_BYTES = resource.getpagesize()
_PR_SET_PDEATHSIG = 1


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


def control_message(kind: bytes, body: bytes = b"") -> bytes:
    """Encode one control message."""
    return CONTROL.pack(kind, len(body)) + body


class CallChannel:
    """The connection of the running call, which carries the requests of user code."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # User code may send requests from several threads.
        self._lock = threading.Lock()

    def receive(self) -> tuple[dict[str, Any], bytes]:
        header_bytes, payload_bytes, _ = protocol.unpack_prefix(
            receive_exactly(self._sock, protocol.PREFIX.size)
        )
        header = json.loads(receive_exactly(self._sock, header_bytes))
        return header, receive_exactly(self._sock, payload_bytes)

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self._sock.sendall(protocol.pack(json.dumps(header).encode(), payload))

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
        data, descriptors, _, _ = socket.recv_fds(self._control, CONTROL.size, 1)
        if len(data) < CONTROL.size:
            raise PeerClosed
        kind, size = CONTROL.unpack(data)
        body = receive_exactly(self._control, size)
        known = None
        if kind == RUN:
            with socket.socket(fileno=descriptors[0]) as sock:
                known = self._serve(sock)
            self._calls += 1
        else:
            self._preload(json.loads(body))
        if known is not None:
            self._control.sendall(control_message(KNOWN, known))
        worn = self._calls >= self._limits.calls or address_space_bytes() > self._retire_at_bytes
        self._control.sendall(control_message(DONE, b"1" if worn else b""))

    def _preload(self, known: dict[str, Any]) -> None:
        if known["code"] not in self._code:
            try:
                self._code.load(known["code"], known["text"], known["entry"], known["module"])
            except CodeLoadFailed:
                # The first call that needs the code loads it again and reports the failure.
                return

    def _serve(self, sock: socket.socket) -> bytes | None:
        """Run the call that waits on the connection and send its response.

        Returns newly loaded code to report to the host, if any.
        """
        call = CallChannel(sock)
        self._call = call
        known: bytes | None = None
        try:
            header, payload = call.receive()
            self._header = header
            known, answer, out = self._respond(call, header, payload)
            self._answering[0] = 1
            call.send(answer, out)
        except (PeerClosed, ConnectionError):
            pass  # The caller disconnected, so a response has no receiver.
        finally:
            self._call = None
        return known

    def _respond(
        self, call: CallChannel, header: dict[str, Any], payload: bytes
    ) -> tuple[bytes | None, dict[str, Any], bytes]:
        known = None
        try:
            if header["code"] not in self._code:
                known = self._load(call, header)
            if header["kind"] == "warm":
                return known, {"op": "answer"}, b""
            out = KINDS[header["kind"]](
                self._code.function(header["code"]), header, pa.ipc.open_stream(payload).read_all()
            )
            return known, {"op": "answer"}, ipc_bytes(out)
        except CodeLoadFailed as failed:
            return known, failure(protocol.IMPORT, str(failed), failed.trace), b""
        except UserCodeRaised as raised:
            if isinstance(raised.cause, PeerClosed | ConnectionError):
                raise raised.cause from raised
            return (
                known,
                failure(
                    protocol.RAISED, str(raised), self._code.trace(header["code"], raised.cause)
                ),
                b"",
            )
        except ResultInvalid as wrong:
            return known, failure(protocol.INVALID, str(wrong), ""), b""
        except MemoryError as error:
            # Retire: the state of the process is unreliable after a MemoryError.
            self._calls = self._limits.calls
            limit = self._limits.memory_bytes
            return (
                known,
                failure(
                    protocol.MEMORY,
                    f"{message_of(error)} (the limit of a call is {limit} bytes)",
                    "",
                ),
                b"",
            )

    def _load(self, call: CallChannel, header: dict[str, Any]) -> bytes:
        reply, _ = call.request({"op": "code", "code": header["code"]})
        began = time.monotonic()
        self._code.load(header["code"], reply["text"], header["entry"], header["module"])
        return json.dumps(
            {
                "load_ms": int((time.monotonic() - began) * 1000),
                "code": header["code"],
                "text": reply["text"],
                "entry": header["entry"],
                "module": header["module"],
            }
        ).encode()

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
    return {"op": "answer", "error": reason, "message": message, "traceback": trace}


def ipc_bytes(table: pa.Table) -> bytes:
    """Encode a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
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


def enter(
    control: socket.socket, answering: Any, limits: WorkerLimits, close: Callable[[], None]
) -> None:
    """Become a worker in a freshly forked process; never returns."""
    close()
    # A process group, so that the host can also kill processes that user code starts.
    os.setpgid(0, 0)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    random.seed()
    # Forks would share the global random state that user code draws from.
    np.random.seed()
    limit = address_space_bytes() + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Worker(control, answering, limits).run()
