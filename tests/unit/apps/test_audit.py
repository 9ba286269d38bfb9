"""The audit finds every kind of disagreement, and nothing in a consistent platform."""

from dataclasses import replace

import pytest

from fennel_core.apps.audit import (
    AuditedAsset,
    AuditFacts,
    AuditProblem,
    confirmed,
    find_problems,
)
from fennel_core.bank.store import AssetState
from fennel_core.vocab.ids import AssetId, JobId, TopicName

TOPIC, JOB = AssetId("w.topic.a.1"), AssetId("w.job.b.1")
CONSISTENT = AuditFacts(
    assets={
        TOPIC: AuditedAsset(AssetState.LIVE, False, 2, "dataset D"),
        JOB: AuditedAsset(AssetState.LIVE, True, 2, "pipeline D.p"),
    },
    topics={TopicName(TOPIC): 2},
    held=frozenset({TOPIC, JOB}),
    served=frozenset({TOPIC, JOB}),
    jobs={JobId(JOB): frozenset({0, 1})},
    needed_objects={"snapshots/x/1": "snapshot 1"},
    objects={"snapshots/x/1": True, "snapshots/x/new": False},
    local_state={JobId(JOB): "state/b"},
)


def with_asset(id_: AssetId, **changes: object) -> AuditFacts:
    asset = replace(CONSISTENT.assets[id_], **changes)
    return replace(CONSISTENT, assets={**CONSISTENT.assets, id_: asset})


def test_a_consistent_platform_has_no_findings() -> None:
    assert find_problems(CONSISTENT) == ()


@pytest.mark.parametrize(
    ("facts", "problem", "subject"),
    [
        (replace(CONSISTENT, topics={}), AuditProblem.MISSING_TOPIC, TOPIC),
        (replace(CONSISTENT, topics={TopicName(TOPIC): 3}), AuditProblem.PARTITION_COUNT, TOPIC),
        (
            replace(CONSISTENT, topics={**CONSISTENT.topics, TopicName("w.topic.z.1"): 1}),
            AuditProblem.ORPHANED_TOPIC,
            "w.topic.z.1",
        ),
        (replace(CONSISTENT, jobs={}, local_state={}), AuditProblem.MISSING_JOB, JOB),
        (
            replace(CONSISTENT, jobs={JobId(JOB): frozenset({0})}),
            AuditProblem.MISSING_JOB_PARTITION,
            JOB,
        ),
        (
            replace(CONSISTENT, jobs={**CONSISTENT.jobs, JobId("w.job.z.1"): frozenset()}),
            AuditProblem.ORPHANED_JOB,
            "w.job.z.1",
        ),
        (with_asset(JOB, state=AssetState.CONDEMNED), AuditProblem.DANGLING_REFERENCE, JOB),
        (
            replace(CONSISTENT, held=frozenset({JOB}), served=frozenset({JOB})),
            AuditProblem.UNREFERENCED_ASSET,
            TOPIC,
        ),
        (replace(CONSISTENT, objects={}), AuditProblem.MISSING_OBJECT, "snapshots/x/1"),
        (
            replace(CONSISTENT, objects={**CONSISTENT.objects, "history/old": True}),
            AuditProblem.ORPHANED_OBJECT,
            "history/old",
        ),
        (
            replace(CONSISTENT, local_state={JobId("w.job.z.1"): "state/z"}),
            AuditProblem.ORPHANED_STATE,
            "state/z",
        ),
    ],
)
def test_each_disagreement_is_one_finding(
    facts: AuditFacts, problem: AuditProblem, subject: str
) -> None:
    assert [(each.problem, each.subject) for each in find_problems(facts)] == [(problem, subject)]


def test_assets_between_two_states_are_no_findings() -> None:
    for state in (AssetState.PENDING, AssetState.FAILED, AssetState.CONDEMNED):
        asset = AuditedAsset(state, False, 2, "dataset D")
        for topics in ({}, {TopicName(TOPIC): 2}):
            assert find_problems(AuditFacts(assets={TOPIC: asset}, topics=topics)) == ()


def test_only_findings_of_both_collections_are_confirmed() -> None:
    first = find_problems(replace(CONSISTENT, topics={}))
    second = find_problems(replace(CONSISTENT, topics={}, objects={}))
    assert confirmed(first, second) == first
    assert confirmed(first, find_problems(CONSISTENT)) == ()


def test_an_orphan_is_no_loss() -> None:
    assert {each for each in AuditProblem if each.is_orphan} == {
        AuditProblem.ORPHANED_TOPIC,
        AuditProblem.ORPHANED_JOB,
        AuditProblem.ORPHANED_OBJECT,
        AuditProblem.ORPHANED_STATE,
        AuditProblem.UNREFERENCED_ASSET,
    }
