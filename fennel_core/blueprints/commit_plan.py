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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fennel_core.blueprints.asset_names import asset_id
from fennel_core.blueprints.logical import AssetKey, AssetKind, Blueprint, Compiled, LogicalJob
from fennel_core.blueprints.plan_entries import (
    DeadLetterForecast,
    Notice,
    PlanAction,
    PlanEntry,
    PlanRecord,
    RowAmount,
)
from fennel_core.blueprints.plan_reasons import ReasonFinder, dataset_forms
from fennel_core.blueprints.plan_text import amount_text, duration_text, forecast_text
from fennel_core.blueprints.retention_notices import retention_notices
from fennel_core.blueprints.revival import RetainedAsset, revivable
from fennel_core.blueprints.source_contents import requests_left_out, source_changes
from fennel_core.blueprints.source_replays import with_needed_replays
from fennel_core.blueprints.spec import Catalog
from fennel_core.operators.spec import SourceReplaySpec
from fennel_core.vocab.ids import AssetId, DatasetName, WorkspaceId


@dataclass(frozen=True, slots=True)
class TopicAmounts:
    """What was measured of topics. `messages`: how many a topic ever held, where that is known.

    `unreadable`: how many of them are neither in Kafka nor in history, where that is known.
    `removed_rows`: how many rows of erased keys were removed from the history of a topic;
    `expired_rows`: how many that were older than `history`.
    `dead_letters`: what was found out about the rows that a source replay reads, by its job.
    """

    messages: Mapping[AssetId, int] = field(default_factory=dict)
    unreadable: Mapping[AssetId, int] = field(default_factory=dict)
    removed_rows: Mapping[AssetId, int] = field(default_factory=dict)
    expired_rows: Mapping[AssetId, int] = field(default_factory=dict)
    dead_letters: Mapping[AssetKey, DeadLetterForecast] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BankFacts:
    """The planner's input from the bank, read under the lock of the workspace.

    `incarnation`: a number that was never issued before. `alive`: the one asset of each wanted key
    that can be shared. `mine`: assets that the branch references now. `leaving`: the blueprints of
    those of `mine` that are not wanted. `shared`: those of `mine` that another branch or a running
    commit holds as well. `before`: the version that the branch has now, None if it is empty.
    `retained`: the retained asset of each wanted key that has one. `grace_ms`: how long released
    assets are retained, 0 for not at all. `amounts`: what was measured of topics.
    """

    workspace: WorkspaceId
    incarnation: int
    alive: Mapping[AssetKey, AssetId] = field(default_factory=dict)
    mine: frozenset[AssetId] = frozenset()
    leaving: Mapping[AssetId, Blueprint] = field(default_factory=dict)
    shared: frozenset[AssetId] = frozenset()
    before: Catalog | None = None
    retained: Mapping[AssetKey, RetainedAsset] = field(default_factory=dict)
    grace_ms: int = 0
    amounts: TopicAmounts = TopicAmounts()


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


