"""Which retained assets a commit can revive instead of creating new ones.

An asset that no version needs any more is retained for a grace period with its rows, offsets and
state. A commit that needs the same identity again revives it, if its content is then the same as
that of a new asset that was computed from everything accepted:

- A raw topic or the dead-letter topic: nothing was accepted for it, because no version had it. That
  of a stream is revived with its positions, or not at all: the stream is read on from there, and a
  raw topic without them would get its first messages again.
- A sink: it says by physical name of whose topic it got how much, and continues there.
- The topic of a source dataset: if it missed no row. Ingest wrote to it as long as it wrote to the
  raw topics of its endpoints, so it missed none if all of these were released together with it and
  have been retained since. Otherwise its endpoint may have accepted rows in the meantime; the topic
  stays retained, and a new one is computed from the raw requests. The same is done if it has rows
  of sources that it did not begin with (`source_contents.py`).
- A job with its replaylog and the topics that it writes: if it goes on with the very topics that it
  read before, by physical name. It continues at its offsets, so it misses nothing either. A source
  replay is revived together with its dataset's topic only: a source that is added again to a topic
  that is alive brings rows from that commit on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fennel_core.blueprints.logical import AssetKey, AssetKind, Compiled, LogicalJob
from fennel_core.blueprints.spec import Job
from fennel_core.operators.spec import SourceReplaySpec
from fennel_core.vocab.ids import AssetId, TopicName

_KEPT: Final = frozenset({AssetKind.RAW, AssetKind.POSITIONS, AssetKind.SINK, AssetKind.DEAD})
"""Nothing is missing in these after a time without a version that has them."""


@dataclass(frozen=True, slots=True)
class RetainedAsset:
    """An asset without a holder that a commit may revive.

    `since_us`: when it was released; equal for assets that were released together. `job`: what the
    registry runs under its name, None for a topic. `sources_changed`: the content of a source
    dataset that was continued with other sources than it began with.
    """

    id: AssetId
    since_us: int
    job: Job | None
    sources_changed: bool = False


def revivable(
    compiled: Compiled,
    alive: Mapping[AssetKey, AssetId],
    retained: Mapping[AssetKey, RetainedAsset],
) -> dict[AssetKey, AssetId]:
    """Return the retained assets that the commit revives; none of them is in `alive`."""
    candidates = {key: asset for key, asset in retained.items() if key not in alive}
    names = dict(alive)
    written = {output.topic for job in compiled.jobs for output in job.outputs}
    for topic in compiled.topics:
        together = _read_together(topic.key, compiled)
        kept = topic.key.kind in _KEPT
        if kept and topic.key in candidates and all(k in alive or k in retained for k in together):
            names[topic.key] = candidates[topic.key].id
    for source in compiled.sources:
        if source.topic in candidates and _missed_nothing(source.topic, compiled, retained, names):
            names[source.topic] = candidates[source.topic].id
    sources = {source.topic for source in compiled.sources}
    for topic in compiled.topics:
        unbound = topic.key not in written and topic.key not in sources
        if topic.key.kind is AssetKind.TOPIC and unbound and topic.key in candidates:
            names[topic.key] = candidates[topic.key].id
    for job in compiled.jobs:
        # Of the topics that it writes, those of source datasets are revived above or not at all.
        own = {job.replaylog, *(o.topic for o in job.outputs)} - sources
        its = {key: candidates[key] for key in own if key in candidates}
        if isinstance(job.step, SourceReplaySpec) and job.outputs[0].topic in alive:
            continue
        if job.key in candidates and _continues(job, candidates[job.key].job, names, its):
            for key in (job.key, job.replaylog, *(o.topic for o in job.outputs)):
                names.setdefault(key, retained[key].id)
    return {key: id_ for key, id_ in names.items() if key not in alive}


def _read_together(key: AssetKey, compiled: Compiled) -> set[AssetKey]:
    """Return the raw topic and the positions of the stream that has `key`; empty if none has."""
    return {
        each
        for source in compiled.sources
        if source.positions is not None and key in (source.raw_topic, source.positions)
        for each in (source.raw_topic, source.positions)
    }


def _missed_nothing(
    topic: AssetKey,
    compiled: Compiled,
    retained: Mapping[AssetKey, RetainedAsset],
    names: Mapping[AssetKey, AssetId],
) -> bool:
    """Return whether every endpoint of the topic was released together with it."""
    raws = {source.raw_topic for source in compiled.sources if source.topic == topic}
    return not retained[topic].sources_changed and all(
        raw in retained
        and names.get(raw) == retained[raw].id
        and retained[raw].since_us == retained[topic].since_us
        for raw in raws
    )


def _continues(
    job: LogicalJob,
    before: Job | None,
    names: Mapping[AssetKey, AssetId],
    own: Mapping[AssetKey, RetainedAsset],
) -> bool:
    """Return whether the job would read and write the same physical topics as before.

    `own`: retained topics that only this job writes.
    """
    if before is None:
        return False

    def name(key: AssetKey) -> TopicName | None:
        found = names.get(key) or (own[key].id if key in own else None)
        return None if found is None else TopicName(found)

    return (
        tuple(name(key) for key in job.inputs) == before.inputs
        and tuple(name(output.topic) for output in job.outputs)
        == tuple(output.topic for output in before.outputs)
        and name(job.replaylog) == before.replaylog
        and name(job.dead_letters) == before.dead_letters
    )
