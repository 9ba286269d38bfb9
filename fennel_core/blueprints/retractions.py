"""Which topics only ever get new rows: none of theirs is ever retracted. Pure.

Ingest never retracts, and stateless jobs do not on rows that are not retracted. Every other job may
retract any of its rows later.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Protocol, TypeVar

from fennel_core.operators.spec import MapSpec, SourceReplaySpec, StepSpec, UserCodeSpec

Topic = TypeVar("Topic", bound=Hashable)
TopicOut = TypeVar("TopicOut", bound=Hashable, covariant=True)


class Reader(Protocol[TopicOut]):
    """A job: what it does, and the topics that it reads."""

    @property
    def step(self) -> StepSpec: ...

    @property
    def inputs(self) -> Sequence[TopicOut]: ...


def only_adds(
    topic: Topic, is_source: bool, writers: Mapping[Topic, Collection[Reader[Topic]]]
) -> bool:
    """Return whether no row of a topic is ever retracted.

    `writers`: the jobs that write each topic; `is_source`: ingest writes this one.
    """
    jobs = writers.get(topic, ())
    if not jobs:
        return is_source
    return all(_adds(job, writers) for job in jobs)


def _adds(job: Reader[Topic], writers: Mapping[Topic, Collection[Reader[Topic]]]) -> bool:
    """Return whether a job retracts no row. A topic that no job writes is written by ingest."""
    match job.step:
        case SourceReplaySpec():
            return True
        case MapSpec() | UserCodeSpec():
            return all(only_adds(topic, True, writers) for topic in job.inputs)
        case _:
            return False
