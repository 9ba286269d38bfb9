"""The plan of a commit: which assets it creates, keeps, adopts, releases and destroys.

The plan is data. It is a pure function of the wanted blueprints and of `BankFacts`: the alive asset
of each wanted key, the assets that the branch references now, and which of those are referenced by
another branch or commit too. It is printed, tested and then executed by the ledger.

An asset name is never used twice, so every asset to create carries an incarnation that the bank
issued for this plan alone. `release` lists the references that this branch drops once reads have
left the old version; `destroy` is the part of it that has no other reference. The commit
transaction decides destruction again from the bank's rows, so an outdated plan makes the printed
diff wrong, but never the bank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fennel_core.blueprints.logical import AssetKey, AssetKind, Blueprint, Compiled, LogicalJob
from fennel_core.vocab.ids import AssetId, WorkspaceId


@dataclass(frozen=True, slots=True)
class BankFacts:
    """The planner's input from the bank, read under the lock of the workspace.

    `alive`: the one asset of each wanted key that can be shared. `mine`: assets that the branch
    references now, with their titles. `shared`: those of `mine` that another branch or a running
    commit holds as well. `incarnation`: a number that was never issued before.
    """

    workspace: WorkspaceId
    incarnation: int
    alive: Mapping[AssetKey, AssetId] = field(default_factory=dict)
    mine: Mapping[AssetId, str] = field(default_factory=dict)
    shared: frozenset[AssetId] = frozenset()


@dataclass(frozen=True, slots=True)
class PlannedAsset:
    """A wanted blueprint and the asset that realises it."""

    id: AssetId
    blueprint: Blueprint


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """Assets by action. `release` and `destroy` pair an asset with its title.

    `keep` are assets that the branch references already, `adopt` those of other branches that it
    will share. `destroy` is a part of `release`.
    """

    create: tuple[PlannedAsset, ...]
    keep: tuple[PlannedAsset, ...]
    adopt: tuple[PlannedAsset, ...]
    release: tuple[tuple[AssetId, str], ...]
    destroy: tuple[tuple[AssetId, str], ...]

    @property
    def wanted(self) -> tuple[PlannedAsset, ...]:
        """All assets of the new version."""
        return (*self.create, *self.keep, *self.adopt)

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


def plan_commit(facts: BankFacts, wanted: Iterable[Blueprint]) -> CommitPlan:
    """Return the plan that turns the assets of the branch into the wanted ones."""
    create: list[PlannedAsset] = []
    keep: list[PlannedAsset] = []
    adopt: list[PlannedAsset] = []
    for blueprint in wanted:
        alive = facts.alive.get(blueprint.key)
        if alive is None:
            create.append(
                PlannedAsset(asset_id(facts.workspace, blueprint.key, facts.incarnation), blueprint)
            )
        else:
            (keep if alive in facts.mine else adopt).append(PlannedAsset(alive, blueprint))
    wanted_ids = {p.id for p in keep}
    release = tuple(
        sorted((id_, title) for id_, title in facts.mine.items() if id_ not in wanted_ids)
    )
    destroy = tuple((id_, title) for id_, title in release if id_ not in facts.shared)
    return CommitPlan(tuple(create), tuple(keep), tuple(adopt), release, destroy)


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


_NOUN = {
    AssetKind.TOPIC: "topic",
    AssetKind.RAW: "endpoint",
    AssetKind.REPLAYLOG: "replaylog",
    AssetKind.DEAD: "dead letters",
    AssetKind.JOB: "job",
}


def diff(plan: CommitPlan) -> tuple[str, ...]:
    """Return the plan as text: one line per asset that changes, and a line of totals."""
    destroyed = {id_ for id_, _ in plan.destroy}
    lines = [f"+ create {_describe(p.blueprint)}" for p in plan.create if _is_listed(p.blueprint)]
    lines += [
        f"~ adopt {_describe(p.blueprint)}: shared with another branch"
        for p in plan.adopt
        if _is_listed(p.blueprint)
    ]
    for id_, title in plan.release:
        destroy = "and destroy " if id_ in destroyed else ""
        kind = AssetKind(id_.split(".")[1])
        if kind is not AssetKind.REPLAYLOG:
            lines.append(f"- release {destroy}{_NOUN[kind]} of {title}")
    counts = ", ".join(
        f"{len(items)} {word}"
        for word, items in (
            ("created", plan.create),
            ("kept", plan.keep),
            ("adopted", plan.adopt),
            ("released", plan.release),
            ("destroyed", plan.destroy),
        )
    )
    return (*lines, f"assets: {counts}")


def _describe(blueprint: Blueprint) -> str:
    return f"{_NOUN[blueprint.key.kind]} of {blueprint.title}"


def _is_listed(blueprint: Blueprint) -> bool:
    return blueprint.key.kind is not AssetKind.REPLAYLOG
