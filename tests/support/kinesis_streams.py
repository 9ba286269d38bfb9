"""A Kinesis stream in memory, as AWS describes it: resharding, retention, iterators that expire."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fennel_core.connections.external_kinesis import (
    FromOldest,
    FromSequence,
    FromTime,
    IteratorExpired,
    Shard,
    ShardRecord,
    ShardRecords,
    ShardStart,
    StreamFacts,
    StreamThrottled,
)
from fennel_core.sources.aggregated import AGGREGATED, MAGIC
from fennel_core.vocab.ids import Micros

TOP = 2**128
FIRST_SEQUENCE = 10**55


@dataclass
class Fault:
    """What happens to one request instead of a response."""

    error: type[Exception]


@dataclass
class MemoryShard:
    shard: Shard
    records: list[ShardRecord] = field(default_factory=list)
    closed_us: int | None = None


@dataclass
class MemoryKinesis:
    """See `ShardStore`. The time stands still until `now_us` is set; `limit` caps a response."""

    retention_us: int = 24 * 3_600_000_000
    now_us: int = 1_700_000_000_000_000
    created_us: int = 1_600_000_000_000_000
    limit: int = 10_000
    fault: Callable[[], Fault | None] = lambda: None
    stores: dict[int, MemoryShard] = field(default_factory=dict)
    sequence: int = FIRST_SEQUENCE
    requests: int = 0

    def __post_init__(self) -> None:
        if not self.stores:
            self.stores[0] = MemoryShard(Shard(0))

    # --- what producers and operators do ----------------------------------------------------------

    def put(self, data: bytes, key: str = "") -> str:
        """Put a record; return its sequence number."""
        at = hash_of(key)
        shard = next(
            each
            for each in self.stores.values()
            if each.closed_us is None and each.shard.first_hash <= at <= each.shard.last_hash
        )
        self.sequence += 7  # the numbers have gaps
        record = ShardRecord(str(self.sequence), Micros(self.now_us), data)
        shard.records.append(record)
        return record.sequence

    def open(self) -> list[int]:
        return [number for number, each in self.stores.items() if each.closed_us is None]

    def split(self, number: int) -> None:
        parent = self._close(number)
        middle = (parent.first_hash + parent.last_hash) // 2
        self._add((number,), parent.first_hash, middle)
        self._add((number,), middle + 1, parent.last_hash)

    def merge(self, one: int, other: int) -> bool:
        """Merge two shards; return False if they are not neighbours."""
        low, high = sorted(
            (self.stores[one].shard, self.stores[other].shard), key=lambda s: s.first_hash
        )
        if low.last_hash + 1 != high.first_hash:
            return False
        self._close(one)
        self._close(other)
        self._add((one, other), low.first_hash, high.last_hash)
        return True

    def _close(self, number: int) -> Shard:
        self.stores[number].closed_us = self.now_us
        return self.stores[number].shard

    def _add(self, parents: tuple[int, ...], first: int, last: int) -> None:
        number = max(self.stores) + 1
        self.stores[number] = MemoryShard(Shard(number, parents, first, last))

    def trim(self) -> int:
        """Delete what is older than the retention; return the number of records."""
        oldest = self.now_us - self.retention_us
        deleted = 0
        for number, each in list(self.stores.items()):
            kept = [record for record in each.records if record.arrived_us >= oldest]
            deleted += len(each.records) - len(kept)
            each.records = kept
            if each.closed_us is not None and each.closed_us < oldest:
                del self.stores[number]
        return deleted

    # --- what readers ask -------------------------------------------------------------------------

    def _asked(self) -> None:
        self.requests += 1
        fault = self.fault()
        if fault is not None:
            raise fault.error("by the script")

    def describe(self) -> StreamFacts:
        return StreamFacts(Micros(self.created_us), self.retention_us, Micros(self.now_us))

    def shards(self) -> list[Shard]:
        return [each.shard for each in self.stores.values()]

    def iterator(self, shard: int, start: ShardStart) -> str:
        match start:
            case FromOldest():
                place = {"from": 0}
            case FromTime(at_us):
                place = {"from": 0, "at_us": at_us}
            case FromSequence(sequence, behind):
                place = {"from": int(sequence) + behind}
        return base64.b64encode(json.dumps({"shard": shard, **place}).encode()).decode()

    def records(self, iterator: str, limit: int) -> ShardRecords:
        self._asked()
        place = json.loads(base64.b64decode(iterator))
        number, first, at_us = place["shard"], place["from"], place.get("at_us", 0)
        shard = self.stores.get(number)
        if shard is None:
            raise IteratorExpired("the shard is gone")
        left = [
            each
            for each in shard.records
            if int(each.sequence) >= first and each.arrived_us >= at_us
        ]
        found, rest = left[: min(limit, self.limit)], left[min(limit, self.limit) :]
        behind_ms = max(1, (self.now_us - found[-1].arrived_us) // 1000) if rest else 0
        following: str | None = None
        if rest or shard.closed_us is None:
            behind = FromSequence(found[-1].sequence, behind=True) if found else None
            following = iterator if behind is None else self.iterator(number, behind)
        return ShardRecords(found, following, behind_ms, Micros(self.now_us))


THROTTLED = Fault(StreamThrottled)
EXPIRED = Fault(IteratorExpired)


def hash_of(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


def aggregated(records: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a record of the Kinesis Producer Library: partition keys and data."""
    found = AGGREGATED()
    keys = list(dict.fromkeys(key for key, _ in records))
    found.partition_key_table.extend(keys)
    for key, data in records:
        found.records.add(partition_key_index=keys.index(key), data=data)
    body = found.SerializeToString()
    return MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()
