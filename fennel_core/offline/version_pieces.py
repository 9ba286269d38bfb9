"""The parts of history and topics that a query reads, one per task, and how much that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from fennel_core.history.parquet import TimeLimit
from fennel_core.history.topic_slices import TopicSlice, version_batches
from fennel_core.offline.query_steps import sources_of, steps_of
from fennel_core.offline.request_row import ReadEstimate
from fennel_core.operators.spec import StepSpec
from fennel_core.query.program import QueryProgram
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import JobId, Micros


class VersionPiece(Protocol):
    """A part of the versions of a dataset, read by one task; it is pickled to the task."""

    def batches(self, columns: Sequence[str], limit: TimeLimit) -> Iterator[pl.DataFrame]:
        """Yield the columns of all versions but those that are later than `limit`."""
        ...


@dataclass(frozen=True, slots=True)
class HistoryPiece:
    """A piece of a slice of a topic."""

    settings: Settings
    piece: TopicSlice

    def batches(self, columns: Sequence[str], limit: TimeLimit) -> Iterator[pl.DataFrame]:
        """See `VersionPiece.batches`."""
        return version_batches(self.settings, self.piece, columns, limit)


def pieces_to_read(
    program: QueryProgram,
    specs: Mapping[JobId, StepSpec],
    slices: Mapping[JobId, Sequence[TopicSlice]],
    latest: Micros | None,
) -> dict[JobId, tuple[TopicSlice, ...]]:
    """Return the pieces of the input of each job that may have versions at `latest` or before.

    None: at any time.
    """
    found = {}
    for step in steps_of(program, specs):
        for job, source in sources_of(step):
            # Files know the event times of their rows, and a source may count by another time.
            limit = latest if source.time == source.schema.timestamp else None
            useful = (each if limit is None else each.until(limit) for each in slices[job])
            found[job] = tuple(piece for each in useful for piece in each.pieces())
    return found


def estimate_of(pieces: Iterable[Sequence[TopicSlice]]) -> ReadEstimate:
    """Return how much there is to read, as the index of history and the offsets of topics say."""
    read = [piece for of_job in pieces for piece in of_job]
    files = [file for piece in read for file in piece.files]
    return ReadEstimate(
        versions=sum(file.row_count for file in files),
        bytes=sum(file.size_bytes for file in files),
        tail_records=sum(piece.end - piece.tail_first for piece in read),
    )
