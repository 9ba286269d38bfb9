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
class InputRange:
    """One input of a job partition. Its log begins at `start`; history has `rows` rows of it, and
    what lies below `end`.
    """

    topic: TopicName
    start: Offset
    end: Offset
    rows: int


@dataclass(frozen=True, slots=True)
class StartLive:
    """All of it is read live."""


@dataclass(frozen=True, slots=True)
class StartWithBackfill:
    """A batch computes what history has. `required`: the live lane cannot take its place."""

    rows: int
    required: bool


@dataclass(frozen=True, slots=True)
class InputLost:
    """Neither lane can come to what the job should hold; why, and what to do."""

    reason: str


StartMode = StartLive | StartWithBackfill | InputLost


def batch_obstacle(job: Job) -> str | None:
    """Why a batch cannot compute this job; None where it can."""
    if isinstance(job.step, UserCodeSpec):
        return "it runs user code, which a batch cannot wait for"
    if needs_watermark(job.step) or any(output.watermark for output in job.outputs):
        return (
            "it closes windows by event time or tells others how far event time has "
            "come, and history does not keep that"
        )
    return None


def choose_start_mode(
    job: Job, part: int, inputs: Sequence[InputRange], from_rows: int
) -> StartMode:
    """What a job partition without state does; history of fewer than `from_rows` rows is left to
    the live lane where it can read it.
    """
    shortened = [each for each in inputs if each.start > 0]
    obstacle = batch_obstacle(job)
    for each in shortened:
        gone = (
            f"{job.title} ({job.id}[{part}]) begins without state, and the log it "
            f"reads, {each.topic}[{part}], begins at {each.start}: "
            f"offsets 0 to {each.start - 1} are deleted"
        )
        if each.end < each.start:
            return InputLost(
                f"{gone}, and history on S3 ends at {each.end}. {REMEDY}, or log those rows again"
            )
        if obstacle is not None:
            return InputLost(
                f"{gone}. History on S3 has them, but this job cannot be loaded from "
                f"there: {obstacle}. {REMEDY}"
            )
    rows = sum(each.rows for each in inputs)
    if shortened:
        return StartWithBackfill(rows, required=True)
    return (
        StartLive()
        if obstacle is not None or rows < from_rows
        else StartWithBackfill(rows, required=False)
    )
