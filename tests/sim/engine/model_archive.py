"""The model of S3 and of pointer rows, as one process reaches them.

Objects may rot: the world truncates or removes some. All other objects that a pointer leads to must
be intact, whichever process died while writing them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.garbage import MemoryGarbageMarks
from fennel_core.connections.installation import InstallationObjects, key_prefix
from fennel_core.connections.object_store import MemoryObjectStore, StoredObject
from fennel_core.snapshots import manifest as manifests
from fennel_core.snapshots.memory import MemoryPointers
from fennel_core.snapshots.store import Pointer
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.vocab.ids import Epoch, InstallationId, JobId, JobPartition, PartitionIndex
from tests.sim.engine.faulty_components import Process
from tests.sim.engine.virtual_time import now_ms

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


INSTALLATION: Final = InstallationId("sim")
NEIGHBOUR: Final = InstallationId("neighbour")
ROOT: Final = key_prefix("", INSTALLATION)
MANIFEST: Final = "/manifest.json"


def _always(installation: InstallationId) -> Callable[[], Awaitable[InstallationId]]:
    async def identify() -> InstallationId:
        return installation

    return identify


def now() -> datetime:
    return BEGINNING + timedelta(milliseconds=now_ms())


@dataclass
class ModelArchive:
    """A bucket and pointer rows, which survive every process.

    `owners` reads the registry's epochs.
    """

    owners: Callable[[], dict[JobPartition, Epoch]]
    objects: MemoryObjectStore = field(default_factory=lambda: MemoryObjectStore(now))
    rotten: set[str] = field(default_factory=set)
    foreign: list[str] = field(default_factory=list)
    """Pointers that were added by a process that was not the owner."""

    def __post_init__(self) -> None:
        self.pointers = MemoryPointers(now, {})
        self.marks = MemoryGarbageMarks(now)

    async def claim(self) -> None:
        """Claim the bucket, as the first start of the platform does."""
        await InstallationObjects(self.objects, "", _always(INSTALLATION)).root()

    def tools(self, process: Process) -> SnapshotContext:
        """Return the archive as a process reaches it."""
        return SnapshotContext(
            InstallationObjects(SimObjects(process, self.objects), "", _always(INSTALLATION)),
            SimPointers(process, self),
        )

    def strangers(self, process: Process) -> tuple[SnapshotContext, SnapshotContext]:
        """Return the bucket as two other databases reach it: with a prefix of its own, and with
        that of this installation.
        """
        objects = SimObjects(process, self.objects)
        return (
            SnapshotContext(
                InstallationObjects(objects, "neighbour/", _always(NEIGHBOUR)),
                MemoryPointers(now, {}),
            ),
            SnapshotContext(
                InstallationObjects(objects, "", _always(NEIGHBOUR)), MemoryPointers(now, {})
            ),
        )

    def rot(self, chosen: random.Random) -> None:
        """Truncate or remove an object, often a manifest."""
        stored = sorted(key for key in self.objects.contents if key.startswith(ROOT))
        manifests = [key for key in stored if key.endswith(MANIFEST)]
        if manifests and chosen.random() < 0.4:
            stored = manifests
        if not stored:
            return
        key = chosen.choice(stored)
        self.rotten.add(key.removeprefix(ROOT))
        if chosen.random() < 0.5:
            del self.objects.contents[key]
        else:
            self.objects.contents[key] = self.objects.contents[key][:-1]

    def burn(self) -> None:
        """Remove every object of the installation; the rows still point at them."""
        for key in [key for key in self.objects.contents if key.startswith(ROOT)]:
            self.rotten.add(key.removeprefix(ROOT))
            del self.objects.contents[key]

    async def flaws(self) -> list[str]:
        """Return what is wrong with the pointers."""
        return [
            flaw
            for place in await self.pointers.partitions()
            for flaw in self._flaws(await self.pointers.of(*place))
        ]

    def _flaws(self, newest_first: Sequence[Pointer]) -> list[str]:
        epochs = [pointer.epoch for pointer in newest_first]
        found = (
            [f"snapshots of {newest_first[0].job}[{newest_first[0].part}] by epoch: {epochs}"]
            if epochs != sorted(epochs)[::-1]
            else []
        )
        for pointer in newest_first:
            body = self.objects.contents.get(ROOT + pointer.manifest)
            if pointer.manifest in self.rotten or body is None:
                found += (
                    [] if pointer.manifest in self.rotten else [f"{pointer.manifest} is missing"]
                )
                continue
            for file in manifests.decode_manifest(body).files:
                content = self.objects.contents.get(ROOT + file.object)
                if file.object not in self.rotten and (
                    content is None or hashlib.sha256(content).hexdigest() != file.sha256
                ):
                    found.append(
                        f"{pointer.manifest} names {file.object}, which is "
                        f"{'missing' if content is None else 'another'}"
                    )
        return found


class SimObjects:
    """An `ObjectStore` whose calls may fail or take long."""

    def __init__(self, process: Process, inner: MemoryObjectStore) -> None:
        self._process, self._inner = process, inner

    async def put(self, key: str, body: bytes) -> None:
        await self._process.ask(lambda: self._inner.put(key, body), SystemUnavailable)

    async def get(self, key: str) -> bytes | None:
        return await self._process.ask(lambda: self._inner.get(key), SystemUnavailable)

    async def upload(self, key: str, path: Path) -> None:
        await self._process.ask(lambda: self._inner.upload(key, path), SystemUnavailable)

    async def download(self, key: str, path: Path) -> str | None:
        return await self._process.ask(lambda: self._inner.download(key, path), SystemUnavailable)

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        return await self._process.ask(lambda: self._inner.list_objects(prefix), SystemUnavailable)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._process.ask(lambda: self._inner.delete(keys), SystemUnavailable)


class SimPointers:
    """See `snapshots.store.Pointers`."""

    def __init__(self, process: Process, archive: ModelArchive) -> None:
        self._process, self._archive = process, archive

    @property
    def _rows(self) -> MemoryPointers:
        rows = self._archive.pointers
        rows.epochs = dict(self._archive.owners())
        return rows

    async def add(
        self, job: JobId, part: PartitionIndex, epoch: Epoch, manifest: str, sha256: str
    ) -> bool:
        await self._process.maybe_pause(0.05)
        return await self._process.ask(
            lambda: self._added(job, part, epoch, manifest, sha256), SystemUnavailable
        )

    async def _added(
        self, job: JobId, part: PartitionIndex, epoch: Epoch, manifest: str, sha256: str
    ) -> bool:
        added = await self._rows.add(job, part, epoch, manifest, sha256)
        if added and self._archive.owners().get((job, part)) != epoch:
            self._archive.foreign.append(
                f"{manifest} was pointed at by epoch {epoch}, which does not own {job}[{part}]"
            )
        return added

    async def of(self, job: JobId, part: PartitionIndex) -> list[Pointer]:
        return await self._process.ask(lambda: self._rows.of(job, part), SystemUnavailable)

    async def all(self) -> dict[JobPartition, list[Pointer]]:
        return await self._process.ask(lambda: self._rows.all(), SystemUnavailable)

    async def partitions(self) -> list[JobPartition]:
        return await self._process.ask(lambda: self._rows.partitions(), SystemUnavailable)

    async def jobs(self) -> set[JobId]:
        return await self._process.ask(lambda: self._rows.jobs(), SystemUnavailable)

    async def now(self) -> datetime:
        return await self._process.ask(lambda: self._rows.now(), SystemUnavailable)

    async def mark_incomplete(self, numbers: Collection[int], incomplete: bool) -> None:
        await self._process.ask(
            lambda: self._rows.mark_incomplete(numbers, incomplete), SystemUnavailable
        )

    async def remove(self, pointers: Sequence[Pointer]) -> None:
        await self._process.ask(lambda: self._rows.remove(pointers), SystemUnavailable)
