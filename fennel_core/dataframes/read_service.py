"""Serve reads of datasets to programs that have a token and no keys of the stores.

Theory. A read is planned here, with the stores at hand; its plan names files and offsets. The
program then asks for ranges of these files and for records of the tail, and computes rows itself:
what is selected, decoded and aggregated costs its processors, not those of this server. A request
names a topic, and is refused unless it is the content of a dataset of the token's workspace.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
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
from fennel_core.dataframes.api_messages import TailPage, encode_page, encode_source
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
READS_AT_ONCE: Final = 8
"""Requests that read stores at the same time, each on a thread; the others wait."""
CONTENT: Final = """
    SELECT FROM asset
    WHERE id = %s AND workspace = %s AND kind = 'topic' AND state NOT IN ('condemned', 'deleted')
"""
_KEY: Final = re.compile(r"history/([^/]+)/\d+/[^/]+")


Tail = Callable[[TopicPartition, Offset, Offset], Iterator[TopicRecord]]
"""Yields the records of a range of a partition; it blocks."""


@dataclass(frozen=True, slots=True)
class ReadStores:
    """Where the rows of the platform are."""

    files: ObjectStore
    slices_of: SliceReader
    tail: Tail

    @classmethod
    def of(cls, settings: Settings, pool: Pool) -> ReadStores:
        """Return the stores that the settings name."""

        def tail(part: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
            return TopicReader(settings).tail(part, first, end)

        return cls(installation_objects(settings, pool), slice_reader(settings, pool), tail)


@dataclass
class DataframeReads:
    """The calls of `routes.py`."""

    pool: Pool
    stores: ReadStores
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READS_AT_ONCE))

    async def source(self, asked: AskedDataset) -> bytes:
        """Return what there is to read of a dataset; raises ReadRefused."""
        async with self._gate:
            try:
                return encode_source(await find_source(self.pool, asked, self.stores.slices_of))
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
        async with self._gate:
            body = await self.stores.files.read_range(key, first, size)
        if body is None:
            raise FileUnknown(key)
        return body

    async def tail(
        self, workspace: WorkspaceId, part: TopicPartition, first: Offset, end: Offset
    ) -> bytes:
        """Return a page of the records [first, end) of a partition. Raises TopicUnknown."""
        await self._check(workspace, part[0])
        async with self._gate:
            return encode_page(await asyncio.to_thread(self._page, part, first, end))

    def _page(self, part: TopicPartition, first: Offset, end: Offset) -> TailPage:
        page, size = TailPage([], end), 0
        for record in self.stores.tail(part, first, end):
            page.records.append((record.offset, record.value))
            size += len(record.value)
            if size > PAGE_BYTES:
                page.following = Offset(record.offset + 1)
                break
        return page

    async def _check(self, workspace: WorkspaceId, topic: TopicName) -> None:
        async with self.pool.connection() as connection:
            found = await (await connection.execute(CONTENT, (topic, workspace))).fetchone()
        if found is None:
            raise TopicUnknown(topic)
