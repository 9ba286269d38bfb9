"""The topics and jobs of a commit while it is compiled, each once, in the order of first use.

Adding is idempotent because keys are identities: a job that a second pipeline needs is the same
job. Producers are added before their consumers, so insertion order is a topological order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fennel_core.blueprints import identity
from fennel_core.blueprints.logical import (
    AssetKey,
    LogicalJob,
    LogicalOutput,
    LogicalSource,
    LogicalTopic,
    SourceReplay,
)
from fennel_core.operators.spec import SourceReplaySpec, StepSpec


@dataclass(slots=True)
class Assembly:
    """Collects topics and jobs by key; each gets the number of partitions of the workspace."""

    partitions: int
    topics: dict[AssetKey, LogicalTopic] = field(default_factory=dict)
    jobs: dict[AssetKey, LogicalJob] = field(default_factory=dict)
    replays: dict[AssetKey, SourceReplay] = field(default_factory=dict)

    def add_topic(self, key: AssetKey, title: str, entity: str) -> AssetKey:
        """Add a topic unless it exists; return its key. The first title and entity win."""
        self.topics.setdefault(key, LogicalTopic(key, self.partitions, title, entity))
        return key

    def dead_letters(self) -> AssetKey:
        """Add the dead-letter topic of the workspace; return its key."""
        return self.add_topic(identity.dead_letters(), "the workspace", "")

    def add_source_replay(self, source: LogicalSource) -> None:
        """Add the job that recomputes the rows of a source from the requests of its endpoint."""
        step = SourceReplaySpec(source.dataset, source.source, source.schema)
        key = identity.source_replay(source.identity, step, source.topic)
        if key in self.replays:
            return
        title = f"{source.dataset}: recompute from {source.webhook}/{source.endpoint}"
        log = LogicalTopic(identity.replaylog(key), self.partitions, title, source.dataset)
        job = LogicalJob(
            key=key,
            inputs=(source.raw_topic,),
            outputs=(LogicalOutput(source.topic, source.schema.key_names),),
            step=step,
            replaylog=log.key,
            dead_letters=self.dead_letters(),
            partitions=self.partitions,
            title=title,
            entity=source.dataset,
        )
        self.replays[key] = SourceReplay(job, log)

    def add_job(
        self,
        step: StepSpec,
        inputs: Sequence[AssetKey],
        partition_by: tuple[str, ...] | None,
        *,
        salt: Any,
        title: str,
        content: str,
        entity: str,
        watermark: bool = False,
    ) -> tuple[AssetKey, AssetKey | None]:
        """Add a job; return its key and that of its output topic (None without `partition_by`).

        `content` is the title of the output topic, `entity` the dataset that both are made for.
        `watermark`: the output carries a watermark, which makes its identity another than that of
        an output without.
        """
        assert len(set(inputs)) == len(inputs), (
            "a job reads a topic once, because its runner identifies inputs by topic"
        )
        assert all(i in self.topics for i in inputs), "producers are added first"
        key = identity.job(step, inputs, partition_by, salt, watermark=watermark)
        output = (
            None
            if partition_by is None
            else self.add_topic(identity.output_topic(key), content, entity)
        )
        if key not in self.jobs:
            self.jobs[key] = LogicalJob(
                key=key,
                inputs=tuple(inputs),
                outputs=()
                if output is None
                else (LogicalOutput(output, partition_by or (), watermark),),
                step=step,
                replaylog=self.add_topic(identity.replaylog(key), title, entity),
                dead_letters=self.dead_letters(),
                partitions=self.partitions,
                title=title,
                entity=entity,
            )
        return key, output