def plan_commit(
    facts: BankFacts,
    compiled: Compiled,
    notices: Iterable[Notice] = (),
    *,
    allow_data_loss: bool = True,
    history_retention: bool = False,
) -> CommitPlan:
    """Return the plan that turns the assets of the branch into those of `compiled`.

    `allow_data_loss`: the grace period of rows that only the branch holds has an end.
    `history_retention`: rows that are older than `history` are removed.
    """
    revived = revivable(compiled, facts.alive, facts.retained)
    wanted = tuple(_planned(facts, revived, blueprint) for blueprint in compiled.blueprints)
    actions = [_action(facts, revived, planned) for planned in wanted]
    existing = {
        planned.blueprint.key: planned.id
        for planned, action in zip(wanted, actions, strict=True)
        if action is not PlanAction.CREATE
    }
    amounts = rows_to_recompute(compiled, existing, facts.amounts.messages)
    titles = {topic.key: topic.title for topic in compiled.topics}
    reasons = ReasonFinder(
        dataset_forms(facts.before),
        dataset_forms(compiled),
        (p.blueprint for p, a in zip(wanted, actions, strict=True) if a is not PlanAction.KEEP),
        facts.leaving.values(),
    )
    entries: list[PlanEntry] = []
    losses: list[Notice] = []
    for planned, action in zip(wanted, actions, strict=True):
        keep = action is PlanAction.KEEP
        why = "the definitions still need it" if keep else reasons.why_new(planned.blueprint)
        entry = _entry(action, planned.id, planned.blueprint, why)
        if (amount := amounts.get(planned.blueprint.key)) is not None:
            raw = replayed_endpoint(planned.blueprint)
            entry = replace(entry, rows_to_recompute=amount)
            if raw is not None:
                forecast = facts.amounts.dead_letters.get(planned.blueprint.key)
                entry = replace(entry, requests_of=titles[raw], dead_letters=forecast)
                losses += _losses_of_replay(entry, facts.amounts.unreadable.get(existing[raw], 0))
        entries.append(entry)
    for id_, blueprint in sorted(facts.leaving.items()):
        why = reasons.why_leaving(blueprint)
        entries.append(_leaving(facts, id_, blueprint, why, allow_data_loss=allow_data_loss))
    losses += _rows_gone(compiled, existing, facts.amounts)
    losses += _removed_before(facts, compiled, existing)
    losses += [_loss(entry) for entry in entries if entry.loses_rows]
    losses += retention_notices(compiled, removed=history_retention)
    changes = source_changes(facts.before, compiled, facts.amounts.messages)
    return CommitPlan(wanted, tuple(entries), (*notices, *changes, *losses))


def with_replays(facts: BankFacts, compiled: Compiled) -> Compiled:
    """Return the commit with the source replays that it needs.

    A replay that was retained before it had finished is revived together with its topic.
    """
    every = with_needed_replays(compiled, {replay.job.key for replay in compiled.replays})
    revived = revivable(every, facts.alive, facts.retained)
    return with_needed_replays(compiled, {*facts.alive, *revived})


def _loss(entry: PlanEntry) -> Notice:
    """Return the notice about rows that only one asset holds."""
    amount = amount_text(entry.rows_lost)
    what = f"what endpoint `{entry.title}` received ({amount})"
    if entry.action is PlanAction.DESTROY:
        text = f"{what} is destroyed"
    elif entry.retained_ms is None:
        text = f"{what} is kept until its loss is confirmed: commit with allow_data_loss"
    else:
        ends = duration_text(entry.retained_ms)
        text = f"{what} is destroyed after {ends} unless a commit needs it again"
    return Notice("rows-lost", entry.entity, text)


def _losses_of_replay(entry: PlanEntry, unreadable: int) -> Iterator[Notice]:
    """Yield which requests and rows a recomputed dataset will lack."""
    if unreadable:
        yield _unreadable(entry, unreadable)
    forecast = entry.dead_letters
    if forecast is None or not (
        forecast.rows_dead or forecast.unchecked or forecast.only_in_history
    ):
        return
    yield Notice(
        "requests-not-typed",
        entry.entity,
        f"dataset `{entry.entity}` is recomputed from requests of endpoint `{entry.requests_of}`, "
        "and rows that do not fit it become dead letters: "
        f"{forecast_text(forecast, entry.rows_to_recompute)}"
        + (f"; most frequent reason: {forecast.reason}" if forecast.reason else ""),
    )


def _unreadable(entry: PlanEntry, messages: int) -> Notice:
    """Return the notice about requests that a source replay cannot read."""
    text = (
        f"dataset `{entry.entity}` is recomputed without requests of endpoint "
        f"`{entry.requests_of}` that are in neither Kafka nor history: "
        f"{amount_text(RowAmount(messages))}"
    )
    return Notice("requests-unreadable", entry.entity, text)


