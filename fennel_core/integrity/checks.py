"""Check one dataset: recompute a sample of its keys from history, and compare with live lookups.

Theory. A slot answers a lookup together with the offsets that its state has applied, of one moment.
So the recompute takes exactly the rows below these offsets, and neither a row that is under way nor
one that is late can make a difference. Rows are read before the lookup, up to the offsets that the
state had by then, and what it has applied since is read afterwards from the topic.

A check reads the topic that the job reads: it compares the state that serves lookups, and takes the
rows of that topic for granted.

Example. The state has applied 900 offsets of partition 0. History has [0, 800), so the sample reads
these files and [800, 900) of the topic. The lookup returns rows as of offset 910; [900, 910) of the
topic is read, too, and each row is compared with the recompute of its key over [0, 910).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec
import polars as pl

from fennel_core.blueprints.row_retention import reach_us
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import Reaction, RefusalCode, reaction_to
from fennel_core.integrity.errors import RowsUnreadable
from fennel_core.integrity.key_sample import KeySample, rank
from fennel_core.integrity.naive_rows import LookupSpec, RowDifference, compare
from fennel_core.integrity.naive_values import InputRow
from fennel_core.operators.rows import MAX_TIME
from fennel_core.operators.spec import TableSpec
from fennel_core.snapshots.rebuild import SlotClient
from fennel_core.vocab.ids import (
    DatasetName,
    JobId,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.keys import partition_of
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import META

LOOKUP_TIMEOUT_S: Final = 60.0
ROW_CHARACTERS: Final = 500
KEPT_DIFFERENCES: Final = 100
"""Differences of one dataset that are reported with their keys, and keys of an alarm that later
checks compare again; the others are counted.
"""
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class IntegrityVerdict(StrEnum):
    """What the check of a dataset found."""

    AGREES = "agrees"
    DIFFERS = "differs"
    SKIPPED = "skipped"
    """There was nothing to compare, or not all of it can be read."""
    UNKNOWN = "unknown"
    """The check could not be carried out."""


@dataclass(frozen=True, slots=True)
class CheckedDataset:
    """A dataset that can be looked up, and the job whose state serves it.

    `known`: keys that differed when it was last checked. They are checked again.
    """

    workspace: WorkspaceId
    dataset: DatasetName
    job: JobId
    topic: TopicName
    spec: LookupSpec
    partitions: int
    known: frozenset[bytes] = frozenset()

    @property
    def input(self) -> Schema:
        """The schema of the rows of its topic."""
        return self.spec.schema if isinstance(self.spec, TableSpec) else self.spec.input

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of a row of its topic whose values are the key of a lookup."""
        return self.spec.schema.key_names if isinstance(self.spec, TableSpec) else self.spec.keys

    @property
    def time_column(self) -> str:
        """The column by whose time rows count."""
        along = None if isinstance(self.spec, TableSpec) else self.spec.along
        return along or self.input.timestamp

    def __str__(self) -> str:
        return f"{self.dataset} of {self.workspace} ({self.job})"


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key whose live row differs from the recompute as of a time, or whose written rows do (no
    time).
    """

    key: bytes
    as_of: Micros | None
    row: RowDifference

    @property
    def shown_key(self) -> str:
        """The values of the key, for people."""
        return str(_decode(self.key))

    @property
    def with_rows(self) -> str:
        """The difference with both rows, which are data of users: for a person who asked."""
        expected, found = (str(row)[:ROW_CHARACTERS] for row in (self.row.expected, self.row.found))
        return f"{self}: recomputed {expected}, live {found}"

    def __str__(self) -> str:
        columns = ", ".join(f"`{name}`" for name in self.row.columns)
        when = "" if self.as_of is None else f" as of {self.as_of}"
        return f"key {self.shown_key}{when}: {columns}"


@dataclass(slots=True)
class DatasetFinding:
    """What the check of a dataset found; `details` are reasons why something was not compared.

    `compared`: the keys that were compared; `differing_keys`: those of them that differ.
    """

    keys: int = 0
    rows: int = 0
    differing: int = 0
    differences: list[KeyDifference] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    compared: set[bytes] = field(default_factory=set)
    differing_keys: set[bytes] = field(default_factory=set)
    failed: bool = False
    """A partition could not be read, although it may be the next time."""

    def add(self, difference: KeyDifference) -> None:
        """Add a difference; those beyond a number are counted only."""
        self.differing += 1
        self.differing_keys.add(difference.key)
        if len(self.differences) < KEPT_DIFFERENCES:
            self.differences.append(difference)

    @property
    def verdict(self) -> IntegrityVerdict:
        if self.differing:
            return IntegrityVerdict.DIFFERS
        if self.failed:
            return IntegrityVerdict.UNKNOWN
        return IntegrityVerdict.AGREES if self.keys else IntegrityVerdict.SKIPPED

    def __str__(self) -> str:
        found = f"{self.verdict}: {self.keys} keys compared with {self.rows} rows of history"
        if self.differing:
            named = "; ".join(map(str, self.differences[:10]))
            found += f", {self.differing} differ: {named}"
        return "; ".join([found, *dict.fromkeys(self.details)])


class TopicRows(Protocol):
    """The versions of topics, from history and the topics themselves. The methods block."""

    def below(
        self,
        partition: TopicPartition,
        end: Offset,
        columns: Sequence[str],
        groups: Sequence[str] = (),
    ) -> Iterator[pl.DataFrame]:
        """Yield the versions of a partition below `end`.

        Where rows of erased keys were removed, groups by the columns `groups` that have lost rows
        are left out. Raises RowsUnreadable, also where that may be any group.
        """
        ...

    def expired_to(self, partition: TopicPartition) -> Micros | None:
        """Return the event time that every row was before that history has lost by age; None
        without one. Read after rows, it is true of them.
        """
        ...

    def between(
        self, partition: TopicPartition, first: Offset, end: Offset, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """Yield the versions of [first, end), which were written a moment ago."""
        ...


@dataclass(frozen=True, slots=True)
class _LiveRows:
    """What a slot returned: rows, and the next offset of the topic that they include."""

    rows: list[bytes | None]
    offset: Offset


ComparePartition = Callable[[PartitionIndex, str, DatasetFinding], Awaitable[None]]
"""Compares a partition that a slot at an address owns, and adds to the finding."""


@dataclass(frozen=True, slots=True)
class PartitionCheck:
    """Goes through the partitions of a job until `keys` keys are compared."""

    slots: SlotClient
    keys: int
    seed: int

    async def run(
        self, job: JobId, partitions: int, known: Collection[bytes], compare: ComparePartition
    ) -> DatasetFinding:
        """Compare partitions in an order that the seed makes; those of `known` keys always."""
        finding = DatasetFinding()
        owners = await self.slots.owners([job])
        needed = {partition_of(key, partitions) for key in known}
        order = sorted(
            range(partitions),
            key=lambda part: (part not in needed, rank(self.seed, part.to_bytes(4, "big"))),
        )
        for number in order:
            if finding.keys >= self.keys and number not in needed:
                break
            part = PartitionIndex(number)
            address = owners.get((job, part))
            if address is None:
                finding.details.append(f"partition {part}: no slot owns it now")
                finding.failed = True
                continue
            await _compare_partition(part, address, finding, compare)
        return finding


async def _compare_partition(
    part: PartitionIndex, address: str, finding: DatasetFinding, compare: ComparePartition
) -> None:
    try:
        await compare(part, address, finding)
    except RowsUnreadable as unreadable:
        finding.details.append(f"partition {part}: {unreadable}")
    except RemoteError as refused:
        finding.details.append(f"partition {part}: {refused}")
        finding.failed |= reaction_to(refused) is Reaction.FAIL
    except (OSError, TimeoutError) as lost:
        why = str(lost) or "it took too long"
        finding.details.append(f"partition {part}: its slot did not respond: {why}")
        finding.failed = True


class DatasetCheck:
    """Checks datasets with `keys` sampled keys each, as of `now` and of a time before."""

    def __init__(
        self, slots: SlotClient, topics: TopicRows, *, keys: int, seed: int, now: Micros
    ) -> None:
        self._slots, self._topics = slots, topics
        self._keys, self._seed, self._now = keys, seed, now

    async def run(self, checked: CheckedDataset) -> DatasetFinding:
        """Check partitions in an order that the seed makes, until there are enough keys."""

        async def compare(part: PartitionIndex, address: str, finding: DatasetFinding) -> None:
            await self._compare_partition(checked, part, address, finding)

        check = PartitionCheck(self._slots, self._keys, self._seed)
        return await check.run(checked.job, checked.partitions, checked.known, compare)

    async def _compare_partition(
        self, checked: CheckedDataset, part: PartitionIndex, address: str, finding: DatasetFinding
    ) -> None:
        partition = (checked.topic, part)
        columns = (*checked.input.names, *META)
        wanted = max(self._keys - finding.keys, 0)
        sample = KeySample(checked.key_columns, self._seed, wanted, checked.known)
        before = await self._look_up(checked, part, address, [], [])
        read = self._topics.below(partition, before.offset, columns, checked.key_columns)
        await asyncio.to_thread(add_all, read, sample.add)
        keys = sample.chosen()
        if not keys:
            return
        rows = await asyncio.to_thread(sample.rows_of, checked.time_column)
        complete = complete_since(
            checked, await asyncio.to_thread(self._topics.expired_to, partition)
        )
        if complete > self._now:
            raise RowsUnreadable(
                "rows older than `history` were removed from its history, and its lookups need "
                "them, so nothing can be recomputed"
            )
        asked = [(key, at) for key in keys for at in self._times(key, rows[key], complete)]
        live = await self._look_up(
            checked, part, address, [key for key, _ in asked], [at for _, at in asked]
        )
        if live.offset < before.offset:
            raise RemoteError(
                RefusalCode.NOT_OWNER, "its state was restored while it was checked; check it again"
            )
        since = self._topics.between(partition, before.offset, live.offset, columns)
        await asyncio.to_thread(add_all, since, sample.add_of_sample)
        differences = await asyncio.to_thread(_compared, checked, sample, asked, live.rows)
        # A key without a row that is left, or with too many now, is not compared: an alarm stays.
        compared = {key for key, _ in asked}.intersection(sample.chosen())
        finding.keys += len(compared)
        finding.compared.update(compared)
        finding.rows += sum(map(len, rows.values()))
        for difference in differences:
            finding.add(difference)
        if sample.too_large:
            finding.details.append(
                f"partition {part}: {sample.too_large} keys have too many rows to recompute"
            )

    def _times(self, key: bytes, rows: Sequence[InputRow], since: int) -> tuple[Micros, ...]:
        """Return the times of the lookups of a key: now, and one between its rows.

        Before `since` rows may be missing, and so may all before the first (0: none is).
        """
        if since and min((row.time for row in rows), default=MAX_TIME) > self._now:
            return ()
        times = [max(row.time, since) for row in rows]
        if not times or max(times) <= min(times):
            return (self._now,)
        share = int.from_bytes(rank(~self._seed, key), "big") / (1 << 64)
        return self._now, Micros(min(times) + int((max(times) - min(times)) * share))

    async def _look_up(
        self,
        checked: CheckedDataset,
        part: PartitionIndex,
        address: str,
        keys: Sequence[bytes],
        as_of: Sequence[Micros],
    ) -> _LiveRows:
        async with asyncio.timeout(LOOKUP_TIMEOUT_S):
            reply = await self._slots.call(
                address,
                "lookup_at_offsets",
                {"job": checked.job, "part": part, "keys": list(keys), "as_of": list(as_of)},
            )
        return _LiveRows(reply["rows"], Offset(reply["offsets"].get(checked.topic, 0)))


def complete_since(checked: CheckedDataset, expired_to: Micros | None) -> int:
    """Return the time from which on lookups need no row that has left history by its age."""
    if expired_to is None:
        return 0
    reach = reach_us(checked.spec)
    return MAX_TIME if reach is None else expired_to + reach


def add_all(frames: Iterator[pl.DataFrame], add: Callable[[pl.DataFrame], None]) -> None:
    """Add frames that have rows."""
    for frame in frames:
        if not frame.is_empty():
            add(frame)


def _compared(
    checked: CheckedDataset,
    sample: KeySample,
    asked: Sequence[tuple[bytes, Micros]],
    live: Sequence[bytes | None],
) -> list[KeyDifference]:
    rows = sample.rows_of(checked.time_column)
    found = []
    for (key, as_of), encoded in zip(asked, live, strict=True):
        if key not in rows:
            continue  # it has got too many rows since
        row = None if encoded is None else _decode(encoded)
        difference = compare(checked.spec, rows[key], as_of, row)
        if difference is not None:
            found.append(KeyDifference(key, as_of, difference))
    return found
