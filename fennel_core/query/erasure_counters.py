"""Counters of accepted erasures in memory that the workers of one query server share.

A client may erase a key through one worker and read it through another one at once. So the worker
that forwards an erasure counts it here after it was accepted and before the response is sent, and
each worker compares the counter with the one that it saw before it last read the list of erasures
(`query.erasures`). A comparison is one load from memory, and no worker waits for another one: a
worker that is stopped, or that was killed, holds nothing up.

Workspaces share counters by hash: one more erasure than necessary is looked for, never one less.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Final
from zlib import crc32

from fennel_core.vocab.ids import WorkspaceId

COUNTERS: Final = 1024
_ONE: Final = struct.Struct("=Q")
BYTES: Final = COUNTERS * _ONE.size


def new_memory() -> int:
    """Return the descriptor of new memory for the counters, which child processes may inherit."""
    descriptor = os.memfd_create("fennel-erasures")
    os.ftruncate(descriptor, BYTES)
    return descriptor


class ErasureCounters:
    """The counters of one worker; `descriptor` is from `new_memory`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, BYTES)

    def count(self, workspace: WorkspaceId) -> None:
        """Count an erasure of the workspace that was accepted."""
        place = _place(workspace)
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            (before,) = _ONE.unpack_from(self._memory, place)
            _ONE.pack_into(self._memory, place, before + 1)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def snapshot(self) -> bytes:
        """Return all counters, to be read with `counter_in`."""
        return self._memory[:]

    def of(self, workspace: WorkspaceId) -> bytes:
        """Return the counter of a workspace."""
        return self._memory[_span(workspace)]


def counter_in(snapshot: bytes, workspace: WorkspaceId) -> bytes:
    """Return the counter that a workspace had in a snapshot."""
    return snapshot[_span(workspace)]


def _span(workspace: WorkspaceId) -> slice:
    start = _place(workspace)
    return slice(start, start + _ONE.size)


def _place(workspace: WorkspaceId) -> int:
    return crc32(workspace.encode()) % COUNTERS * _ONE.size
