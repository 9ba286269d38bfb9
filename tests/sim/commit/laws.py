"""What must hold after every step of a simulated run, and at rest."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from fennel_core.bank.store import AssetState
from fennel_core.blueprints.logical import AssetKind
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
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, JobId, TopicName, WorkspaceId
from tests.sim.commit.data_plane import Promises, catalog_of, lookups, promises, source_topics
from tests.sim.commit.definitions import entities, versions
from tests.sim.engine.virtual_time import now_ms

if TYPE_CHECKING:
    from tests.sim.commit.world import World


EXPECTED_FAILURES = ("SystemUnavailable", "TransactionOutcomeUnknown", "StoredNameUnknown")
"""What a step may fail with: a lost response, or a poisoned row."""


class LawViolated(Exception):
    """A step broke a law."""


BranchKey = tuple[WorkspaceId, BranchName]


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
        moved, changed = before.branch_rows != after.branch_rows, before.bank != after.bank
        if moved:
            self._branches_moved(before, after)
            self._topics_belong_to_branches_with_the_same_sources(after)
            self.reads_see_what_was_promised(after)
        if moved or changed:
            self._references_are_the_versions(after)
        if moved or changed or before.jobs != after.jobs:
            self._what_serves_is_live(after)
        if before.blobs.keys() - after.blobs.keys():
            self._world.met["pruned"] += 1
        if before.grace.keys() - after.grace.keys():
            revived = (before.grace.keys() - after.grace.keys()) & after.bank.rows.keys()
            live = [i for i in revived if after.bank.rows[i].state is AssetState.LIVE]
            self._world.met["revived"] += bool(live)

    def _commits_follow_their_life_cycle(
        self, before: MemoryLedgerTransaction, after: MemoryLedgerTransaction
    ) -> None:
        for id_, row in after.commits.items():
            old = before.commits.get(id_)
            if old is None or old.state is row.state:
                continue
            self._world.record(f"{id_} is {row.state}")
            if (id_, "merged") in after.blobs and id_ not in self._world.merged:
                self._world.merged[id_] = after.blobs[id_, "merged"]
                self._world.catalogs[id_] = catalog_of(after.blobs[id_, "catalog"])
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
                assert branch.target is not None
                self._no_update_is_lost(old, branch)
                self._rows_are_kept(old, branch)
                world, catalog = self._world, self._world.catalogs[branch.target]
                world.contents.switch_to(catalog)
                serving: tuple[Promises, Collection[JobId]] = ({}, ())
                if old.serving is not None:
                    serving = (world.promised[old.serving], world.catalogs[old.serving].jobs)
                world.promised[branch.target] = promises(
                    after, world.contents, catalog, serving, world.engines.state
                )
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
            for (name, topic), feeds in self._sources_by_topic(branch.target).items():
                reader = f"{branch.name}.{name}"
                other, others = readers.setdefault(topic, (reader, feeds))
                require(feeds == others, f"{reader} and {other} share {topic} with other sources")

    def _rows_are_kept(self, old: Branch, new: Branch) -> None:
        """A source dataset with the same version and schema keeps its topic.

        Not if its sources changed while another branch may have shared it.
        """
        if old.target is None or new.target is None:
            return
        was, now = (self._sources_by_topic(version) for version in (old.target, new.target))
        forms = [versions(self._merged(version)) for version in (old.target, new.target)]
        before = {name: (topic, feeds) for (name, topic), feeds in was.items()}
        for (name, topic), feeds in now.items():
            if name not in before or forms[0][name] != forms[1][name]:
                continue
            if before[name][1] == feeds or new.workspace not in self._world.cloned:
                require(topic == before[name][0], f"{new.target} dropped the rows of {name}")

    def _sources_by_topic(self, version: CommitId) -> dict[tuple[str, str], frozenset[str]]:
        """Return the sources of each source dataset of a version, by its name and topic."""
        catalog = self._world.catalogs[version]
        return {
            (d.name, d.topic): frozenset(s.identity for s in catalog.sources if s.dataset == d.name)
            for d in catalog.datasets
            if d.is_source and d.topic is not None
        }

    def _no_update_is_lost(self, old: Branch, new: Branch) -> None:
        """Compare a new version with the one before, what was sent, and what its server read."""
        assert new.target is not None
        sent = self._world.sent[new.target]
        read = entities(self._merged(sent.base))
        was = entities(self._merged(old.target))
        now = entities(self._merged(new.target))
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
            versions(self._merged(old.target)),
            versions(self._merged(new.target)),
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
                expected |= {(version, branch.name, id_) for id_ in self._assets_of(version)}
        require(
            state.bank.refs == expected,
            f"references differ from the versions: {sorted(state.bank.refs ^ expected)[:3]}",
        )

    def _assets_of(self, version: CommitId) -> frozenset[str]:
        """Return the assets of a version: recorded when T2 ran, because the bank is not asked."""
        catalog = self._world.catalogs[version]
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
                for id_ in self._assets_of(version):
                    row = state.bank.rows.get(id_)
                    where = f"{branch.workspace}/{branch.name} at {version}"
                    require(row is not None, f"{where} needs {id_}, which the bank does not have")
                    require(row.state is AssetState.LIVE, f"{where} needs {id_}: {row.state}")
                    if row.key.kind is AssetKind.JOB:
                        job = state.jobs.get(id_)
                        require(job is not None, f"{where} needs {id_}, which is not registered")
                        stopped = job.retired or job.paused
                        require(not stopped, f"{where} needs {id_}, which is stopped")
                    else:
                        require(id_ in topics, f"{where} needs {id_}, which Kafka does not have")

    # --- reads ------------------------------------------------------------------------------------

    def reads_see_what_was_promised(self, state: MemoryLedgerTransaction) -> None:
        """A reader sees the rows that were accepted before the T2 of the version it reads."""
        seen = self._world.engines.state
        for branch in state.branch_rows.values():
            if branch.serving is None:
                continue
            for lookup, rows in self._world.promised[branch.serving].items():
                self._world.met["read"] += bool(rows)
                missing = rows - seen.get(lookup.job, set())
                require(
                    not missing,
                    f"reads of {branch.workspace}/{branch.name} at {branch.serving} miss "
                    f"{len(missing)} of {len(rows)} rows of {lookup.dataset} ({lookup.job})",
                )

    def _every_accepted_row_is_there_once(self, state: MemoryLedgerTransaction) -> None:
        logs = self._world.logs
        for branch in state.branch_rows.values():
            if branch.serving is None:
                continue
            catalog = self._world.catalogs[branch.serving]
            for topic in source_topics(catalog):
                rows = logs.rows(topic)
                where = f"{topic} of {branch.workspace}/{branch.name}"
                require(len(rows) == len(set(rows)), f"{where} has rows twice")
                require(self._world.contents.owed(topic) <= set(rows), f"{where} lacks rows")
                require(set(rows) <= self._world.contents.allowed(topic), f"{where} has others")
            for lookup in lookups(state, catalog):
                found = self._world.engines.state.get(lookup.job, set())
                require(
                    found == set(logs.rows(lookup.topic)),
                    f"{lookup.dataset} of {branch.workspace}/{branch.name} lacks rows at rest",
                )

    def _merged(self, commit: CommitId | None) -> bytes | None:
        return None if commit is None else self._world.merged[commit]

    # --- Kafka ------------------------------------------------------------------------------------

    def before_deletion(self, names: list[TopicName]) -> None:
        """Nothing that a version or a running commit holds is destroyed."""
        bank = self._world.ledger.state.bank
        held = {id_ for _, id_ in bank.reservations} | {id_ for _, _, id_ in bank.refs}
        lost = held & set(names)
        require(not lost, f"{sorted(lost)[:2]} are destroyed although they are held")
        for name in names:
            if ".raw." in name and self._world.logs.rows(name):
                confirmed = bank.rows[AssetId(name)].workspace in self._world.confirmed
                require(confirmed, f"the rows of {name} are destroyed and no user confirmed it")
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
        retained = {i for i, a in state.bank.rows.items() if a.state is AssetState.RETAINED}
        for id_ in retained:
            ends_ms, kind = state.grace[id_].ends_ms, state.bank.rows[id_].key.kind
            may_stay = state.destroy_grace_ms or kind is AssetKind.RAW
            require(may_stay, f"{id_} is retained without a period")
            require(ends_ms is None or ends_ms > now_ms() - 10_000, f"{id_} is retained too long")
        paused = {id_ for id_, job in state.jobs.items() if job.paused}
        require(paused == retained & state.jobs.keys(), "other jobs are paused than are retained")
        held |= retained
        require(alive == held, f"assets that nothing holds: {sorted(alive ^ held)[:3]}")
        self._every_accepted_row_is_there_once(state)
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
                not (abandoned and world.without_faults) or row.id in world.interrupted,
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
