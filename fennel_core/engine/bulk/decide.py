"""Does a job partition without state begin with a load, or live? Facts in, decision out.

Theory. A load is quicker than the live lane where history is long, and both come to the same. But
where a log has lost its beginning the live lane cannot come to it at all: then a load is a need,
however few the rows, and what stands in its way is an error to be told, never a reason to skip
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fennel_core.blueprints.spec import Job
from fennel_core.operators.spec import UserCodeSpec, needs_watermark
from fennel_core.vocab.ids import Offset, TopicName

REMEDY: Final = (
    "Nothing is skipped. Commit the dataset that it reads under a new version: that "
    "is filled again with what its source still has. "
    "FENNEL_KAFKA_RETENTION_MS says how long logs are kept, "
    "FENNEL_HISTORY_BEFORE_DELETION that history has what goes"
)


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a job partition. Its log begins at `start`; history has `rows` rows of it, and
    what lies below `end`.
    """

    topic: TopicName
    start: Offset
    end: Offset
    rows: int


@dataclass(frozen=True, slots=True)
class Live:
    """All of it is read live."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch computes what history has. `needed`: the live lane cannot take its place."""

    rows: int
    needed: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Neither lane can come to what the job should hold; why, and what to do."""

    told: str


Decision = Live | Batch | Lost


def why_not(job: Job) -> str | None:
    """Why a batch cannot compute this job; None where it can."""
    if isinstance(job.step, UserCodeSpec):
        return "it runs user code, which a batch cannot wait for"
    if needs_watermark(job.step) or any(output.frontier for output in job.outputs):
        return (
            "it closes windows by event time or tells others how far event time has "
            "come, and history does not keep that"
        )
    return None


def decide(job: Job, part: int, inputs: Sequence[Input], from_rows: int) -> Decision:
    """What a job partition without state does; history of fewer than `from_rows` rows is left to
    the live lane where it can read it.
    """
    shortened = [each for each in inputs if each.start > 0]
    obstacle = why_not(job)
    for each in shortened:
        gone = (
            f"{job.title} ({job.id}[{part}]) begins without state, and the log it "
            f"reads, {each.topic}[{part}], begins at {each.start}: "
            f"offsets 0 to {each.start - 1} are deleted"
        )
        if each.end < each.start:
            return Lost(
                f"{gone}, and history on S3 ends at {each.end}. {REMEDY}, or log those rows again"
            )
        if obstacle is not None:
            return Lost(
                f"{gone}. History on S3 has them, but this job cannot be loaded from "
                f"there: {obstacle}. {REMEDY}"
            )
    rows = sum(each.rows for each in inputs)
    if shortened:
        return Batch(rows, needed=True)
    return Live() if obstacle is not None or rows < from_rows else Batch(rows, needed=False)
