"""Plan an offline query against what a branch serves now, and fix what it reads.

Theory. The version of the branch, the ends of all topics and the erased keys are read once, in this
order, and everything after that is a function of them. The rows that a lookup is computed from are
the input of the job that serves it: the dataset's own topic for a table, the topic of the rows that
are aggregated for a terminal aggregation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fennel_core.connections import erasures
from fennel_core.connections.postgres import Pool
from fennel_core.history.topic_slices import TopicSlice, plan_slices
from fennel_core.offline.errors import HistoryIncomplete, LookupNotOffline
from fennel_core.offline.lookup_groups import Erasures
from fennel_core.offline.planned_query import OfflineQuery, PlannedQuery
from fennel_core.offline.request_row import ReadEstimate
from fennel_core.offline.version_pieces import estimate_of, pieces_to_read
from fennel_core.operators.spec import StepSpec
from fennel_core.query.erasures import erasure_rules
from fennel_core.query.errors import ViewOutdated
from fennel_core.query.postgres import PostgresReader
from fennel_core.query.view import BranchKey, FeatureRequest, ServingVersion, View
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import CommitId, JobId, Micros, TopicName


@dataclass(frozen=True, slots=True)
class OfflineRead:
    """A query and what it reads: per job, the slices of the topic of its input.

    `shortened`: topics whose first records were pruned, because they are older than the `history`
    of the dataset.
    """

    query: OfflineQuery
    commit: CommitId | None
    slices: Mapping[JobId, tuple[TopicSlice, ...]]
    shortened: frozenset[TopicName]

    def pieces(self, latest: Micros) -> dict[JobId, tuple[TopicSlice, ...]]:
        """Return what is read of the input of each job, in pieces for one task each."""
        query = self.query
        return pieces_to_read(query.planned.program(), query.specs, self.slices, latest)


async def plan_offline_read(
    settings: Settings, pool: Pool, key: BranchKey, asked: FeatureRequest
) -> OfflineRead:
    """Return the read of a query; `asked`: input and output features.

    Raises `QueryError`, `OfflineError`, and SystemUnavailable.
    """
    serving = await PostgresReader(pool).read_serving(key, None)
    assert serving is None or isinstance(serving, ServingVersion), "no version is known"
    view = View.of(serving)
    planned = PlannedQuery.of(view, asked)
    specs, slices = await _inputs(settings, pool, planned)
    rules = await _erasures(pool, key, planned)
    shortened = {part.partition[0] for parts in slices.values() for part in parts if part.begins}
    query = OfflineQuery(planned, specs, rules)
    return OfflineRead(query, view.commit, slices, frozenset(shortened))


async def estimate_read(
    settings: Settings, pool: Pool, planned: PlannedQuery, latest: Micros | None
) -> ReadEstimate:
    """Return how much a query reads, as of now. `latest`: the time of the latest row.

    Raises `QueryError`, `OfflineError`, and SystemUnavailable.
    """
    specs, slices = await _inputs(settings, pool, planned)
    return estimate_of(pieces_to_read(planned.program(), specs, slices, latest).values())


async def _inputs(
    settings: Settings, pool: Pool, planned: PlannedQuery
) -> tuple[dict[JobId, StepSpec], dict[JobId, tuple[TopicSlice, ...]]]:
    """Return the steps of the jobs of a query, and the slices of their inputs."""
    jobs = planned.jobs()
    specs = await PostgresReader(pool).read_jobs(jobs)
    if gone := [job for job in jobs if job not in specs]:
        raise ViewOutdated(f"job `{gone[0]}` was deleted while the query was planned; repeat it")
    for job in specs.values():
        if len(job.inputs) != 1:
            raise LookupNotOffline(
                f"job `{job.id}` ({job.title}) reads {len(job.inputs)} topics, and lookups are "
                "computed from one. Report this: a dataset names it as the job of its lookups"
            )
    inputs = {job: specs[job].inputs[0] for job in jobs}
    slices = await plan_slices(settings, pool, set(inputs.values()))
    for topic, parts in slices.items():
        _check_complete(topic, parts)
    return (
        {job: specs[job].step for job in jobs},
        {job: slices[topic] for job, topic in inputs.items()},
    )


def _check_complete(topic: TopicName, parts: tuple[TopicSlice, ...]) -> None:
    if not parts:
        raise HistoryIncomplete(f"topic `{topic}` does not exist on the broker; restore the topic")
    for part in parts:
        if part.gap is not None:
            first, following = part.gap
            raise HistoryIncomplete(
                f"records of `{topic}`, partition {part.partition[1]}, from offset "
                f"{first} to {following} were deleted before they were in history. Keep "
                "FENNEL_HISTORY_BEFORE_DELETION on, and log those rows again"
            )


async def _erasures(pool: Pool, key: BranchKey, planned: PlannedQuery) -> Erasures:
    """Return the erased keys of the datasets that a query looks up."""
    erased = (await erasures.read(pool, key[0])).get(key[0], {})
    found = {}
    for table in planned.tables.values():
        of = table.erasable
        rules = erasure_rules(of.columns, erased.get(of.dataset, ()))
        if rules:
            found[of] = rules
    return found
