"""Admit raw requests to a dataset that came after them, with the positions that they have.

Theory. What ingest decides about a row is of two kinds. Types, preproc, `where`, bounds, sampling
and erasure are functions of the row and the definition: they are computed here by the code that
ingest runs (`validator`). Whether the row was late depends on the rows before it: it was decided
once, when the row arrived, and is stored with the request. So the rows that a dataset gets from a
request are a function of the request and the definition, whether ingest types it (the dataset
existed) or a replay does (it did not); a request that ingest has judged for the topic is skipped.

As for the branches that a request was not sent to, a row that is not admitted is dead-lettered: no
client waits for an answer. A request that lacks a required field is older than the field.

Requests with the same columns are typed together, because most of them have one row. Not so if the
source runs user code, which may use the other rows of its request, or reads change events: these
have the same columns whatever columns their rows have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fennel_core.admission.payload import Payload, parse_log_body
from fennel_core.admission.validator import DeadLetter, SourceDefinition, TypedRows, Validator
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.position import following
from fennel_core.vocab.raw_batches import RawRequest
from fennel_core.wire.connectors import Cdc, EvalCode

ROWS_TOGETHER = 10_000
"""Rows of requests that are typed together, unless one request has more."""
ANY_ROWS = 1 << 32
"""The limit of rows was checked when the request was accepted."""


@dataclass(frozen=True, slots=True)
class ReplayedRows:
    """The rows of a group of requests: `positions[n]` belongs to the row with number n."""

    good: tuple[TypedRows, ...]
    dead: tuple[DeadLetter, ...]
    positions: pa.Array


def missed_requests(requests: Sequence[RawRequest], topic: TopicName) -> list[RawRequest]:
    """Return the requests that ingest did not judge for `topic`."""
    return [request for request in requests if topic not in request.judged_for]


async def replay_requests(
    validator: Validator,
    definition: SourceDefinition,
    requests: Sequence[RawRequest],
    erased: tuple[ErasedKeys, ...],
) -> list[ReplayedRows]:
    """Return the rows of `requests`, which ingest has not judged for the dataset.

    Raises `SourceCodeFailed` if user code could not be run.
    """
    found = []
    for payload, positions in _groups(definition, requests):
        good, dead = await validator.validate_or_dead_letter(
            definition, payload, erased, attempts=None
        )
        found.append(ReplayedRows(tuple(good), tuple(dead), positions))
    return found


def _groups(
    definition: SourceDefinition, requests: Sequence[RawRequest]
) -> Iterator[tuple[Payload, pa.Array]]:
    """Yield payloads whose numbers count the rows of the group, with the rows' positions."""
    alone = runs_user_code(definition) or definition.source.cdc is Cdc.DEBEZIUM
    waiting: dict[tuple[str, ...], list[tuple[Payload, pa.Array]]] = {}
    sizes: dict[tuple[str, ...], int] = {}
    for request in requests:
        payload, positions = _rows_of(definition, request)
        if not len(payload):
            continue
        names = tuple(sorted(payload.columns))
        if names in waiting and (alone or sizes[names] + len(payload) > ROWS_TOGETHER):
            yield _together(waiting.pop(names))
        waiting.setdefault(names, []).append((payload, positions))
        sizes[names] = sum(len(each) for each, _ in waiting[names])
    for group in waiting.values():
        yield _together(group)


def runs_user_code(definition: SourceDefinition) -> bool:
    """Return whether executors are needed to type the rows of the source."""
    steps = (definition.source.where, *(step for _, step in definition.source.preproc))
    return any(isinstance(step, EvalCode) for step in steps)


def _rows_of(definition: SourceDefinition, request: RawRequest) -> tuple[Payload, pa.Array]:
    """Return the rows of a request that were in time, and their positions."""
    _, payload = parse_log_body(request.body, ANY_ROWS)
    numbers = np.arange(request.rows, dtype=np.int64)
    assert len(payload) == request.rows, "a raw request knows how many rows it has"
    late = request.late.get(definition.dataset)
    if late:
        numbers = np.setdiff1d(numbers, np.asarray(late, dtype=np.int64))
        payload = payload.take(numbers)
    return payload, following(request.position, request.rows).take(pa.array(numbers))


def _together(group: Sequence[tuple[Payload, pa.Array]]) -> tuple[Payload, pa.Array]:
    first = group[0][0]
    columns: Mapping[str, list[Any]] = {
        name: [value for payload, _ in group for value in payload.columns[name]]
        for name in first.columns
    }
    numbers: npt.NDArray[np.int64] = np.arange(sum(len(p) for p, _ in group), dtype=np.int64)
    return Payload(columns, numbers), pa.concat_arrays([positions for _, positions in group])
