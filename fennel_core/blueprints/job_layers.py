"""Group jobs into layers, so that all writers of a job's inputs are in earlier layers.

To know that everything accepted up to a moment is visible, wait layer by layer: when all jobs of a
layer have passed the ends of their inputs, their outputs are on their topics, and the ends of those
topics are the targets of the next layer. The query barrier and the warming of commits do so.
"""

from __future__ import annotations

from collections.abc import Iterable

from fennel_core.blueprints.spec import Job
from fennel_core.vocab.ids import TopicName, TopicPartition, partition_indexes


def layers(jobs: Iterable[Job]) -> list[list[Job]]:
    """Return the layers of `jobs`; a job is in the first layer after all writers of its inputs."""
    remaining = list(jobs)
    found: list[list[Job]] = []
    while remaining:
        written = {output.topic for job in remaining for output in job.outputs}
        layer = [job for job in remaining if written.isdisjoint(job.inputs)]
        assert layer, "jobs have no cycles"
        found.append(layer)
        remaining = [job for job in remaining if job not in layer]
    return found


def input_partitions(layer: Iterable[Job]) -> set[TopicPartition]:
    """Return every topic partition that the jobs of a layer read."""
    return {
        (TopicName(topic), part)
        for job in layer
        for topic in job.inputs
        for part in partition_indexes(job.partitions)
    }
