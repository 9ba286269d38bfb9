"""One run of the simulated control plane: the production commit service among faults.

Theory. Users of several workspaces send full and incremental commits, previews, clones and
deletions of branches to two definition servers, which run the steps themselves or through a model
of Airflow; rows arrive all the time (`data_plane.py`), and what is dropped is retained for a while
in some runs and defined again now and then. Everything is the production code except the stores (in
memory), Kafka, Airflow, ingest and the engines, whose jobs fall behind and stop late. Time is
virtual.

While faults occur, these laws hold after *every* transaction and request to Kafka (`laws.py`): what
a branch serves, and what it will serve, exists and is live; references, counted again, are exactly
the versions of the branches; nothing that is held is destroyed, and no accepted row unless a user
confirmed it; a new version contains what was asked for and every change that others made since it
was validated; life cycles are followed. Readers see every row that was accepted before the T2 of
the version they read, always. When the faults stop, every commit settles although one may be
poisoned (then, once it is repaired, that one too), nothing is left over or missing, and every
accepted row is on every topic of its endpoint once. A seed always produces the same run.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from fennel_core.bank.memory import MemoryBank
from fennel_core.bank.store import Asset
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.errors import ConnectionsError
from fennel_core.definition.commit_request import CommitRequest
from fennel_core.definition.commit_service import CommitService
from fennel_core.definition.commit_steps import CommitSteps
from fennel_core.definition.errors import CommitStillRunning, OrchestratorUnavailable
from fennel_core.definition.orchestrator import CommitOrchestrator, InlineOrchestrator, run_check
from fennel_core.definition.reconcile_loop import ReconcileLoop
from fennel_core.ledger import branches
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.lifecycle import SETTLED, CommitState
from fennel_core.ledger.memory import MemoryLedger, MemoryLedgerTransaction
from fennel_core.ledger.store import CommitOptions, LedgerTransaction
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.vocab.errors import ApiError, StoredNameUnknown
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    AssetId,
    BranchName,
    CommitId,
    Millis,
    TopicName,
    WorkspaceId,
)
from tests.sim.commit.airflow import ModelAirflow, SimAirflowOrchestrator
from tests.sim.commit.data_plane import Contents, Engines, Ingest, Logs, Promises
from tests.sim.commit.definitions import (
    Definition,
    derived,
    fed_by,
    pulled,
    request,
    source,
    wider,
)
from tests.sim.commit.laws import Laws, LawViolated
from tests.sim.commit.processes import (
    Dice,
    Process,
    Sent,
    SimChanges,
    SimLedger,
    SimTopics,
    task_factory,
)
from tests.sim.engine.virtual_time import now_ms, run

WORKSPACES: Final = (WorkspaceId("bank"), WorkspaceId("shop"))
EXPERIMENT: Final = BranchName("experiment")
COMMITS_PER_USER: Final = 4
EDITS: Final = (
    *("add", "derive", "derive", "widen", "describe", "remove", "remove", "same"),
    *("feed", "feed"),
)
USERS: Final = 4
SETTLED_WITHIN_S: Final = 1_800
APPLIED_WITHIN_S: Final = 1_800
RECONCILE_S: Final = 2.0
PRUNING_PASSES: Final = 2
SHORT_HISTORY_MS: Final = Millis(20_000)
SHORT_GRACE_MS: Final = 60_000
"""Periods up to this end within the run."""


class ObservedLedger(MemoryLedger):
    """Checks the laws after each transaction."""

    def __init__(self, world: World) -> None:
        super().__init__(now_ms, world.destroy_grace_ms)
        self.state.bank = PoisonableBank(self.state.bank.incarnations, poisoned=world.poisoned)
        self._world = world

    async def run(self, work: Callable[[LedgerTransaction], Any]) -> Any:
        before = self.state
        result = await super().run(work)
        self._world.observe(before, self.state)
        return result


@dataclass(slots=True)
class PoisonableBank(MemoryBank):
    """A bank in which some blueprints were written by a version that is unknown here."""

    poisoned: set[AssetId] = field(default_factory=set)

    def copy(self) -> MemoryBank:
        copied = MemoryBank.copy(self)
        return PoisonableBank(
            copied.incarnations,
            copied.open_workspaces,
            copied.rows,
            copied.reservations,
            copied.refs,
            copied.changed_sources,
            self.poisoned,
        )

    async def assets(self, ids: Iterable[AssetId]) -> list[Asset]:
        found = await MemoryBank.assets(self, ids)
        if any(asset.id in self.poisoned for asset in found):
            raise StoredNameUnknown.of("class", "Gone")
        return found


class ObservedTopics(MemoryTopicAdmin):
    """Checks before each deletion that nothing needs the topics."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def delete(self, names: Sequence[TopicName]) -> Any:
        if self._world.broken is None:
            try:
                self._world.laws.before_deletion(list(names))
            except LawViolated as violated:
                self._world.broken = violated
        for name in names:
            self._world.logs.delete(name)
        return await super().delete(names)


