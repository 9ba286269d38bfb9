"""Interfaces of ingest to Postgres and Kafka, and their in-memory implementations.

`postgres.py` implements the clock and the catalog directory, `kafka.py` the producer.

One statement starts a transaction: it takes the workspace's next stamp, reads how far each source
has progressed, and reads which version of the catalogs is current at that moment. Stamps are causal
over all servers: a request that was sent after another one was acknowledged gets a larger stamp.
And rows are never written under definitions that an earlier commit has replaced.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.erasures import Erased, ErasedKeys
from fennel_core.connections.errors import TransactionAborted
from fennel_core.ingest.acceptance import SourceAdvance, SourceProgress, advance_progress
from fennel_core.vocab.ids import (
    BranchName,
    CommitId,
    DatasetName,
    Identity,
    Micros,
    TopicName,
    WorkspaceId,
)
from fennel_core.vocab.position import Hlc, next_hlc

CatalogVersion = str
"""Changes whenever a branch of the workspace is created, deleted or gets a new commit."""


@dataclass(frozen=True, slots=True)
class TransactionStart:
    """The stamp of one transaction, and the state it was taken in.

    `now_us` is the database's clock; `progress` holds the sources that have accepted rows before.
    """

    hlc: Hlc
    now_us: Micros
    version: CatalogVersion
    progress: Mapping[Identity, SourceProgress]


class IngestClock(Protocol):
    """Stamps of transactions and progress of sources, shared by all ingest servers."""

    async def begin(
        self, workspace: WorkspaceId, sources: Collection[Identity]
    ) -> TransactionStart:
        """Take the next stamp of the workspace. Raises `SystemUnavailable`."""
        ...

    async def record_accepted(
        self, workspace: WorkspaceId, advances: Sequence[SourceAdvance]
    ) -> None:
        """Record the advances of a committed transaction. Raises `SystemUnavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class BranchCatalog:
    """The catalog of a branch's target commit; writes follow it."""

    branch: BranchName
    commit: CommitId
    catalog: Catalog
    created_us: Micros = field(default=Micros(0), compare=False)
    """When the commit was made; the newest has the credentials of a connector."""


@dataclass(frozen=True, slots=True)
class Branches:
    """All branches of a workspace that have a commit, oldest first, in one consistent read."""

    version: CatalogVersion
    branches: tuple[BranchCatalog, ...]
    erased: Erased = field(default_factory=dict)
    """Keys whose rows are never accepted again."""


class CatalogDirectory(Protocol):
    """The catalogs of all branches, and the erased keys."""

    async def read(self, workspace: WorkspaceId, known: Mapping[CommitId, Catalog]) -> Branches:
        """Return the workspace's branches, reusing the catalogs of commits in `known`.

        Raises `SystemUnavailable`.
        """
        ...

    async def erase(
        self,
        workspace: WorkspaceId,
        dataset: DatasetName,
        columns: Sequence[str],
        keys: Sequence[bytes],
    ) -> None:
        """Erase the rows of `dataset` with these key bytes of `columns`, now and in future.

        Raises `SystemUnavailable`.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """One record to write to a Kafka partition."""

    topic: TopicName
    partition: int
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    key: bytes | None = None
    """Kafka keeps the last record of each key of a compacted topic."""


def boot_s() -> float:
    """Return the seconds since the machine started, including those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def require_in_time(deadline_s: float) -> None:
    """Raise TransactionAborted after `deadline_s` of `boot_s`."""
    if boot_s() > deadline_s:
        raise TransactionAborted(
            "the server took too long between the stamp of the request and its transaction"
        )


class TransactionalProducer(Protocol):
    """A Kafka producer that runs one transaction at a time."""

    async def commit(
        self, messages: Sequence[ProducerRecord], deadline_s: float = math.inf
    ) -> None:
        """Write all records in one transaction, or none after `deadline_s` of `boot_s`.

        Raises `TransactionAborted`, `TransactionOutcomeUnknown` and `SystemUnavailable`; the
        producer stays usable after each.
        """
        ...


@dataclass(slots=True)
class MemoryDirectory:
    """In-memory `CatalogDirectory`; tests write `workspaces`."""

    workspaces: dict[WorkspaceId, Branches] = field(default_factory=dict)

    async def read(self, workspace: WorkspaceId, known: Mapping[CommitId, Catalog]) -> Branches:
        del known
        return self.workspaces.get(workspace, Branches("", ()))

    async def erase(
        self,
        workspace: WorkspaceId,
        dataset: DatasetName,
        columns: Sequence[str],
        keys: Sequence[bytes],
    ) -> None:
        found = self.workspaces.get(workspace, Branches("", ()))
        if (
            all(
                set(keys) <= e.keys
                for e in found.erased.get(dataset, ())
                if e.columns == tuple(columns)
            )
            and dataset in found.erased
        ):
            return
        erased = {
            **found.erased,
            dataset: (*found.erased.get(dataset, ()), ErasedKeys(tuple(columns), frozenset(keys))),
        }
        self.workspaces[workspace] = Branches(f"{found.version}#", found.branches, erased)


@dataclass(slots=True)
class MemoryIngestClock:
    """In-memory `IngestClock` of any number of servers in one process.

    `now_us` replaces the database's clock and may go backwards.
    """

    now_us: Callable[[], Micros]
    directory: MemoryDirectory = field(default_factory=MemoryDirectory)
    stamps: dict[WorkspaceId, Hlc] = field(default_factory=dict)
    sources: dict[tuple[WorkspaceId, Identity], SourceProgress] = field(default_factory=dict)
    discarded: dict[Identity, int] = field(default_factory=dict)

    async def begin(
        self, workspace: WorkspaceId, sources: Collection[Identity]
    ) -> TransactionStart:
        now_us = self.now_us()
        stamp = self.stamps[workspace] = next_hlc(
            self.stamps.get(workspace, Hlc(0)), now_us // 1000
        )
        known = {
            identity: self.sources[workspace, identity]
            for identity in sources
            if (workspace, identity) in self.sources
        }
        version = self.directory.workspaces.get(workspace, Branches("", ())).version
        return TransactionStart(stamp, now_us, version, known)

    async def record_accepted(
        self, workspace: WorkspaceId, advances: Sequence[SourceAdvance]
    ) -> None:
        for advance in advances:
            key = (workspace, advance.identity)
            self.sources[key] = advance_progress(
                self.sources.get(key, SourceProgress()), advance.latest_us, self.now_us()
            )
            self.discarded[advance.identity] = (
                self.discarded.get(advance.identity, 0) + advance.discarded
            )


@dataclass(slots=True)
class MemoryTransactionalProducer:
    """In-memory `TransactionalProducer`: appends to `log`, which producers share.

    `log` holds per (topic, partition) the records in commit order.
    """

    log: dict[tuple[TopicName, int], list[ProducerRecord]]

    async def commit(
        self, messages: Sequence[ProducerRecord], deadline_s: float = math.inf
    ) -> None:
        require_in_time(deadline_s)
        for message in messages:
            self.log.setdefault((message.topic, message.partition), []).append(message)
