"""The plan of a commit: which assets it creates, keeps, adopts, releases and destroys, and why.

The plan is data. It is a pure function of the wanted blueprints and of `BankFacts`: the alive asset
of each wanted key, the assets that the branch references now, and which of those are referenced by
another branch or commit too. It is printed (`plan_text.py`), stored (`plan_entries.py`), tested and
then executed by the ledger.

An asset name is never used twice, so every asset to create carries an incarnation that the bank
issued for this plan alone. The commit transaction decides destruction again from the bank's rows,
so an outdated plan makes the printed plan wrong, but never the bank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fennel_core.blueprints.logical import AssetKey, Blueprint, Compiled, LogicalJob
from fennel_core.blueprints.plan_entries import (
    Notice,
    PlanAction,
    PlanEntry,
    PlanRecord,
)
from fennel_core.blueprints.plan_reasons import ReasonFinder, dataset_forms
from fennel_core.blueprints.spec import Catalog
from fennel_core.vocab.ids import AssetId, WorkspaceId


@dataclass(frozen=True, slots=True)
class BankFacts:
    """The planner's input from the bank, read under the lock of the workspace.

    `incarnation`: a number that was never issued before. `alive`: the one asset of each wanted key
    that can be shared. `mine`: assets that the branch references now. `leaving`: the blueprints of
    those of `mine` that are not wanted. `shared`: those of `mine` that another branch or a running
    commit holds as well. `before`: the version that the branch has now, None if it is empty.
    """

    workspace: WorkspaceId
    incarnation: int
    alive: Mapping[AssetKey, AssetId] = field(default_factory=dict)
    mine: frozenset[AssetId] = frozenset()
    leaving: Mapping[AssetId, Blueprint] = field(default_factory=dict)
    shared: frozenset[AssetId] = frozenset()
    before: Catalog | None = None


@dataclass(frozen=True, slots=True)
class PlannedAsset:
    """A wanted blueprint and the asset that realises it."""

    id: AssetId
    blueprint: Blueprint


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The assets of the new version, and what happens to every asset of either version.

    `wanted` and the first entries are in the same order.
    """

    wanted: tuple[PlannedAsset, ...]
    entries: tuple[PlanEntry, ...]
    notices: tuple[Notice, ...] = ()

    @property
    def create(self) -> tuple[PlannedAsset, ...]:
        """The assets to create."""
        return tuple(
            planned
            for planned, entry in zip(self.wanted, self.entries, strict=False)
            if entry.action is PlanAction.CREATE
        )

    @property
    def record(self) -> PlanRecord:
        """The plan as it is stored and returned."""
        return PlanRecord(self.entries, self.notices)

    def ids(self) -> dict[AssetKey, AssetId]:
        """Return the physical asset of each wanted key."""
        return {p.blueprint.key: p.id for p in self.wanted}


def asset_id(workspace: WorkspaceId, key: AssetKey, incarnation: int) -> AssetId:
    """Return the physical name of an asset.

    It has at most 63 + 1 + 9 + 1 + 32 + 1 + 19 = 126 characters; Kafka allows 249.
    """
    return AssetId(f"{workspace}.{key.kind}.{key.identity}.{incarnation}")


def incarnation_of(id_: AssetId) -> int:
    """Return the incarnation in a physical name."""
    return int(id_.rpartition(".")[2])


def plan_commit(facts: BankFacts, compiled: Compiled, notices: Iterable[Notice] = ()) -> CommitPlan:
    """Return the plan that turns the assets of the branch into those of `compiled`."""
    wanted = tuple(_planned(facts, blueprint) for blueprint in compiled.blueprints)
    actions = [_action(facts, planned) for planned in wanted]
    reasons = ReasonFinder(
        dataset_forms(facts.before),
        dataset_forms(compiled),
        (p.blueprint for p, a in zip(wanted, actions, strict=True) if a is not PlanAction.KEEP),
        facts.leaving.values(),
    )
    entries = [
        _entry(
            action,
            planned.id,
            planned.blueprint,
            "the definitions still need it"
            if action is PlanAction.KEEP
            else reasons.why_new(planned.blueprint),
        )
        for planned, action in zip(wanted, actions, strict=True)
    ]
    for id_, blueprint in sorted(facts.leaving.items()):
        action = PlanAction.RELEASE if id_ in facts.shared else PlanAction.DESTROY
        entries.append(_entry(action, id_, blueprint, reasons.why_leaving(blueprint)))
    return CommitPlan(wanted, tuple(entries), tuple(notices))


def _planned(facts: BankFacts, blueprint: Blueprint) -> PlannedAsset:
    alive = facts.alive.get(blueprint.key)
    new = asset_id(facts.workspace, blueprint.key, facts.incarnation)
    return PlannedAsset(new if alive is None else alive, blueprint)


def _action(facts: BankFacts, planned: PlannedAsset) -> PlanAction:
    if planned.blueprint.key not in facts.alive:
        return PlanAction.CREATE
    return PlanAction.KEEP if planned.id in facts.mine else PlanAction.ADOPT


def _entry(action: PlanAction, id_: AssetId, blueprint: Blueprint, reason: str) -> PlanEntry:
    return PlanEntry(action, blueprint.key.kind, id_, blueprint.title, blueprint.entity, reason)


def recomputed(plan: CommitPlan, compiled: Compiled) -> tuple[str, ...]:
    """Return titles of the assets that would be computed from data that exists already.

    `backfill=false` forbids these. A new job reads existing data if one of its inputs exists; a new
    source topic if its endpoint already receives rows. Jobs downstream of a recomputed one are
    recomputed with it but not listed, because all of their inputs are new.
    """
    new = {p.blueprint.key for p in plan.create}
    jobs = [p.blueprint for p in plan.create if isinstance(p.blueprint, LogicalJob)]
    over_data = [j.title for j in jobs if any(i not in new for i in j.inputs)]
    titles = {t.key: t.title for t in compiled.topics}
    sources = [
        titles[s.topic] for s in compiled.sources if s.topic in new and s.raw_topic not in new
    ]
    return tuple(dict.fromkeys([*sources, *over_data]))
