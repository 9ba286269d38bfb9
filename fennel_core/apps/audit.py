"""Compare what Postgres records with what exists: topics, jobs, objects on S3, local state.

`find_problems` is a pure function over facts that `audit_facts.py` collects. A commit that
runs between them makes the facts disagree, so `confirmed` keeps the findings that two
collections have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fennel_core.bank.store import AssetState
from fennel_core.vocab.ids import AssetId, JobId, TopicName


class AuditProblem(StrEnum):
    """The kinds of findings. A missing thing is a loss, an orphaned one only costs space."""

    MISSING_TOPIC = "missing-topic"
    ORPHANED_TOPIC = "orphaned-topic"
    PARTITION_COUNT = "partition-count"
    MISSING_JOB = "missing-job"
    ORPHANED_JOB = "orphaned-job"
    MISSING_JOB_PARTITION = "missing-job-partition"
    DANGLING_REFERENCE = "dangling-reference"
    UNREFERENCED_ASSET = "unreferenced-asset"
    MISSING_OBJECT = "missing-object"
    ORPHANED_OBJECT = "orphaned-object"
    ORPHANED_STATE = "orphaned-state"

    @property
    def is_orphan(self) -> bool:
        """Whether something exists that nothing needs, in contrast to a loss."""
        return self in {
            AuditProblem.ORPHANED_TOPIC,
            AuditProblem.ORPHANED_JOB,
            AuditProblem.ORPHANED_OBJECT,
            AuditProblem.ORPHANED_STATE,
            AuditProblem.UNREFERENCED_ASSET,
        }


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One disagreement. `subject`: name of the asset, object or folder; `text`: one sentence."""

    problem: AuditProblem
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class AuditedAsset:
    """An asset of the bank. `is_job`: a job, not a topic; `partitions`: of its blueprint."""

    state: AssetState
    is_job: bool
    partitions: int
    title: str


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """What was found at one moment.

    `topics`: name → number of partitions of topics named like an asset of this installation.
    `held`: assets with a reference or a reservation. `served`: assets with a reference.
    `jobs`: registered jobs → registered partitions. `needed_objects`: key → what needs it.
    `objects`: keys → whether they are older than the grace period of orphans.
    `local_state`: jobs with a folder of local state → its path.
    """

    assets: Mapping[AssetId, AuditedAsset] = field(default_factory=dict)
    topics: Mapping[TopicName, int] = field(default_factory=dict)
    held: frozenset[AssetId] = frozenset()
    served: frozenset[AssetId] = frozenset()
    jobs: Mapping[JobId, frozenset[int]] = field(default_factory=dict)
    needed_objects: Mapping[str, str] = field(default_factory=dict)
    objects: Mapping[str, bool] = field(default_factory=dict)
    local_state: Mapping[JobId, str] = field(default_factory=dict)


def find_problems(facts: AuditFacts) -> tuple[Finding, ...]:
    """Return every disagreement, sorted."""
    return tuple(
        sorted(
            [
                *_topics(facts),
                *_jobs(facts),
                *_references(facts),
                *_objects(facts),
                *_local_state(facts),
            ]
        )
    )


def confirmed(first: Iterable[Finding], second: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of the second collection that the first one had, too."""
    before = {(each.problem, each.subject) for each in first}
    return tuple(each for each in second if (each.problem, each.subject) in before)


_WITH_TOPIC = frozenset({AssetState.CREATED, AssetState.LIVE, AssetState.RETAINED})


def _topics(facts: AuditFacts) -> Iterator[Finding]:
    for id_, asset in facts.assets.items():
        if asset.is_job or asset.state not in _WITH_TOPIC:
            continue
        found = facts.topics.get(TopicName(id_))
        if found is None:
            yield Finding(
                AuditProblem.MISSING_TOPIC, id_, f"{asset.title}: Kafka has no topic of this name."
            )
        elif found != asset.partitions:
            yield Finding(
                AuditProblem.PARTITION_COUNT,
                id_,
                f"{asset.title}: {found} partitions in Kafka, {asset.partitions} in the bank.",
            )
    for name in facts.topics:
        known = facts.assets.get(AssetId(name))
        if known is None or known.state is AssetState.DELETED:
            yield Finding(AuditProblem.ORPHANED_TOPIC, name, "No asset of the bank is this topic.")


def _jobs(facts: AuditFacts) -> Iterator[Finding]:
    for id_, asset in facts.assets.items():
        if not asset.is_job or asset.state is not AssetState.LIVE:
            continue
        registered = facts.jobs.get(JobId(id_))
        if registered is None:
            yield Finding(
                AuditProblem.MISSING_JOB, id_, f"{asset.title}: the registry has no such job."
            )
        elif missing := sorted(set(range(asset.partitions)) - registered):
            yield Finding(
                AuditProblem.MISSING_JOB_PARTITION,
                id_,
                f"{asset.title}: partitions {missing} are not registered.",
            )
    for job in facts.jobs:
        known = facts.assets.get(AssetId(job))
        if known is None or known.state is AssetState.DELETED:
            yield Finding(AuditProblem.ORPHANED_JOB, job, "No asset of the bank is this job.")


def _references(facts: AuditFacts) -> Iterator[Finding]:
    for id_ in facts.served:
        asset = facts.assets.get(id_)
        if asset is None or asset.state is not AssetState.LIVE:
            state = "unknown" if asset is None else asset.state.value
            yield Finding(
                AuditProblem.DANGLING_REFERENCE,
                id_,
                f"A branch refers to it, and its state is {state}.",
            )
    for id_, asset in facts.assets.items():
        if asset.state is AssetState.LIVE and id_ not in facts.held:
            yield Finding(
                AuditProblem.UNREFERENCED_ASSET,
                id_,
                f"{asset.title}: no branch and no open commit refers to it.",
            )


def _objects(facts: AuditFacts) -> Iterator[Finding]:
    for key, needed_by in facts.needed_objects.items():
        if key not in facts.objects:
            yield Finding(AuditProblem.MISSING_OBJECT, key, f"Needed by {needed_by}.")
    for key, expired in facts.objects.items():
        if expired and key not in facts.needed_objects:
            yield Finding(
                AuditProblem.ORPHANED_OBJECT, key, "Nothing refers to it since the grace period."
            )


def _local_state(facts: AuditFacts) -> Iterator[Finding]:
    for job, path in facts.local_state.items():
        if job not in facts.jobs:
            yield Finding(AuditProblem.ORPHANED_STATE, path, "The registry has no such job.")
