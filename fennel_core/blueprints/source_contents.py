"""Which content each source dataset of a commit has: the one of its branch, or another one.

Theory. The *content* of a source dataset is the rows on its topic: what the sources of the dataset
brought as long as they were its sources. A user adds and removes sources over time, and the rows
that are there stay. So the content is named by the schema, the version and the sources that it
began with (`identity.source_topic`), and a commit *continues* it under this name, whatever the
sources become. Everything computed from the dataset keeps its name, too.

Branches share a topic by its name, and ingest writes the rows of all of them to it. A branch must
not read rows of a source that it does not have. Three rules have the
effect that all branches that hold a topic have the same sources:

1. A dataset continues the content that it has in its branch if its version and its schema are
   the same, and either its sources are, too, or nothing else holds the content: no other branch, no
   running commit, and no dataset of the same branch with other sources.
2. Otherwise it begins a content, with its present sources. It shares one that another branch began
   with these very sources, if that was never continued with others and ingest still writes to it:
   one that is only read, because the branch's next version is warming, may lack rows.
3. A clone shares the contents of its original, because it has the same sources. If it was cloned
   while a commit that continues a content with other sources was running, that commit fails at T2.

A content that begins is computed from the requests of its endpoints (`source_replays.py`). A source
that is added to a content brings the requests from this commit on, and one that is removed leaves
its rows. `source_changes` says so in the plan.

Example: `main` has `Users` from endpoint a, and `Users` of `dev` is its clone. `main` adds endpoint
b: rule 2, because `dev` must not see rows of b. Without `dev` it would be rule 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from fennel_core.blueprints import identity
from fennel_core.blueprints.asset_names import key_of
from fennel_core.blueprints.logical import AssetKey, Compiled, LogicalSource
from fennel_core.blueprints.plan_entries import Notice, RowAmount
from fennel_core.blueprints.plan_text import amount_text
from fennel_core.blueprints.spec import Catalog, SourceBinding
from fennel_core.vocab.ids import AssetId, DatasetName, Identity, TopicName
from fennel_core.vocab.schema import Schema

Endpoints = Mapping[Identity, str]
"""The sources of a dataset, and the endpoint of each as `webhook/name`."""


@dataclass(frozen=True, slots=True)
class SourceDataset:
    """A source dataset of a version: what names its content, and its present sources."""

    name: DatasetName
    version: int
    schema: Schema
    sources: Endpoints

    def beginning(self, number: int) -> AssetKey:
        """Return the content that begins with the present sources of the dataset."""
        return identity.source_topic(self.sources, self.schema, self.version, number)

    def has_form_of(self, other: SourceDataset) -> bool:
        return (self.version, self.schema) == (other.version, other.schema)

    def has_sources_of(self, other: SourceDataset) -> bool:
        return self.sources.keys() == other.sources.keys()


@dataclass(frozen=True, slots=True)
class ContentFacts:
    """What the choice depends on besides the definitions.

    `before`: the version of the branch. `shared`: topics that another branch or a running commit
    holds. `taken`: contents that no other branch may share.
    """

    before: Catalog | None = None
    shared: Collection[AssetId] = ()
    taken: Collection[AssetKey] = ()


def source_datasets(compiled: Compiled) -> list[SourceDataset]:
    """Return the source datasets of a commit."""
    sources = _endpoints(compiled.sources)
    return [
        SourceDataset(d.name, d.version, d.schema, sources[d.name])
        for d in compiled.datasets
        if d.is_source
    ]


def choose_contents(compiled: Compiled, facts: ContentFacts) -> dict[DatasetName, AssetKey]:
    """Return the topic of each source dataset; the topics in `compiled` do not matter."""
    before, topics = _before(facts.before)
    wanted = source_datasets(compiled)
    continuing: dict[TopicName, list[SourceDataset]] = defaultdict(list)
    for dataset in wanted:
        old = before.get(dataset.name)
        if old is not None and dataset.has_form_of(old):
            continuing[topics[dataset.name]].append(dataset)
    chosen: dict[DatasetName, AssetKey] = {}
    taken = set(facts.taken)
    for topic, datasets in continuing.items():
        same = [d for d in datasets if d.has_sources_of(before[d.name])]
        if not same and _is_sole(topic, datasets, facts):
            taken.add(key_of(topic))
            same = datasets
        chosen |= {dataset.name: key_of(topic) for dataset in same}
    for dataset in wanted:
        if dataset.name not in chosen:
            beginnings = map(dataset.beginning, count())
            chosen[dataset.name] = next(key for key in beginnings if key not in taken)
    return chosen


def _is_sole(topic: TopicName, datasets: Sequence[SourceDataset], facts: ContentFacts) -> bool:
    """Return whether the datasets, which change their sources, may all continue the content."""
    return AssetId(topic) not in facts.shared and all(
        d.has_sources_of(datasets[0]) for d in datasets
    )


def continued_with_other_sources(
    before: Catalog | None, after: Compiled | Catalog
) -> set[AssetKey]:
    """Return the contents of `before` that `after` continues with other sources."""
    old, topics = _before(before)
    sources = _endpoints(after.sources)
    return {
        key
        for dataset in after.datasets
        if dataset.is_source and dataset.topic is not None and dataset.name in old
        for key in [_key(dataset.topic)]
        if key == key_of(topics[dataset.name])
        and sources[dataset.name].keys() != old[dataset.name].sources.keys()
    }


def requests_left_out(before: Catalog | None, compiled: Compiled) -> dict[str, AssetId]:
    """Return the raw topics of sources of `before` that no dataset of the commit has, by endpoint.

    If their dataset begins another content, it lacks their rows.
    """
    present = {source.identity for source in compiled.sources}
    return {
        f"{source.webhook}/{source.endpoint}": AssetId(source.raw_topic)
        for source in (() if before is None else before.sources)
        if source.identity not in present
    }


def source_changes(
    before: Catalog | None, compiled: Compiled, messages: Mapping[AssetId, int]
) -> Iterator[Notice]:
    """Yield what happens to the rows of sources that a commit adds to its datasets or removes.

    A dataset that is new, or has another version or schema, has no such change: it is computed
    from all requests of its sources. `messages`: how many a topic ever held, where that is known.
    """
    left_out = {
        endpoint: amount_text(RowAmount(messages.get(raw)))
        for endpoint, raw in requests_left_out(before, compiled).items()
    }
    old, topics = _before(before)
    contents = compiled.source_contents
    for dataset in source_datasets(compiled):
        earlier = old.get(dataset.name)
        if earlier is None or not dataset.has_form_of(earlier) or dataset.has_sources_of(earlier):
            continue
        added = _names(dataset.sources, earlier.sources)
        removed = _names(earlier.sources, dataset.sources)
        if contents[dataset.name] == key_of(topics[dataset.name]):
            changed = sorted({*added} & {*removed})
            yield from _changed(dataset.name, changed)
            yield from _continued(
                dataset.name,
                [each for each in added if each not in changed],
                [each for each in removed if each not in changed],
            )
        else:
            lost = {each: left_out.get(each, amount_text(RowAmount(None))) for each in removed}
            yield _begun(dataset.name, lost)


def _changed(dataset: DatasetName, endpoints: Sequence[str]) -> Iterator[Notice]:
    for endpoint in endpoints:
        yield Notice(
            "source-changed",
            dataset,
            f"dataset `{dataset}`: source `{endpoint}` is defined otherwise; its rows are kept, "
            "those from this commit on are what it says now, and which of them are late is "
            "decided as if it was new",
        )


def _continued(
    dataset: DatasetName, added: Sequence[str], removed: Sequence[str]
) -> Iterator[Notice]:
    for endpoint in added:
        yield Notice(
            "source-added",
            dataset,
            f"dataset `{dataset}`: source `{endpoint}` is added and brings rows from this commit "
            "on; rows that its endpoint received earlier are not fetched",
        )
    for endpoint in removed:
        yield Notice(
            "source-removed",
            dataset,
            f"dataset `{dataset}`: source `{endpoint}` is removed and brings no more rows; its "
            "rows are kept",
        )


def _begun(dataset: DatasetName, removed: Mapping[str, str]) -> Notice:
    left_out = "".join(
        f"; rows of the removed source `{each}` are left out ({amount})"
        for each, amount in removed.items()
    )
    return Notice(
        "source-rows-not-shared",
        dataset,
        f"dataset `{dataset}`: its rows are shared with a branch or commit that keeps the earlier "
        f"sources, so it is recomputed from the requests of its present sources{left_out}",
    )


def _names(sources: Endpoints, without: Endpoints) -> list[str]:
    """Return the endpoints of the sources that are not in `without`, in order."""
    return sorted({name for each, name in sources.items() if each not in without})


def _before(
    catalog: Catalog | None,
) -> tuple[dict[DatasetName, SourceDataset], dict[DatasetName, TopicName]]:
    """Return the source datasets of the version that the branch has, and their topics."""
    if catalog is None:
        return {}, {}
    sources = _endpoints(catalog.sources)
    found = {
        d.name: SourceDataset(d.name, d.version, d.schema, sources[d.name])
        for d in catalog.datasets
        if d.is_source and d.topic is not None
    }
    return found, {d.name: d.topic for d in catalog.datasets if d.topic is not None}


def _endpoints(
    sources: Sequence[LogicalSource | SourceBinding],
) -> defaultdict[DatasetName, dict[Identity, str]]:
    found: defaultdict[DatasetName, dict[Identity, str]] = defaultdict(dict)
    for source in sources:
        found[source.dataset][source.identity] = f"{source.webhook}/{source.endpoint}"
    return found


def _key(topic: AssetKey | TopicName) -> AssetKey:
    return topic if isinstance(topic, AssetKey) else key_of(topic)