def _rows_gone(
    compiled: Compiled, existing: Mapping[AssetKey, AssetId], amounts: TopicAmounts
) -> Iterator[Notice]:
    """Yield which datasets are computed from topics whose history has lost rows."""
    read: dict[str, set[AssetId]] = {}
    origins: dict[AssetKey, set[AssetId]] = {key: {id_} for key, id_ in existing.items()}
    for job in compiled.jobs:
        if job.key not in existing:
            inputs = set[AssetId]().union(*(origins.get(key, ()) for key in job.inputs))
            read.setdefault(job.entity, set()).update(inputs)
            for output in job.outputs:
                origins.setdefault(output.topic, set()).update(inputs)
    for entity, topics in read.items():
        if rows := sum(amounts.removed_rows.get(topic, 0) for topic in topics):
            yield Notice(
                "erased-rows-removed",
                entity,
                f"dataset `{entity}` is computed without {rows} rows of erased keys that were "
                "removed from the history of what it reads",
            )
        if rows := sum(amounts.expired_rows.get(topic, 0) for topic in topics):
            yield Notice(
                "expired-rows-removed",
                entity,
                f"dataset `{entity}` is computed without {rows} rows that were older than the "
                "`history` of what it reads",
            )


def _adopted(
    facts: BankFacts, compiled: Compiled, existing: Mapping[AssetKey, AssetId]
) -> Iterator[tuple[DatasetName, set[AssetId]]]:
    """Yield the datasets whose rows were on existing topics before the branch had them by that
    name, and the topics: another name's, another branch's, or retained ones.
    """
    before = {
        view.name: view.served_by if view.topic is None else view.topic
        for view in (() if facts.before is None else facts.before.datasets)
    }
    inputs = {job.key: job.inputs for job in compiled.jobs}
    for dataset in compiled.datasets:
        rows = dataset.served_by if dataset.topic is None else dataset.topic
        if rows is None or rows not in existing:
            continue
        if before.get(dataset.name) != str(existing[rows]):
            topics = (rows,) if dataset.topic is not None else inputs.get(rows, ())
            yield dataset.name, {existing[key] for key in topics if key in existing}


def _removed_before(
    facts: BankFacts, compiled: Compiled, existing: Mapping[AssetKey, AssetId]
) -> Iterator[Notice]:
    """Yield which datasets and sinks take over topics that have lost rows."""
    for name, topics in _adopted(facts, compiled, existing):
        if rows := sum(facts.amounts.removed_rows.get(topic, 0) for topic in topics):
            yield Notice(
                "erased-rows-removed",
                name,
                f"dataset `{name}` takes over rows that exist, without {rows} rows that were "
                "removed from their history because keys were erased of the dataset that had them",
            )
        if rows := sum(facts.amounts.expired_rows.get(topic, 0) for topic in topics):
            yield Notice(
                "expired-rows-removed",
                name,
                f"dataset `{name}` takes over rows that exist, without {rows} rows that were older "
                "than the `history` of the dataset that had them",
            )
    for sink in compiled.sinks:
        if sink.key in facts.alive or sink.topic not in existing:
            continue
        topic = existing[sink.topic]
        for code, amounts in (
            ("erased-rows-removed", facts.amounts.removed_rows),
            ("expired-rows-removed", facts.amounts.expired_rows),
        ):
            if rows := amounts.get(topic, 0):
                yield Notice(
                    code,
                    sink.dataset,
                    f"a sink of dataset `{sink.dataset}` delivers what is left: {rows} rows were "
                    "removed from its history",
                )


def _planned(
    facts: BankFacts, revived: Mapping[AssetKey, AssetId], blueprint: Blueprint
) -> PlannedAsset:
    existing = facts.alive.get(blueprint.key) or revived.get(blueprint.key)
    new = asset_id(facts.workspace, blueprint.key, facts.incarnation)
    return PlannedAsset(new if existing is None else existing, blueprint)


def _action(
    facts: BankFacts, revived: Mapping[AssetKey, AssetId], planned: PlannedAsset
) -> PlanAction:
    if planned.blueprint.key in revived:
        return PlanAction.REVIVE
    if planned.blueprint.key not in facts.alive:
        return PlanAction.CREATE
    return PlanAction.KEEP if planned.id in facts.mine else PlanAction.ADOPT


def _entry(action: PlanAction, id_: AssetId, blueprint: Blueprint, reason: str) -> PlanEntry:
    return PlanEntry(action, blueprint.key.kind, id_, blueprint.title, blueprint.entity, reason)


