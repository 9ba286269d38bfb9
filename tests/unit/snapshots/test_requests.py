"""The number of requests to S3 that one round of snapshots takes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fennel_core.connections.garbage import DeletionLimit, MemoryGarbageMarks
from fennel_core.connections.object_store import MemoryObjectStore, StoredObject
from fennel_core.snapshots.manifest import StatePosition
from fennel_core.snapshots.memory import MemoryPointers
from fennel_core.snapshots.pruning import prune_snapshots
from fennel_core.snapshots.transfer import SnapshotContext, SnapshotSource, take_snapshot
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, Offset, PartitionIndex

PARTITIONS = [(JobId("w.job.abc.1"), PartitionIndex(part)) for part in range(12)]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Counted(MemoryObjectStore):
    """A bucket that counts requests."""

    def __init__(self) -> None:
        super().__init__(lambda: NOW)
        self.requests: Counter[str] = Counter()

    async def put(self, key: str, body: bytes) -> None:
        self.requests["PUT"] += 1
        await super().put(key, body)

    async def get(self, key: str) -> bytes | None:
        self.requests["GET"] += 1
        return await super().get(key)

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        self.requests["LIST"] += 1
        return await super().list_objects(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self.requests["DELETE"] += 1
        await super().delete(keys)


async def test_a_round_lists_the_bucket_once_however_many_partitions_it_copies(
    tmp_path: Path,
) -> None:
    bucket, marks = Counted(), MemoryGarbageMarks(lambda: NOW)
    pointers = MemoryPointers(lambda: NOW, dict.fromkeys(PARTITIONS, Epoch(1)))
    context, limit = SnapshotContext(bucket, pointers), DeletionLimit(20, 20)

    async def copy(partition: JobPartition, iteration: int) -> None:
        async def checkpoint() -> Path:
            folder = tmp_path / os.urandom(4).hex()
            folder.mkdir()
            (folder / "1.sst").write_bytes(b"old")
            (folder / f"{iteration}-{partition[1]}.sst").write_bytes(os.urandom(8))
            return folder

        position = StatePosition(iteration, Offset(iteration), {})
        source = SnapshotSource(*partition, Epoch(1), 1, position)
        await take_snapshot(context, source, checkpoint, os.urandom(4).hex())

    async def round_of(iteration: int) -> Counter[str]:
        bucket.requests.clear()
        for partition in PARTITIONS:
            await copy(partition, iteration)
        await prune_snapshots(context, marks, 1, timedelta(0), limit)
        return bucket.requests

    count = len(PARTITIONS)
    assert await round_of(2) == {"PUT": 3 * count, "GET": count, "LIST": 1}
    assert await round_of(3) == {"PUT": 2 * count, "GET": 3 * count, "LIST": 1}, (
        "a new file and the manifest each; both manifests are read once, the newest twice"
    )
    assert await round_of(3) == {"GET": 3 * count, "LIST": 1}, "nothing has changed"
