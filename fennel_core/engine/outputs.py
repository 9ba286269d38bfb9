"""Encode the rows that a step emits, and route each row to the partition of its key."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from fennel_core.blueprints.spec import Job
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.operators.spec import SourceReplaySpec, StepSpec, UserCodeSpec
from fennel_core.operators.step import DeadRows, OutputBatch
from fennel_core.vocab.dead_letters import DeadLetterKind, DeadLetterOrigin
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.keys import key_bytes, partition_of
from fennel_core.vocab.versions import FORMAT_HEADER, encode_frame

RECORD_BYTES = 16 << 20
"""Largest record of several rows: half of what Kafka accepts (`connections.kafka`)."""
_PART = "__part"
_ROW = "__row"


def output_records(
    job: Job, part: int, emits: tuple[OutputBatch, ...], dead: tuple[DeadRows, ...]
) -> list[OutgoingRecord]:
    """Return a record per emit and output partition it touches; rows keep their order.

    Rows that do not fit into one record are split. `part`: partition of the job, for dead letters
    and for outputs without a key.
    """
    out: list[OutgoingRecord] = []
    for emit in emits:
        output = job.outputs[emit.output]
        for target, frame in split_by_partition(
            emit.frame, output.partition_by, job.partitions, part
        ):
            out += _records(output.topic, target, frame, (FORMAT_HEADER,))
    for d in dead:
        origin = DeadLetterOrigin(dead_letter_kind(job.step), job.id, job.title, d.reason)
        out += _records(job.dead_letters, part, d.frame, origin.headers())
    return out


def dead_letter_kind(step: StepSpec) -> DeadLetterKind:
    """Return why rows of a step become dead letters."""
    match step:
        case SourceReplaySpec():
            return DeadLetterKind.NOT_ADMITTED
        case UserCodeSpec():
            return DeadLetterKind.USER_CODE
        case _:
            return DeadLetterKind.EXPRESSION


def _records(
    topic: TopicName, part: int, frame: pl.DataFrame, headers: tuple[tuple[str, bytes], ...]
) -> Iterator[OutgoingRecord]:
    """Yield the rows as one record, or as several of at most `RECORD_BYTES` and at least a row."""
    value = encode_frame(frame)
    if len(value) <= RECORD_BYTES or len(frame) == 1:
        yield OutgoingRecord(topic, part, value, headers)
        return
    half = len(frame) // 2
    yield from _records(topic, part, frame[:half], headers)
    yield from _records(topic, part, frame[half:], headers)


def split_by_partition(
    frame: pl.DataFrame, by: tuple[str, ...], partitions: int, own: int
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield (partition, rows) for every partition of the key columns `by` that gets rows.

    Without a key every row stays in partition `own`.
    """
    if frame.is_empty():
        return
    if not by or partitions == 1:
        yield (own if not by else 0), frame
        return
    if len(frame) == 1:
        yield partition_of(key_bytes(frame, by)[0], partitions), frame
        return
    groups = (
        frame.select(by).with_row_index(_ROW).group_by(by, maintain_order=True).agg(pl.col(_ROW))
    )
    targets = pl.Series(
        _PART, [partition_of(key, partitions) for key in key_bytes(groups, by)], dtype=pl.Int32
    )
    routed = frame.with_columns(
        groups.select(_ROW, targets).explode(_ROW).sort(_ROW).get_column(_PART)
    )
    for target in sorted(set(targets)):
        yield target, routed.filter(pl.col(_PART) == target).drop(_PART)
