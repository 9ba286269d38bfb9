"""The plan of a commit: which assets are made, kept, adopted, released and destroyed. Data first,
deeds later.

Theory. The bank says which asset of each wanted key is alive, which ones the branch holds now and
which of those somebody else holds too; the plan is a pure function of that and of what is wanted.
Because a name is never used twice, every asset to create carries an incarnation that the bank gave
out for this plan alone. `release` means that this branch's reference goes when reads have left the
old version; `destroy` is the part of it that nobody else holds. The commit transaction decides
destruction again from the bank's rows, so a plan that has grown old can mislead a reader of the
diff, never the bank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fennel_core.blueprints.logical import AssetKey, AssetKind, Blueprint, Compiled, LogicalJob
from fennel_core.vocab.ids import AssetId, WorkspaceId


@dataclass(frozen=True, slots=True)
class BankFacts:
    """What the bank knows about one commit's wishes, read under its lock.

    `alive`: the one asset of each wanted key that may be shared. `mine`: assets the branch
    references now, with their titles. `shared`: those of `mine` that another branch or a running
    commit holds as well. `incarnation`: never given out before.
    """

    workspace: WorkspaceId
    incarnation: int
    alive: Mapping[AssetKey, AssetId] = field(default_factory=dict)
    mine: Mapping[AssetId, str] = field(default_factory=dict)
    shared: frozenset[AssetId] = frozenset()


@dataclass(frozen=True, slots=True)
class PlannedAsset:
    """A wanted blueprint and the asset that will be it."""

    id: AssetId
    blueprint: Blueprint


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """`release` and `destroy` pair an asset with its title. `destroy` is part of `release`."""

    create: tuple[PlannedAsset, ...]
    keep: tuple[PlannedAsset, ...]
    adopt: tuple[PlannedAsset, ...]
    release: tuple[tuple[AssetId, str], ...]
    destroy: tuple[tuple[AssetId, str], ...]

    @property
    def wanted(self) -> tuple[PlannedAsset, ...]:
        return (*self.create, *self.keep, *self.adopt)

    @property
    def changes_nothing(self) -> bool:
        return not (self.create or self.adopt or self.release)

    def ids(self) -> dict[AssetKey, AssetId]:
        """The physical asset of each wanted key."""
        return {p.blueprint.key: p.id for p in self.wanted}


def asset_id(workspace: WorkspaceId, key: AssetKey, incarnation: int) -> AssetId:
    """The physical name: safe for Kafka, at most 63 + 1 + 9 + 1 + 32 + 1 + 19 characters of its
    249.
    """
    return AssetId(f"{workspace}.{key.kind}.{key.identity}.{incarnation}")


def incarnation_of(id_: AssetId) -> int:
    """The incarnation in a physical name."""
    return int(id_.rpartition(".")[2])


def plan_commit(facts: BankFacts, wanted: Iterable[Blueprint]) -> CommitPlan:
    """Compare what is wanted with what there is."""
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


def recomputed(made: CommitPlan, compiled: Compiled) -> tuple[str, ...]:
    """Titles of what would be computed again from data that exists already: what `backfill=false`
    forbids.

    A new job reads existing data when one of its inputs exists; a new source topic when its
    endpoint already receives rows. What lies downstream of a recomputed job is recomputed with it,
    because all of its inputs are new; it is named by its root.
    """
    new = {p.blueprint.key for p in made.create}
    jobs = [p.blueprint for p in made.create if isinstance(p.blueprint, LogicalJob)]
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


def diff(made: CommitPlan) -> tuple[str, ...]:
    """The plan as lines a person reads: one per asset that changes, and a count of the rest."""
    doomed = {id_ for id_, _ in made.destroy}
    lines = [
        f"+ create {_describe(p.blueprint)}" for p in made.create if _worth_a_line(p.blueprint)
    ]
    lines += [
        f"~ adopt {_describe(p.blueprint)}: equal to what another branch has"
        for p in made.adopt
        if _worth_a_line(p.blueprint)
    ]
    for id_, title in made.release:
        fate = "and destroy " if id_ in doomed else ""
        kind = AssetKind(id_.split(".")[1])
        if kind is not AssetKind.REPLAYLOG:
            lines.append(f"- release {fate}{_NOUN[kind]} of {title}")
    counts = ", ".join(
        f"{len(items)} {word}"
        for word, items in (
            ("created", made.create),
            ("kept", made.keep),
            ("adopted", made.adopt),
            ("released", made.release),
            ("destroyed", made.destroy),
        )
    )
    return (*lines, f"assets: {counts}")


def _describe(blueprint: Blueprint) -> str:
    return f"{_NOUN[blueprint.key.kind]} of {blueprint.title}"


def _worth_a_line(blueprint: Blueprint) -> bool:
    return blueprint.key.kind is not AssetKind.REPLAYLOG
