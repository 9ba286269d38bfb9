"""Which retained assets a commit revives: those whose content is that of a recompute."""

from __future__ import annotations

from dataclasses import replace

from fennel_core.blueprints.commit_plan import (
    BankFacts,
    TopicAmounts,
    plan_commit,
    with_replays,
)
from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.logical import AssetKey, AssetKind, Compiled, LogicalJob
from fennel_core.blueprints.plan_entries import PlanAction, RowAmount
from fennel_core.blueprints.resolve import resolve_job
from fennel_core.blueprints.revival import RetainedAsset, revivable
from fennel_core.blueprints.source_replays import with_needed_replays
from fennel_core.vocab.ids import AssetId, DatasetName, WorkspaceId
from fennel_core.wire import operators as wire
from fennel_core.wire.connectors import JsonFormat, Kafka, KafkaTopic, Login
from tests.support.compiler_inputs import code, derived, node, schema, sourced, webhook

SHOP = WorkspaceId("shop")
EVENTS = schema("", "user amount")
KAFKA = Kafka("hook", "broker:9092", "PLAINTEXT", "PLAIN", None, "", Login(None, None))
Retained = dict[AssetKey, RetainedAsset]


def compiled() -> Compiled:
    read = node("events", wire.DatasetRef(DatasetName("Events")), EVENTS)
    step = node("large", wire.Filter("events", code("def f(df): return df")), EVENTS)
    return compile_datasets([sourced("Events", EVENTS), derived("Large", EVENTS, [read, step])], 4)


COMPILED = compiled()
NAMES = plan_commit(BankFacts(SHOP, 1), COMPILED).ids()


def retained(*, since_us: int = 5) -> Retained:
    """Return all assets of the commit as retained since the same moment."""
    return {
        b.key: RetainedAsset(
            NAMES[b.key],
            since_us,
            resolve_job(b, SHOP, NAMES) if isinstance(b, LogicalJob) else None,
        )
        for b in COMPILED.blueprints
    }


def kinds(keys: dict[AssetKey, AssetId]) -> list[str]:
    return sorted(str(key.kind) for key in keys)


def raw() -> AssetKey:
    (key,) = (b.key for b in COMPILED.blueprints if b.key.kind is AssetKind.RAW)
    return key


def test_what_was_released_together_is_revived_together() -> None:
    assert revivable(COMPILED, {}, retained()) == NAMES


def test_nothing_is_revived_without_retained_assets() -> None:
    assert revivable(COMPILED, {}, {}) == {}
    assert revivable(COMPILED, NAMES, retained()) == {}, "what is alive is shared"


def test_a_source_dataset_whose_endpoint_stayed_in_use_is_not_revived_nor_what_reads_it() -> None:
    kept = retained()
    alive = {raw(): kept.pop(raw()).id}
    assert kinds(revivable(COMPILED, alive, kept)) == ["dead"], (
        "the endpoint may have accepted rows that the retained topic does not have"
    )


def test_a_source_dataset_whose_endpoint_was_in_use_for_longer_is_not_revived() -> None:
    kept = retained()
    kept[raw()] = replace(kept[raw()], since_us=9)
    assert kinds(revivable(COMPILED, {}, kept)) == ["dead", "raw"]


def test_a_stream_is_revived_with_its_positions_or_not_at_all() -> None:
    stream = webhook("Events", table=KafkaTopic(KAFKA, "events", JsonFormat()))
    whole = compile_datasets([sourced("Events", EVENTS, source=stream)], 4)
    names = plan_commit(BankFacts(SHOP, 1), whole).ids()
    kept = {key: RetainedAsset(id_, 5, None) for key, id_ in names.items()}
    (source,) = whole.sources
    assert source.positions is not None
    assert revivable(whole, {}, kept) == names
    for missing in (source.positions, source.raw_topic):
        rest = {key: asset for key, asset in kept.items() if key != missing}
        assert kinds(revivable(whole, {}, rest)) == ["dead"]
    # A webhook of the same name is another endpoint.
    other = compile_datasets([sourced("Events", EVENTS, source=webhook("events"))], 4).sources[0]
    assert (other.raw_topic != source.raw_topic, other.positions) == (True, None)


