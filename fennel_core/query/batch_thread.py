"""One thread for the work of large requests, so that the event loop stays free.

A request of ten thousand rows needs some hundred milliseconds of parsing, key encoding and JSON. On
the event loop these would be added to the latency of every other request, so this work is done here
in stages, between which the request waits for slots and executors on the event loop as usual. Most
such requests are served by processes of their own (`large_reads`), which have this thread, too;
here are those that come while there is none, and those whose size shows only while they are served.

The thread and the event loop share the interpreter lock. There is one thread because the loop then
competes with one owner of the lock only, and `SWITCH_INTERVAL_S` bounds how long it waits for it.
The lock is never released inside a C call, therefore calls over many rows are cut into slices of
`SLICE_ROWS`. A request that is cancelled leaves the queue; a stage that has begun runs to its end,
which is that of one C call or loop over the rows, and its result is dropped.

Stages read values of their own request and immutable plans. State that requests share (views,
owners, erased keys) is read on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

ROWS_IN_LOOP: Final = 200
"""Requests with more rows or keys use the thread. So many rows of fifty features cost a few
milliseconds, and handing a request to the thread some tenths of one.
"""
BYTES_IN_LOOP: Final = 32 * 1024
"""Bodies with more bytes are parsed by the thread: their rows are not yet known."""
SLICE_ROWS: Final = 500
"""Rows of one C call: some hundred microseconds for ten columns."""
SWITCH_INTERVAL_S: Final = 0.0005
"""The default of 5 ms is several times the latency of a query."""

T = TypeVar("T")
_thread = ThreadPoolExecutor(1, thread_name_prefix="batch")


async def off_loop(large: bool, work: Callable[[], T]) -> T:  # reads as a condition
    """Return `work()`; it is run by the thread if the request is `large`."""
    if not large:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_thread, work)


def slices(rows: int) -> Iterator[slice]:
    """Yield the slices of `rows` rows that one C call may work on."""
    for start in range(0, rows, SLICE_ROWS):
        yield slice(start, min(start + SLICE_ROWS, rows))
