"""What must hold after every step of a simulated run, and at rest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from fennel_core.bank.store import AssetState
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.logical import AssetKind
from fennel_core.blueprints.spec import Catalog
from fennel_core.ledger.errors import CommitAbandoned, CommitStepFailed
from fennel_core.ledger.lifecycle import (
    BETWEEN_T1_AND_T2,
    COMMIT,
    COMMITTED,
    SETTLED,
    CommitEvent,
    CommitState,
)
from fennel_core.ledger.memory import MemoryLedgerTransaction
from fennel_core.ledger.store import Branch
from fennel_core.vocab.ids import BranchName, CommitId, TopicName, WorkspaceId
from tests.sim.commit.definitions import entities, versions

if TYPE_CHECKING:
    from tests.sim.commit.world import World


EXPECTED_FAILURES = ("SystemUnavailable", "TransactionOutcomeUnknown", "StoredNameUnknown")
"""What a step may fail with: a lost response, or a poisoned row."""


class LawViolated(Exception):
    """A step broke a law."""


BranchKey = tuple[WorkspaceId, BranchName]


@lru_cache(maxsize=4096)
def catalog_of(blob: bytes) -> Catalog:
    return stored_names.loads(blob, Catalog)


def require(holds: object, text: str) -> None:
    if not holds:
        raise LawViolated(text)


class Laws:
    """Compares the state before and after each transaction, and each request to Kafka."""

    def __init__(self, world: World) -> None:
        self._world = world

    # --- after every transaction ------------------------------------------------------------------

    def after_transaction(
        self, before: MemoryLedgerTransaction, after: MemoryLedgerTransaction
    ) -> None:
        if before.commits != after.commits:
            self._commits_follow_their_life_cycle(before, after)
        if before.branch_rows != after.branch_rows:
            self._branches_moved(before, after)
            self._topics_belong_to_branches_with_the_same_sources(after)
        if before.bank != after.bank or before.branch_rows != after.branch_rows:
            self._references_are_the_versions(after)
        self._what_serves_is_live(after)

    def _commits_follow_their_life_cycle(
        self, before: MemoryLedgerTransaction, after: MemoryLedgerTransaction
    ) -> None:
        for id_, row in after.commits.items():
            old = before.commits.get(id_)
            if old is None or old.state is row.state:
                continue
            self._world.record(f"{id_} is {row.state}")
            if row.state is CommitState.RESERVED:
                reserved = {asset for holder, asset in after.bank.reservations if holder == id_}
                self._world.planned[id_] = frozenset(reserved)
            steps = {COMMIT.transitions.get((old.state, event)) for event in CommitEvent}
            require(row.state in steps, f"{id_} went from {old.state} to {row.state}")
        for id_, row in after.commits.items():
            if row.state in SETTLED:
                held = [1 for holder, _ in after.bank.reservations if holder == id_]
                require(not held, f"{id_} is {row.state} and reserves assets")

    def _branches_moved(
        self, before: MemoryLedgerTransaction, after: MemoryLedgerTransaction
    ) -> None:
        for key, branch in after.branch_rows.items():
            old = before.branch_rows.get(key)
            if old is None:
                continue
            if branch.target != old.target:
                require(branch.target is not None, f"{key} lost its target")
                self._no_update_is_lost(after, old, branch)
                self._rows_are_kept(after, old, branch)
            if branch.serving != old.serving:
                require(branch.serving == branch.target, f"{key} serves an old version")

    def _topics_belong_to_branches_with_the_same_sources(
        self, state: MemoryLedgerTransaction
    ) -> None:
        """No branch reads rows of a source that only another branch has.

        What a branch serves besides its target is replaced soon, and is fed like the target.
        """
        readers: dict[str, tuple[str, frozenset[str]]] = {}
        for branch in state.branch_rows.values():
            if branch.target is None:
                continue
            for (name, topic), feeds in sources_by_topic(state, branch.target).items():
                reader = f"{branch.name}.{name}"
                other, others = readers.setdefault(topic, (reader, feeds))
                require(feeds == others, f"{reader} and {other} share {topic} with other sources")

    def _rows_are_kept(self, state: MemoryLedgerTransaction, old: Branch, new: Branch) -> None:
        """A source dataset with the same version and schema keeps its topic.

        Not if its sources changed while another branch may have shared it.
        """
        if old.target is None or new.target is None:
            return
        was, now = (sources_by_topic(state, version) for version in (old.target, new.target))
        forms = [versions(_merged(state, version)) for version in (old.target, new.target)]
        before = {name: (topic, feeds) for (name, topic), feeds in was.items()}
        for (name, topic), feeds in now.items():
            if name not in before or forms[0][name] != forms[1][name]:
                continue
            if before[name][1] == feeds or new.workspace not in self._world.cloned:
                require(topic == before[name][0], f"{new.target} dropped the rows of {name}")

    def _no_update_is_lost(self, state: MemoryLedgerTransaction, old: Branch, new: Branch) -> None:
        """Compare a new version with the one before, what was sent, and what its server read."""
        assert new.target is not None
        sent = self._world.sent[new.target]
        read = entities(_merged(state, sent.base))
        was = entities(_merged(state, old.target))
        now = entities(_merged(state, new.target))
        asked = entities(sent.body)
        self._world.record(f"{new.workspace}/{new.name} is now {new.target}: {sorted(now)}")
        for name in sorted({n for n in read.keys() | was.keys() if read.get(n) != was.get(n)}):
            require(
                now.get(name) == was.get(name),
                f"{new.target} lost what {old.target} made of {name} after it was validated",
            )
        if sent.incremental:
            wanted = dict(was) | {n: e for n, e in asked.items() if e != read.get(n)}
        else:
            wanted = dict(asked)
        require(now == wanted, f"{new.target} is not what was asked for: {sorted(now)}")
        before, after = (
            versions(_merged(state, old.target)),
            versions(_merged(state, new.target)),
        )
        for name in before.keys() & after.keys():
            (old_version, old_schema), (version, schema) = before[name], after[name]
            require(
                schema == old_schema or version > old_version,
                f"{new.target} changed the schema of {name} and not its version",
            )

    def _references_are_the_versions(self, state: MemoryLedgerTransaction) -> None:
        """Count every reference again from the catalogs of the branches."""
        expected = set()
        for branch in state.branch_rows.values():
            for version in {branch.target, branch.serving} - {None}:
                assert version is not None
                expected |= {(version, branch.name, id_) for id_ in self._assets_of(state, version)}
        require(
            state.bank.refs == expected,
            f"references differ from the versions: {sorted(state.bank.refs ^ expected)[:3]}",
        )

    def _assets_of(self, state: MemoryLedgerTransaction, version: CommitId) -> frozenset[str]:
        """Return the assets of a version: recorded when T2 ran, because the bank is not asked."""
        catalog = catalog_of(state.blobs[version, "catalog"])
        if version not in self._world.assets_of:
            reached = self._world.planned[version]
            named = {d.topic for d in catalog.datasets if d.topic} | set(catalog.jobs)
            require(named <= reached, f"{version} serves assets that it did not reserve")
            self._world.assets_of[version] = reached
        return self._world.assets_of[version]

    def _what_serves_is_live(self, state: MemoryLedgerTransaction) -> None:
        topics = self._world.topics.partition_counts
        for branch in state.branch_rows.values():
            for version in {branch.target, branch.serving} - {None}:
                assert version is not None
                for id_ in self._assets_of(state, version):
                    row = state.bank.rows.get(id_)  # type: ignore[call-overload]
                    where = f"{branch.workspace}/{branch.name} at {version}"
                    require(row is not None, f"{where} needs {id_}, which the bank does not have")
                    require(row.state is AssetState.LIVE, f"{where} needs {id_}: {row.state}")
                    if row.key.kind is AssetKind.JOB:
                        job = state.jobs.get(id_)  # type: ignore[call-overload]
                        require(job is not None, f"{where} needs {id_}, which is not registered")
                        require(not job.retired, f"{where} needs {id_}, which is retired")
                    else:
                        require(id_ in topics, f"{where} needs {id_}, which Kafka does not have")

    # --- Kafka ------------------------------------------------------------------------------------

    def before_deletion(self, names: list[TopicName]) -> None:
        """Nothing that a version or a running commit holds is destroyed."""
        bank = self._world.ledger.state.bank
        held = {id_ for _, id_ in bank.reservations} | {id_ for _, _, id_ in bank.refs}
        lost = held & set(names)
        require(not lost, f"{sorted(lost)[:2]} are destroyed although they are held")
        for job in self._world.ledger.state.jobs.values():
            used = job.spec.topics & set(names)
            require(not used, f"{sorted(used)[:2]} are destroyed although {job.spec.id} uses them")

    # --- at rest ----------------------------------------------------------------------------------

    def unsettled(self, workspaces: set[WorkspaceId]) -> list[str]:
        """Return what is left to do in these workspaces."""
        return list(self._unsettled(self._world.ledger.state, workspaces))

    def _unsettled(
        self, state: MemoryLedgerTransaction, workspaces: set[WorkspaceId]
    ) -> Iterator[str]:
        for row in state.commits.values():
            if row.workspace in workspaces and row.state not in SETTLED:
                yield f"{row.id} is {row.state}"
        for entry in state.entry_rows.values():
            if entry.workspace in workspaces and entry.state in ("pending", "failed"):
                yield f"{entry.ledger} of {entry.asset} is {entry.state}: {entry.error}"
        for workspace in state.closing & workspaces:
            yield f"workspace {workspace} is not gone"

    def at_rest(self) -> None:
        """No orphan, no missing asset, nothing reserved, reads have moved, failures have causes."""
        state, world = self._world.ledger.state, self._world
        require(not state.bank.reservations, "a reservation is left")
        held = {id_ for _, _, id_ in state.bank.refs}
        alive = {i for i, a in state.bank.rows.items() if a.state is not AssetState.DELETED}
        require(alive == held, f"assets that nothing holds: {sorted(alive ^ held)[:3]}")
        topics = {i for i in held if state.bank.rows[i].key.kind is not AssetKind.JOB}
        there = set(world.topics.partition_counts)
        require(
            there == topics, f"topics that nothing holds, or lost: {sorted(there ^ topics)[:3]}"
        )
        require(set(state.jobs) == held - topics, "jobs that nothing holds, or lost")
        for branch in state.branch_rows.values():
            require(branch.target == branch.serving, f"reads of {branch.name} have not moved")
        for row in state.commits.values():
            failed = row.state in (CommitState.REJECTED, CommitState.ROLLED_BACK)
            require(not failed or row.error, f"{row.id} failed without a reason")
            require(row.state not in BETWEEN_T1_AND_T2, f"{row.id} is {row.state}")
            crashed = row.error is not None and row.error.code == CommitStepFailed.CODE
            require(
                not crashed or any(name in row.error.text for name in EXPECTED_FAILURES),
                f"{row.id} met a bug: {row.error and row.error.text}",
            )
            abandoned = row.error is not None and row.error.code == CommitAbandoned.CODE
            require(
                not (abandoned and world.without_faults),
                f"{row.id} was undone while it was running",
            )
        for id_, response in world.responses:
            outcome = state.commits.get(id_)
            if outcome is not None and response == "200":
                require(
                    outcome.state in COMMITTED, f"{id_} was answered 200 and is {outcome.state}"
                )
            if outcome is not None and response == "nothing changed":
                require(
                    outcome.state not in COMMITTED,
                    f"{id_} was answered `nothing changed` and is {outcome.state}",
                )


def sources_by_topic(
    state: MemoryLedgerTransaction, version: CommitId
) -> dict[tuple[str, str], frozenset[str]]:
    """Return the sources of each source dataset of a version, by its name and topic."""
    catalog = catalog_of(state.blobs[version, "catalog"])
    return {
        (d.name, d.topic): frozenset(s.identity for s in catalog.sources if s.dataset == d.name)
        for d in catalog.datasets
        if d.is_source and d.topic is not None
    }


def _merged(state: MemoryLedgerTransaction, commit: CommitId | None) -> bytes | None:
    return None if commit is None else state.blobs[commit, "merged"]
