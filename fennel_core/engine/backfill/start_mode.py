"""Decide whether a job partition without state starts with a backfill or on the live path. Pure.

Theory. A backfill is faster than the live path where history is long, and both produce the same.
But where a log is truncated the live path cannot produce it at all: then the backfill is required,
however few the rows, and an obstacle is an error, never a reason to skip rows. A job without state
that no batch can compute reads history by itself instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fennel_core.blueprints.spec import Job
from fennel_core.operators.spec import SourceReplaySpec, has_native_step, needs_watermark
from fennel_core.vocab.ids import Offset, TopicName

REMEDY: Final = (
    "No record is skipped. Commit the dataset that it reads under a new version, which is filled "
    "again from its source. FENNEL_KAFKA_RETENTION_MS sets how long logs are kept, "
    "FENNEL_HISTORY_BEFORE_DELETION keeps records until history has them"
)


@dataclass(frozen=True, slots=True)
class InputRange:
    """One input of a job partition.

    Its log starts at `start`; history has the records below `end`, which are `rows` rows without
    the `removed_rows` rows of erased keys and the `expired_rows` rows that were too old, and
    without those of `lost`, the first offsets that were deleted before history had them.
    """

    topic: TopicName
    start: Offset
    end: Offset
    rows: int
    removed_rows: int = 0
    lost: tuple[Offset, Offset] | None = None
    expired_rows: int = 0


@dataclass(frozen=True, slots=True)
class StartLive:
    """Read every record on the live path."""


@dataclass(frozen=True, slots=True)
class StartWithBackfill:
    """Backfill from history. `required`: the live path cannot replace it."""

    rows: int
    required: bool


@dataclass(frozen=True, slots=True)
class InputLost:
    """Neither path can produce the job's state; `reason` includes the next action."""

    reason: str


StartMode = StartLive | StartWithBackfill | InputLost


def batch_obstacle(job: Job) -> str | None:
    """Return why a batch cannot compute this job; None if it can."""
    if not has_native_step(job.step):
        return "it runs user code or admits raw requests, which a batch cannot await"
    if needs_watermark(job.step) or any(output.watermark for output in job.outputs):
        return "it closes windows by event time or writes watermarks, which history does not have"
    return None


def reads_history_itself(job: Job) -> bool:
    """Return whether the job's owner reads from history what the log no longer has.

    The job has no state, so it needs nothing but the rows in their order (`archived_input`).
    """
    return not has_native_step(job.step) and not any(output.watermark for output in job.outputs)


def tolerates_lost_records(job: Job) -> bool:
    """Return whether the job continues behind records that are gone from log and history.

    Only a source replay does: a dataset without its oldest rows is better than none.
    """
    return isinstance(job.step, SourceReplaySpec)


def choose_start_mode(
    job: Job, part: int, inputs: Sequence[InputRange], from_rows: int
) -> StartMode:
    """Return how a job partition without state starts.

    History of fewer than `from_rows` rows is left to the live path if that can read all of it.
    """
    truncated = [each for each in inputs if each.start > 0]
    obstacle = batch_obstacle(job)
    for each in truncated:
        gone = (
            f"{job.title} ({job.id}[{part}]) starts without state, and its input "
            f"{each.topic}[{part}] starts at {each.start}: "
            f"offsets 0 to {each.start - 1} are deleted"
        )
        if each.end < each.start and not tolerates_lost_records(job):
            return InputLost(
                f"{gone}, and history on S3 ends at {each.end}. {REMEDY}, or log those rows again"
            )
        if each.lost is not None and not tolerates_lost_records(job):
            first, following = each.lost
            return InputLost(
                f"{gone}, and history on S3 lacks {first} to {following - 1}, which were deleted "
                f"before it had them. {REMEDY}, or log those rows again"
            )
        if obstacle is not None and not reads_history_itself(job):
            return InputLost(
                f"{gone}. History on S3 has them, but this job cannot be backfilled because "
                f"{obstacle}. {REMEDY}"
            )
    rows = sum(each.rows for each in inputs)
    if truncated and obstacle is None:
        return StartWithBackfill(rows, required=True)
    return (
        StartLive()
        if obstacle is not None or rows < from_rows
        else StartWithBackfill(rows, required=False)
    )
