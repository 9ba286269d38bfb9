"""What ingest needs of the world, and the in-memory twins. `postgres.py` is the real clock and
directory, `kafka.py` the real lane.

Theory. One statement opens a transaction: it takes the workspace's next stamp (so stamps are causal
over all servers: whoever was acknowledged before a request was sent has the smaller one), reads how
far each source has come, and says which version of the catalogs was current at that moment. So rows
are never written under definitions that an earlier commit has replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.erasures import Erased, ErasedKeys
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
"""Changes whenever any branch of the workspace moves, appears or goes."""


@dataclass(frozen=True, slots=True)
class TransactionStart:
    """One transaction's stamp and what was true when it was taken. `now_us`: the database's
    clock.
    """

    hlc: Hlc
    now_us: Micros
    version: CatalogVersion
    progress: Mapping[Identity, SourceProgress]


class IngestClock(Protocol):
    async def begin(
        self, workspace: WorkspaceId, sources: Collection[Identity]
    ) -> TransactionStart:
        """The next stamp of the workspace. Raises `Away` when the database cannot be asked."""
        ...

    async def accepted(self, workspace: WorkspaceId, advances: Sequence[SourceAdvance]) -> None:
        """Record what a committed transaction accepted. Raises `Away`."""
        ...


@dataclass(frozen=True, slots=True)
class BranchCatalog:
    """The catalog that writes of a branch follow (its target commit)."""

    branch: BranchName
    commit: CommitId
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class Branches:
    """All committed branches of a workspace at one moment, oldest first."""

    version: CatalogVersion
    branches: tuple[BranchCatalog, ...]
    erased: Erased = field(default_factory=dict)
    """Keys whose rows are never taken again."""


class CatalogDirectory(Protocol):
    async def read(self, workspace: WorkspaceId, known: Mapping[CommitId, Catalog]) -> Branches:
        """The workspace's branches; catalogs of commits in `known` are not read again. Raises
        `Away`.
        """
        ...

    async def erase(
        self,
        workspace: WorkspaceId,
        dataset: DatasetName,
        columns: Sequence[str],
        keys: Sequence[bytes],
    ) -> None:
        """Never take rows of `dataset` with these key bytes of `columns` again. Raises `Away`."""
        ...


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    topic: TopicName
    partition: int
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


class Away(Exception):
    """The database or the log cannot be reached now; nothing was written."""


class NotWritten(Exception):
    """The log refused the transaction; nothing of it is or will be visible."""


class OutcomeUnknown(Exception):
    """The log's answer was lost: the transaction may or may not have been committed."""


class TransactionalProducer(Protocol):
    """One transactional producer: one transaction at a time."""

    async def commit(self, messages: Sequence[ProducerRecord]) -> None:
        """Write all or nothing. Raises `NotWritten`, `OutcomeUnknown`, `Away`; the lane stays
        usable after each.
        """
        ...


# --- twins ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class MemoryDirectory:
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
    """The clock of any number of servers of one process, beside their directory. `now_us` is the
    database's clock, and may go backwards.
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

    async def accepted(self, workspace: WorkspaceId, advances: Sequence[SourceAdvance]) -> None:
        for advance in advances:
            key = (workspace, advance.identity)
            self.sources[key] = advance_progress(
                self.sources.get(key, SourceProgress()), advance.latest_us, self.now_us()
            )
            self.discarded[advance.identity] = (
                self.discarded.get(advance.identity, 0) + advance.discarded
            )


@dataclass(slots=True)
class MemoryProducer:
    """Appends to a log shared by lanes: per (topic, partition), the values in the order of
    commits.
    """

    log: dict[tuple[TopicName, int], list[ProducerRecord]]

    async def commit(self, messages: Sequence[ProducerRecord]) -> None:
        for message in messages:
            self.log.setdefault((message.topic, message.partition), []).append(message)