@dataclass
class Server:
    """A definition server."""

    process: Process
    commits: CommitService


@dataclass
class World:
    seed: int
    dice: Dice = field(init=False)
    events: list[str] = field(default_factory=list)
    sent: dict[CommitId, Sent] = field(default_factory=dict)
    planned: dict[CommitId, frozenset[str]] = field(default_factory=dict)
    assets_of: dict[CommitId, frozenset[str]] = field(default_factory=dict)
    responses: list[tuple[CommitId, str]] = field(default_factory=list)
    poisoned: set[AssetId] = field(default_factory=set)
    cloned: set[WorkspaceId] = field(default_factory=set)
    merged: dict[CommitId, bytes] = field(default_factory=dict)
    """The content of every version, also after it was pruned."""
    catalogs: dict[CommitId, Catalog] = field(default_factory=dict)
    promised: dict[CommitId, Promises] = field(default_factory=dict)
    removed: dict[WorkspaceId, dict[str, Definition]] = field(default_factory=dict)
    confirmed: set[WorkspaceId] = field(default_factory=set)
    """Workspaces in which a user has confirmed that rows may be lost."""
    met: Counter[str] = field(default_factory=Counter)
    """How often the run met what a law is about."""
    interrupted: set[CommitId] = field(default_factory=set)
    """Commits that were running when all servers started again."""
    broken: LawViolated | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311  # repeatable, and no secret
        rate = self.random.choice([0.0, 0.0, 0.005, 0.02, 0.05])
        self.dice = Dice(self.random, rate, self.random.choice([0.0, 0.0, 150.0]))
        self.without_faults = rate == 0.0
        self.running = True
        self.destroy_grace_ms = Millis(self.random.choice([0, 10_000, 60_000, 7_200_000]))
        self.cautious = self.random.random() < 0.5
        """Users confirm no loss and delete no branch."""
        self.laws = Laws(self)
        self.ledger = ObservedLedger(self)
        self.topics = ObservedTopics(self)
        self.logs = Logs(self.topics)
        self.contents = Contents()
        self.with_airflow = self.random.random() < 0.5
        self.with_poison = self.random.random() < 0.4
        """Its commit must be left to reconcile, so jobs take longer than a worker waits."""
        self.engines = Engines(
            self.ledger,
            self.logs,
            self.random,
            slow_s=80.0 if self.with_poison else self.random.choice([0.5, 5.0, 40.0]),
            rates=self.random.choice([(1_000,), (1, 1_000), (1, 5)]),
            dies=lambda: self.dice.rate > 0,
        )
        self.ingest = Ingest(self.ledger, self.logs, self.contents, self.random)
        self._names = itertools.count(1)

    # --- observing --------------------------------------------------------------------------------

    def record(self, text: str) -> None:
        self.events.append(f"{now_ms() / 1000:8.2f}  {text}")

    def observe(self, before: MemoryLedgerTransaction, after: MemoryLedgerTransaction) -> None:
        if self.broken is None:
            try:
                self.laws.after_transaction(before, after)
            except LawViolated as violated:
                self.broken = violated

    def require_laws(self) -> None:
        if self.broken is not None:
            raise self.broken

    # --- processes --------------------------------------------------------------------------------

    def new_process(self, name: str) -> Process:
        return Process(name, self.dice, self.record)

    def steps_in(self, process: Process) -> CommitSteps:
        """Return the steps of a new process, which is started with the settings of that day."""
        context = LedgerContext(
            SimLedger(self.ledger, process),
            SimTopics(self.topics, process),
            asyncio.sleep,
            LedgerTimings(warm_poll_seconds=1.0, commit_history_ms=SHORT_HISTORY_MS),
            lambda: now_ms() / 1000,
        )
        return CommitSteps(
            context,
            _no_program,
            new_workspace_partitions=self.random.choice([1, 2, 4]),
            warm_seconds=20,
        )

    def start_server(self, name: str) -> Server:
        process = self.new_process(name)
        steps = self.steps_in(process)
        orchestrator: CommitOrchestrator = InlineOrchestrator(steps.run)
        warming = None
        if self.with_airflow:
            orchestrator = SimAirflowOrchestrator(self.airflow, process)
            warming = InlineOrchestrator(steps.warm)
        commits = CommitService(
            steps,
            orchestrator,
            lambda: CommitId(f"c{next(self._names)}"),
            lambda: now_ms() / 1000,
            timeout_seconds=60,
            changes=SimChanges(process),
            warming=warming,
        )
        loop = ReconcileLoop(
            steps.context, RECONCILE_S, run_check(orchestrator), pruning_passes=PRUNING_PASSES
        )
        process.spawn(loop.run())
        self.record(f"{name} starts")
        return Server(process, commits)

    async def keep_servers(self) -> None:
        """Start a server again, with other settings, some time after it died."""
        while True:
            await asyncio.sleep(1)
            for index, server in enumerate(self.servers):
                if not server.process.alive:
                    await asyncio.sleep(self.random.choice([0, 3, 100]))
                    self.servers[index] = self.start_server(f"server-{next(self._names)}")

    # --- readers ----------------------------------------------------------------------------------

    async def reader(self) -> None:
        """Read every row of every branch now and then."""
        while True:
            await asyncio.sleep(self.random.random() * 3)
            if self.broken is None:
                try:
                    self.laws.reads_see_what_was_promised(self.ledger.state)
                except LawViolated as violated:
                    self.broken = violated

    # --- users ------------------------------------------------------------------------------------

    async def user(self, number: int) -> None:
        """Commit a few times to one branch, each time from what the branch had."""
        workspace = WORKSPACES[number % len(WORKSPACES)]
        branch = MAIN_BRANCH
        for turn in range(COMMITS_PER_USER):
            await asyncio.sleep(self.random.random() * 6)
            if self.random.random() < 0.15 and not self.cautious:
                await self._change_branches(workspace)
            branch = self.random.choice([MAIN_BRANCH, MAIN_BRANCH, EXPERIMENT])
            view = pulled(self._content(workspace, branch))
            changed, whole = self._edit(workspace, view, f"U{number}x{turn}")
            incremental = view.keys() <= whole.keys() and self.random.random() < 0.6
            sent = request(changed.values() if incremental else whole.values())
            for _ in range(self.random.choice([1, 1, 2, 3])):
                outcome = await self._send(workspace, branch, sent, incremental=incremental)
                if outcome in ("200", "refused"):
                    break

    def _content(self, workspace: WorkspaceId, branch: BranchName) -> bytes | None:
        target = self._target(workspace, branch)
        return None if target is None else self.merged[target]

    def _target(self, workspace: WorkspaceId, branch: BranchName) -> CommitId | None:
        row = self.ledger.state.branch_rows.get((workspace, branch))
        return None if row is None else row.target

    def _edit(
        self, workspace: WorkspaceId, view: dict[str, Definition], new: str
    ) -> tuple[dict[str, Definition], dict[str, Definition]]:
        """Return the changed definitions, and the whole set of definitions after the change."""
        changed: dict[str, Definition] = {}
        whole = dict(view)
        removed = self.removed.setdefault(workspace, {})
        restored = {n: d for n, d in removed.items() if n not in view}
        kind = self.random.choice(EDITS)
        if restored and self.random.random() < 0.4:
            kind = "restore"
        if kind == "add" or not view:
            changed[new] = source(new)
        elif kind == "derive":
            input_ = view[self.random.choice(sorted(view))]
            changed[new] = derived(new, input_) if len(input_.fields) > 1 else source(new)
        elif kind == "widen":
            name = self.random.choice(sorted(view))
            self._widen(view, view[name], new.lower(), changed)
        elif kind == "feed":
            name = self.random.choice(sorted(view))
            if view[name].reads is None:
                changed[name] = fed_by(view[name], self.random.choice(["extra", name]))
        elif kind == "describe":
            name = self.random.choice(sorted(view))
            changed[name] = replace(view[name], description=new)
        elif kind == "remove":
            name = self.random.choice(sorted(view))
            for reader in self._readers(view, name):
                removed |= {reader: whole.pop(reader)} if reader in whole else {}
        elif kind == "restore":
            known = view.keys() | restored.keys()
            changed |= {n: d for n, d in restored.items() if d.reads is None or d.reads in known}
        if self.random.random() < 0.3 and view:  # a user who sends an unchanged dataset, too
            name = self.random.choice(sorted(view))
            changed.setdefault(name, view[name])
        return changed, whole | changed

    def _readers(self, view: dict[str, Definition], name: str) -> list[str]:
        found = [name]
        for each in found:
            found += [d.name for d in view.values() if d.reads == each]
        return found

    def _widen(
        self,
        view: dict[str, Definition],
        definition: Definition,
        new: str,
        changed: dict[str, Definition],
    ) -> None:
        """Widen a source and everything that is derived from it."""
        while definition.reads is not None:
            definition = view[definition.reads]
        for name in self._readers(view, definition.name):
            changed[name] = wider(view[name], new)

    async def _change_branches(self, workspace: WorkspaceId) -> None:
        server = self.random.choice(self.servers)
        context = server.commits.steps.context
        if (workspace, EXPERIMENT) in self.ledger.state.branch_rows:
            self.record(f"{workspace}/{EXPERIMENT} is deleted")
            self.confirmed.add(workspace)
            work = branches.delete_branch(context, workspace, EXPERIMENT)
        else:
            self.record(f"{workspace}/{EXPERIMENT} is cloned")
            self.cloned.add(workspace)
            work = branches.clone_branch(context, workspace, EXPERIMENT, MAIN_BRANCH)
        await asyncio.wait([server.process.spawn(work)])

    async def _send(
        self, workspace: WorkspaceId, branch: BranchName, body: bytes, *, incremental: bool
    ) -> str:
        """Send a commit to some server; return what its user learns."""
        server = self.random.choice(self.servers)
        if not server.process.alive:
            return "unreachable"
        sent = Sent(body, incremental, read_base=lambda: self._target(workspace, branch))
        service = replace(server.commits, new_id=lambda: self._new_id(sent))
        confirms = not self.cautious and self.random.random() < 0.5
        if confirms:
            self.confirmed.add(workspace)
        options = CommitOptions(incremental, True, confirms)
        kind = "incremental" if incremental else "full"
        self.record(f"a {kind} commit of {sorted(pulled(body))} to {workspace}/{branch}")
        work = service.commit(CommitRequest(workspace, branch, body, options))
        task = server.process.spawn(work, sent)
        await asyncio.wait([task])
        outcome = self._outcome(task)
        ids = [id_ for id_, each in self.sent.items() if each is sent]
        self.responses += [(id_, outcome) for id_ in ids[-1:]]
        self.record(f"{' '.join(ids) or 'no commit'}: {outcome}")
        return outcome

    def _new_id(self, sent: Sent) -> CommitId:
        id_ = CommitId(f"c{next(self._names)}")
        self.sent[id_] = sent
        return id_

    def _outcome(self, task: asyncio.Task[Any]) -> str:
        if task.cancelled():
            return "no response"
        match task.exception():
            case None:
                return "200"
            case CommitStillRunning():
                return "still running"
            case OrchestratorUnavailable():
                return "nothing changed"
            case ApiError() as error:
                return "unavailable" if error.status == 503 else "refused"
            case ConnectionsError():
                return "unavailable"
            case Exception() as bug:
                raise bug
        return "no response"

    # --- the run ----------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run from start to end."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(task_factory)  # type: ignore[arg-type]  # its protocol is generic
        loop.set_exception_handler(lambda *_: None)  # tasks of dead processes
        self.airflow = ModelAirflow(self.steps_in, self.new_process, self.record)
        for workspace in WORKSPACES:
            await self.ledger.run(lambda tx, w=workspace: tx.add_workspace(w))
        self.servers = [self.start_server(f"server-{n}") for n in "ab"]
        background = [
            asyncio.create_task(self.keep_servers()),
            asyncio.create_task(self.engines.run()),
            asyncio.create_task(self.reader()),
            asyncio.create_task(self.poison()),
            asyncio.create_task(self.airflow_that_loses_responses()),
        ]
        ingest = [asyncio.create_task(self.ingest.run(each)) for each in WORKSPACES]
        try:
            async with asyncio.timeout(3_600):
                await asyncio.gather(*(self.user(n) for n in range(USERS)))
            for task in ingest:
                task.cancel()
            self.dice.rate, self.running = 0.0, False
            self.record("the faults stop")
            if self.poisoned:  # what is left is left to reconcile
                rows = self.ledger.state.commits.values()
                self.interrupted = {row.id for row in rows if row.state not in SETTLED}
                for server in self.servers:
                    server.process.crash("all servers start again")
            await self._settle()
        finally:
            for task in (*background, *ingest):
                task.cancel()
            for server in self.servers:
                server.process.crash("the run ends")
            self.require_laws()

    async def airflow_that_loses_responses(self) -> None:
        """Let Airflow do everything and respond to nothing for a while, now and then."""
        while not self.without_faults:
            await asyncio.sleep(self.random.random() * 20)
            if self.dice.rate:
                self.airflow.loses_responses_until = now_ms() / 1000 + self.random.random() * 20
                self.record("the responses of Airflow are lost for a while")

    async def poison(self) -> None:
        """In some runs, make the blueprint of a job of the first workspace unreadable."""
        while self.with_poison and not self.poisoned and self.running:
            await asyncio.sleep(1)
            state = self.ledger.state
            jobs = sorted(
                asset
                for version, _, asset in state.bank.refs
                if ".job." in asset
                and state.commits[version].workspace == WORKSPACES[0]
                and state.commits[version].state is CommitState.WARMING
            )
            if jobs and self.running:
                self.poisoned.add(jobs[-1])
                self.record(f"{jobs[-1]} is poisoned")

    async def _settle(self) -> None:
        healthy = set(WORKSPACES[1:]) if self.poisoned else set(WORKSPACES)
        await self._until_settled(healthy)
        if self.poisoned:
            self.poisoned.clear()
            self.record("the poisoned row is repaired")
        await self._until_settled(set(WORKSPACES))
        await self._until_orphans_are_gone()
        await self._until_everything_is_applied()
        self.laws.at_rest()

    async def _until_settled(self, workspaces: set[WorkspaceId]) -> None:
        end = now_ms() / 1000 + SETTLED_WITHIN_S
        while left := self.laws.unsettled(workspaces):
            self.require_laws()
            if now_ms() / 1000 > end:
                raise LawViolated(f"not settled: {left[:3]}")
            await asyncio.sleep(2)

    async def _until_orphans_are_gone(self) -> None:
        """Wait until the grace period of orphaned topics has passed."""
        end = now_ms() / 1000 + 3 * 3_600
        while now_ms() / 1000 < end:
            held = {id_ for _, _, id_ in self.ledger.state.bank.refs}
            retained = self.ledger.state.grace
            if self.destroy_grace_ms <= SHORT_GRACE_MS:
                retained = {i: period for i, period in retained.items() if period.ends_ms is None}
            if not self.topics.partition_counts.keys() - held - retained.keys():
                return
            await asyncio.sleep(120)

    async def _until_everything_is_applied(self) -> None:
        end = now_ms() / 1000 + APPLIED_WITHIN_S
        while left := self.engines.backlog():
            if now_ms() / 1000 > end:
                raise LawViolated(f"{left} records are not applied")
            await asyncio.sleep(2)


async def _no_program(_: str) -> str:
    raise AssertionError("the definitions have no windows")


def simulate(seed: int) -> World:
    """Run a seed; raises LawViolated."""
    world_: list[World] = []

    async def main() -> World:
        world = World(seed)
        world_.append(world)
        try:
            await world.live()
        except BaseException as failed:
            failed.add_note("\n".join(world.events[-60:]))
            raise
        return world

    return run(main())


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the log of the simulated processes silent."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(wrapper_class=before)