def _leaving(
    facts: BankFacts, id_: AssetId, blueprint: Blueprint, reason: str, *, allow_data_loss: bool
) -> PlanEntry:
    """Return the entry of an asset that the new version does not have.

    Only the requests of an endpoint are lost with their topic: everything else is computed from
    them, and can be computed again.
    """
    if id_ in facts.shared:
        return _entry(PlanAction.RELEASE, id_, blueprint, reason)
    action = PlanAction.RETAIN if facts.grace_ms else PlanAction.DESTROY
    entry = _entry(action, id_, blueprint, reason)
    if blueprint.key.kind is AssetKind.RAW:
        entry = replace(entry, rows_lost=RowAmount(facts.amounts.messages.get(id_)))
    if action is PlanAction.RETAIN and (allow_data_loss or not entry.loses_rows):
        entry = replace(entry, retained_ms=facts.grace_ms)
    return entry


def measured_topics(facts: BankFacts, compiled: Compiled) -> frozenset[AssetId]:
    """Return the topics whose size a plan mentions.

    They are endpoints that leave or whose source is removed, inputs of new jobs and sinks, and
    topics that a dataset takes over.
    """
    existing = {**facts.alive, **revivable(compiled, facts.alive, facts.retained)}
    endpoints = {id_ for id_, b in facts.leaving.items() if b.key.kind is AssetKind.RAW}
    inputs = {
        existing[key]
        for job in compiled.jobs
        if job.key not in existing
        for key in job.inputs
        if key in existing
    }
    inputs |= {
        existing[sink.topic]
        for sink in compiled.sinks
        if sink.key not in facts.alive and sink.topic in existing
    }
    removed = requests_left_out(facts.before, compiled).values()
    adopted = set[AssetId]().union(*(topics for _, topics in _adopted(facts, compiled, existing)))
    return frozenset(endpoints - facts.shared | inputs | set(removed) | adopted)


def replayed_endpoint(blueprint: Blueprint) -> AssetKey | None:
    """Return the raw topic that a source replay reads; None for everything else."""
    if isinstance(blueprint, LogicalJob) and isinstance(blueprint.step, SourceReplaySpec):
        (raw,) = blueprint.inputs
        return raw
    return None


@dataclass(frozen=True, slots=True)
class NewReplay:
    """A source replay that a commit creates, and the existing raw topic that it reads."""

    job: AssetKey
    step: SourceReplaySpec
    raw: AssetId
    partitions: int


def new_replays(facts: BankFacts, compiled: Compiled) -> tuple[NewReplay, ...]:
    """Return the source replays over existing endpoints that a commit creates."""
    existing = {**facts.alive, **revivable(compiled, facts.alive, facts.retained)}
    return tuple(
        NewReplay(job.key, job.step, existing[job.inputs[0]], compiled.partitions)
        for job in compiled.jobs
        if job.key not in existing
        and isinstance(job.step, SourceReplaySpec)
        and job.inputs[0] in existing
    )


def rows_to_recompute(
    compiled: Compiled, existing: Mapping[AssetKey, AssetId], messages: Mapping[AssetId, int]
) -> dict[AssetKey, RowAmount]:
    """Return how much each new job or sink over existing data has to read.

    `existing`: assets that the commit does not create. The amount of one whose input is computed
    by another such job is unknown.
    """
    found: dict[AssetKey, RowAmount] = {}
    recomputed_topics: set[AssetKey] = set()
    for job in compiled.jobs:
        if job.key in existing:
            continue
        counts = [messages.get(existing[key]) for key in job.inputs if key in existing]
        if any(key in recomputed_topics for key in job.inputs):
            counts.append(None)
        if counts:
            known = [count for count in counts if count is not None]
            found[job.key] = RowAmount(sum(known) if len(known) == len(counts) else None)
            recomputed_topics |= {output.topic for output in job.outputs}
    for sink in compiled.sinks:
        if sink.key not in existing and sink.topic in recomputed_topics:
            found[sink.key] = RowAmount(None)
        elif sink.key not in existing and sink.topic in existing:
            found[sink.key] = RowAmount(messages.get(existing[sink.topic]))
    return found


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
