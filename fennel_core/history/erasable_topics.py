"""Which topics lose the rows of which erased keys, and why some lose none. Pure.

Theory. Keys are erased of a dataset, by name, in every branch and version. Its rows are on the
topic of each version; a terminal aggregate has the topic that its job reads, if no other dataset
and no other job reads that.

A job that is created later reads what is left, so nothing may be left that makes no sense without
the rows that are gone: a retraction whose row was removed would make counts negative. Rows that
ingest writes, and what stateless jobs make of them, are never retracted. Any other topic may get
the retraction of any of its rows later, so it keeps them; readers hide them.

Reads hide erased keys, not rows: an erasure applies to a version only if its columns are key
columns of that version, and a version with another key serves the rows, too. So a topic loses none
while any of its dataset's erasures has other columns than those of the keys of all its versions.

Raw requests keep their bodies, which are not rows of one dataset; they are deleted by age.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from fennel_core.blueprints.retractions import only_adds
from fennel_core.blueprints.spec import Catalog, DatasetView, Job
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.ids import DatasetName, TopicName, WorkspaceId

RETRACTED: Final = (
    "a job that reads or joins other rows writes this topic, and may retract each of them later"
)
SHARED: Final = "the topic has the rows of several datasets or jobs"
OTHER_KEYS: Final = (
    "keys were erased by columns outside the key of these rows, so reads of this version show them"
)
REQUESTS: Final = (
    "requests are kept as they were sent, for the longest `history` of the endpoint's datasets"
)


@dataclass(frozen=True, slots=True)
class ErasableTopic:
    """A topic with the rows of a dataset.

    `kept_because`: why rows of erased keys stay in its history; None: they are removed. `keys`: the
    columns that are in the key of every version with these rows.
    """

    topic: TopicName
    workspace: WorkspaceId
    dataset: DatasetName
    kept_because: str | None
    keys: frozenset[str] = frozenset()
    is_source: bool = False
    """Ingest writes it, which accepts no row of an erased key; other jobs do write them."""

    def with_erasures_by(self, erased_by: Iterable[tuple[str, ...]]) -> ErasableTopic:
        """Return the topic for a dataset whose keys were erased by these columns."""
        if self.kept_because is None and any(not self.keys.issuperset(by) for by in erased_by):
            return replace(self, kept_because=OTHER_KEYS)
        return self


@dataclass(slots=True)
class _Uses:
    """Who uses a topic: names of datasets, whether one of them is a source dataset, and the columns
    that are in the key of each of their versions.
    """

    workspace: WorkspaceId
    datasets: set[DatasetName] = field(default_factory=set)
    is_source: bool = False
    foreign: bool = False
    """A job of no such dataset reads it, too, and it is the topic of none."""
    keys: frozenset[str] | None = None

    def add(self, view: DatasetView) -> None:
        names = frozenset(view.schema.key_names)
        self.datasets.add(view.name)
        self.keys = names if self.keys is None else self.keys & names


def erasable_topics(catalogs: Iterable[Catalog], jobs: Collection[Job]) -> list[ErasableTopic]:
    """Return the topics of the datasets of `catalogs`: one per topic and dataset, in order.

    `jobs`: every job that runs or may run again.
    """
    catalogs = list(catalogs)
    uses = _uses(catalogs, jobs)
    writers: dict[TopicName, list[Job]] = {}
    for job in jobs:
        for output in job.outputs:
            writers.setdefault(output.topic, []).append(job)
    found = []
    for topic, use in sorted(uses.items()):
        reason = None
        if use.foreign or len(use.datasets) > 1:
            reason = SHARED
        elif not only_adds(topic, use.is_source, writers):
            reason = RETRACTED
        found += [
            ErasableTopic(
                topic, use.workspace, name, reason, use.keys or frozenset(), use.is_source
            )
            for name in sorted(use.datasets)
        ]
    requests = {
        ErasableTopic(source.raw_topic, catalog.workspace, source.dataset, REQUESTS)
        for catalog in catalogs
        for source in catalog.sources
    }
    return [*found, *sorted(requests, key=lambda each: (each.topic, each.dataset))]


def _uses(catalogs: Collection[Catalog], jobs: Collection[Job]) -> dict[TopicName, _Uses]:
    uses: dict[TopicName, _Uses] = {}
    served: dict[str, list[DatasetView]] = {}
    for catalog in catalogs:
        for view in catalog.datasets:
            if view.topic is not None:
                use = uses.setdefault(view.topic, _Uses(catalog.workspace))
                use.add(view)
                use.is_source |= view.is_source
            elif view.served_by is not None:
                served.setdefault(view.served_by, []).append(view)
    private: dict[TopicName, _Uses] = {}
    for job in jobs:
        for topic in job.inputs:
            if topic in uses:
                continue
            use = private.setdefault(topic, _Uses(job.workspace))
            if isinstance(job.step, AggregateSpec) and job.id in served:
                for view in served[job.id]:
                    use.add(view)
            else:
                use.foreign = True
    return uses | {topic: use for topic, use in private.items() if use.datasets}
