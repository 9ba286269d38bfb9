"""Serve reads of datasets and query logs to programs that have a token and no keys of the stores.

Theory. A read is planned here, with the stores at hand; its plan names files and offsets. The
program then asks for ranges of these files and for records of the tail, and computes rows itself:
what is selected, decoded and aggregated costs its processors, not those of this server. A request
names a topic, and is refused unless it is the content of a dataset of the token's workspace, or its
query log.

Reads of Kafka have threads of their own, because the others of this process run commits. One
workspace cannot take them all, and no read waits for records that are not there: a range is cut at
the end of the log.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from fennel_core.connections.installation import installation_objects
from fennel_core.connections.object_store import ObjectStore
from fennel_core.connections.postgres import Pool
from fennel_core.dataframes.api_errors import (
    FileUnknown,
    RangeInvalid,
    ReadRefused,
    TopicUnknown,
)
from fennel_core.dataframes.api_messages import TailPage, encode_log, encode_page, encode_source
from fennel_core.dataframes.log_source import find_log
from fennel_core.dataframes.planning import (
    AskedDataset,
    SliceReader,
    find_source,
    slice_reader,
)
from fennel_core.history.errors import ReadFailed
from fennel_core.history.file_slices import TopicRecord
from fennel_core.history.kafka import TopicReader
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition, WorkspaceId

RANGE_BYTES: Final = 8 << 20
"""The most of a file that one response has."""
PAGE_BYTES: Final = 8 << 20
"""A page of a tail ends with the record that exceeds it."""
READS_AT_ONCE: Final = 4
"""Requests that read stores at the same time, each on a thread; the others wait."""
WORKSPACE_READS: Final = 3
"""As many of them are of one workspace at most."""
CONTENT: Final = """
    SELECT FROM asset
    WHERE id = %s AND workspace = %s AND kind IN ('topic', 'querylog')
      AND state NOT IN ('condemned', 'deleted')
"""
_KEY: Final = re.compile(r"history/([^/]+)/\d+/[^/]+")


Tail = Callable[[TopicPartition, Offset, Offset], Iterator[TopicRecord]]
"""Yields the records of a range of a partition; it blocks."""
LogEnd = Callable[[TopicPartition], Offset | None]
"""Returns the last stable offset of a partition, None of one that does not exist; it blocks."""


@dataclass(frozen=True, slots=True)
class ReadStores:
    """Where the rows of the platform are."""

    files: ObjectStore
    slices_of: SliceReader
    tail: Tail
    log_end: LogEnd

    @classmethod
    def of(cls, settings: Settings, pool: Pool) -> ReadStores:
        """Return the stores that the settings name."""

        def tail(part: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
            return TopicReader(settings).tail(part, first, end)

        def log_end(part: TopicPartition) -> Offset | None:
            found = TopicReader(settings).bounds([part[0]]).get(part)
            return None if found is None else found.end

        objects = installation_objects(settings, pool)
        return cls(objects, slice_reader(settings, pool), tail, log_end)


@dataclass
class DataframeReads:
    """The calls of `routes.py`; `close` it at the end."""

    pool: Pool
    stores: ReadStores
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READS_AT_ONCE))
    _gates: defaultdict[WorkspaceId, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(WORKSPACE_READS))
    )
    """One per workspace that exists: a token was checked before."""
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(READS_AT_ONCE, "dataframes")
    )

    def close(self) -> None:
        """End the threads; a read that is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def source(self, asked: AskedDataset) -> bytes:
        """Return what there is to read of a dataset; raises ReadRefused."""
        async with self._entered(asked.workspace):
            try:
                return encode_source(await find_source(self.pool, asked, self.stores.slices_of))
            except ReadFailed as refused:
                raise ReadRefused(str(refused)) from refused

    async def query_log(self, workspace: WorkspaceId) -> bytes:
        """Return what there is to read of the query log of a workspace; raises ReadRefused."""
        async with self._entered(workspace):
            try:
                return encode_log(await find_log(self.pool, workspace, self.stores.slices_of))
            except ReadFailed as refused:
                raise ReadRefused(str(refused)) from refused

    async def range_of(self, workspace: WorkspaceId, key: str, first: int, size: int) -> bytes:
        """Return bytes of a file of history. Raises TopicUnknown, FileUnknown, RangeInvalid."""
        found = _KEY.fullmatch(key)
        if found is None:
            raise FileUnknown(key)
        if first < 0 or not 0 < size <= RANGE_BYTES:
            raise RangeInvalid(first, size, RANGE_BYTES)
        await self._check(workspace, TopicName(found[1]))
        async with self._entered(workspace):
            body = await self.stores.files.read_range(key, first, size)
        if body is None:
            raise FileUnknown(key)
        return body

    async def tail(
        self, workspace: WorkspaceId, part: TopicPartition, first: Offset, end: Offset
    ) -> bytes:
        """Return a page of the records [first, end) of a partition, as far as its log goes.

        Raises TopicUnknown.
        """
        await self._check(workspace, part[0])
        loop = asyncio.get_running_loop()
        async with self._entered(workspace):
            return await loop.run_in_executor(self._threads, self._page, part, first, end)

    @asynccontextmanager
    async def _entered(self, workspace: WorkspaceId) -> AsyncIterator[None]:
        # Its own limit first: what waits there must hold no place that another could have.
        async with self._gates[workspace], self._gate:
            yield

    def _page(self, part: TopicPartition, first: Offset, end: Offset) -> bytes:
        log_end = self.stores.log_end(part)
        if log_end is None:
            raise TopicUnknown(part[0])
        end = min(end, log_end)
        page, size = TailPage([], end), 0
        for record in self.stores.tail(part, first, end):
            page.records.append((record.offset, record.value))
            size += len(record.value)
            if size > PAGE_BYTES:
                page.following = Offset(record.offset + 1)
                break
        return encode_page(page)

    async def _check(self, workspace: WorkspaceId, topic: TopicName) -> None:
        async with self.pool.connection() as connection:
            found = await (await connection.execute(CONTENT, (topic, workspace))).fetchone()
        if found is None:
            raise TopicUnknown(topic)
