"""The versions of topics for checks: files of history, then the topic's tail, below one offset.

Theory. Rows of erased keys are removed from history, and a state that has read them before keeps
what they did to it. A row that is gone had an erased key, so where the columns of that key are
among those that groups are compared by, the groups of erased keys are left out and all others are
complete. Where they are not, any group may have lost rows, and nothing of the partition is
compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import polars as pl

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.postgres import Pool
from fennel_core.history.asof import without_erased
from fennel_core.history.erased_topic_keys import erased_keys_of
from fennel_core.history.kafka import TopicReader
from fennel_core.history.topic_slices import TopicSlice, plan_slices, version_batches
from fennel_core.integrity.errors import RowsUnreadable
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros, Offset, TopicName, TopicPartition
from fennel_core.vocab.versions import decode

T = TypeVar("T")
SETTLING_S: Final = 30.0
"""How long a transaction may hide later records; those of jobs take less than a second."""
SETTLING_PAUSE_S: Final = 0.1


def cut(whole: TopicSlice, end: Offset, max_bytes: int) -> TopicSlice:
    """Return the part of a slice below `end`, which begins with the first record of its topic.

    Raises RowsUnreadable if records were deleted, or if its files have more than `max_bytes`.
    """
    if whole.begins > 0 or whole.gap is not None:
        lost = whole.begins if whole.gap is None else whole.gap[1]
        raise RowsUnreadable(
            f"records below offset {lost} are deleted, so nothing can be recomputed"
        )
    files = tuple(file for file in whole.files if file.first_offset < end)
    if (size := sum(file.size_bytes for file in files)) > max_bytes:
        raise RowsUnreadable(
            f"its history has {size} bytes, more than a check may read now ({max_bytes})"
        )
    return replace(whole, files=files, tail_first=min(whole.tail_first, end), end=end)


def hidden_groups(
    part: TopicSlice, erased: Sequence[ErasedKeys], groups: Sequence[str]
) -> tuple[ErasedKeys, ...]:
    """Return the erased keys whose groups cannot be compared: all, as groups by the columns
    `groups` have one such key each.

    Raises RowsUnreadable where a row that was removed from `part` may be of any group.
    """
    if not erased or any(not set(each.columns) <= set(groups) for each in erased):
        raise RowsUnreadable(
            f"{part.removed_rows} rows of erased keys were removed from its history, and any group "
            "may have had them, so nothing can be recomputed"
        )
    return tuple(erased)


class HistoryRows:
    """`checks.TopicRows` over history on S3 and Kafka, planned for each partition."""

    def __init__(
        self, settings: Settings, pool: Pool, loop: asyncio.AbstractEventLoop, max_bytes: int
    ) -> None:
        """`loop`: the event loop of the pool; the methods are called on other threads."""
        self._settings, self._pool, self._loop = settings, pool, loop
        self._max_bytes = max_bytes

    def below(
        self,
        partition: TopicPartition,
        end: Offset,
        columns: Sequence[str],
        groups: Sequence[str] = (),
    ) -> Iterator[pl.DataFrame]:
        """See `checks.TopicRows.below`."""
        planned = self._on_loop(plan_slices(self._settings, self._pool, [partition[0]]))
        whole = next((each for each in planned[partition[0]] if each.partition == partition), None)
        if whole is None:
            raise RowsUnreadable(f"the topic `{partition[0]}` does not exist")
        part = cut(whole, end, self._max_bytes)
        # Read after the plan: every row that its files have lost had one of these keys.
        hidden: tuple[ErasedKeys, ...] = ()
        if part.removed_rows:
            erased = self._on_loop(erased_keys_of(self._pool, partition[0]))
            hidden = hidden_groups(part, erased, groups)
        for rows in version_batches(self._settings, part, columns):
            yield without_erased(rows, hidden)

    def expired_to(self, partition: TopicPartition) -> Micros | None:
        """See `checks.TopicRows.expired_to`."""
        planned = self._on_loop(plan_slices(self._settings, self._pool, [partition[0]]))
        found = [part.expired_to for part in planned[partition[0]] if part.expired_rows]
        return max(found, default=None)

    def between(
        self, partition: TopicPartition, first: Offset, end: Offset, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """See `checks.TopicRows.between`."""
        for record in TopicReader(self._settings).tail(partition, first, end):
            yield decode(record.value).select(columns)

    def erased(self, topic: TopicName) -> Sequence[ErasedKeys]:
        """See `output_checks.WrittenRows.erased`."""
        return self._on_loop(erased_keys_of(self._pool, topic))

    def end(self, partition: TopicPartition) -> Offset:
        """See `output_checks.WrittenRows.end`."""
        found = TopicReader(self._settings).bounds([partition[0]]).get(partition)
        if found is None:
            raise RowsUnreadable(f"the topic `{partition[0]}` does not exist")
        return found.end

    def settled_end(self, partition: TopicPartition) -> Offset:
        """See `output_checks.WrittenRows.settled_end`."""
        written = TopicReader(self._settings).high_watermark(partition)
        give_up = time.monotonic() + SETTLING_S
        while (end := self.end(partition)) < written:
            if time.monotonic() > give_up:
                raise RowsUnreadable(
                    f"a transaction in {partition[0]}[{partition[1]}] has stayed open for "
                    f"{SETTLING_S:.0f} s"
                )
            time.sleep(SETTLING_PAUSE_S)
        return end

    def _on_loop(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