def test_a_job_is_revived_only_over_the_very_topics_that_it_read() -> None:
    kept = retained()
    (source,) = COMPILED.sources
    del kept[source.topic]
    other = {source.topic: AssetId("shop.topic.other.7")}
    assert kinds(revivable(COMPILED, other, kept)) == ["dead", "raw"]
    same = {source.topic: NAMES[source.topic]}
    assert kinds(revivable(COMPILED, same, kept)) == ["dead", "job", "raw", "replaylog", "topic"]


def test_a_job_that_the_registry_lost_is_not_revived() -> None:
    kept = retained()
    (job,) = COMPILED.jobs
    kept[job.key] = replace(kept[job.key], job=None)
    assert "job" not in kinds(revivable(COMPILED, {}, kept))


# --- what the plan says about rows ----------------------------------------------------------------


def leaving(messages: dict[AssetId, int], grace_ms: int = 0) -> BankFacts:
    return BankFacts(
        SHOP,
        2,
        mine=frozenset(NAMES.values()),
        leaving={NAMES[b.key]: b for b in COMPILED.blueprints},
        grace_ms=grace_ms,
        amounts=TopicAmounts(messages),
    )


def test_only_the_requests_of_an_endpoint_are_lost() -> None:
    empty = compile_datasets([], 4)
    plan = plan_commit(leaving({NAMES[raw()]: 7}), empty)
    assert [(e.kind, e.rows_lost) for e in plan.entries if e.rows_lost] == [
        (AssetKind.RAW, RowAmount(7))
    ]
    (notice,) = plan.notices
    assert notice.text == (
        "what endpoint `hook/Events` received (those of at most 7 messages) is destroyed"
    )
    unknown = plan_commit(leaving({}), empty)
    (lost,) = [e for e in unknown.entries if e.loses_rows]
    assert lost.rows_lost == RowAmount(None), "unknown is never 0"
    assert not plan_commit(leaving({NAMES[raw()]: 0}), empty).notices


def test_the_end_of_the_grace_period_of_rows_needs_a_confirmation() -> None:
    empty = compile_datasets([], 4)
    facts = leaving({NAMES[raw()]: 7}, grace_ms=3_600_000)
    for allowed, end in ((True, 3_600_000), (False, None)):
        plan = plan_commit(facts, empty, allow_data_loss=allowed)
        assert {e.action for e in plan.entries} == {PlanAction.RETAIN}
        ends = {e.kind: e.retained_ms for e in plan.entries}
        assert ends[AssetKind.RAW] == end
        assert ends[AssetKind.TOPIC] == 3_600_000, "it is computed from the requests again"
        (notice,) = plan.notices
        assert ("after 1 h unless" in notice.text) == allowed


def test_a_new_job_over_existing_rows_has_an_amount_and_what_is_downstream_an_unknown_one() -> None:
    topic = COMPILED.sources[0].topic
    alive = {key: id_ for key, id_ in NAMES.items() if key in (topic, raw())}
    facts = BankFacts(SHOP, 2, alive=alive, amounts=TopicAmounts({NAMES[topic]: 12}))
    amounts = {e.title: e.rows_to_recompute for e in plan_commit(facts, COMPILED).entries}
    assert amounts["Large.p: filter"] == RowAmount(12)
    assert amounts["Events"] is None
    first = plan_commit(BankFacts(SHOP, 1), COMPILED)
    assert not [e for e in first.entries if e.rows_to_recompute]


def test_an_unfinished_replay_is_revived_with_its_topic_and_not_with_a_new_one() -> None:
    (replay,) = COMPILED.replays
    every = with_needed_replays(COMPILED, {replay.job.key})
    names = plan_commit(BankFacts(SHOP, 1), every).ids()
    kept = {
        b.key: RetainedAsset(
            names[b.key], 5, resolve_job(b, SHOP, names) if isinstance(b, LogicalJob) else None
        )
        for b in every.blueprints
    }
    together = BankFacts(SHOP, 2, retained=kept)
    assert plan_commit(together, with_replays(together, COMPILED)).ids() == names
    raw_topic = kept.pop(raw())
    in_use = BankFacts(SHOP, 2, alive={raw(): raw_topic.id}, retained=kept)
    actions = {
        entry.title: entry.action
        for entry in plan_commit(in_use, with_replays(in_use, COMPILED)).entries
        if entry.kind is AssetKind.JOB
    }
    assert actions == {replay.job.title: PlanAction.CREATE, "Large.p: filter": PlanAction.CREATE}
