"""Prepare rows for a transaction: type them for every dataset that their endpoint feeds.

`log` and the streaming sources prepare their rows here. They differ in what becomes of rows that do
not fit: a client that logs has all rows of its own branch accepted or none, and the rows of a
source, like those for other branches, become dead letters one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fennel_core.admission.errors import RowsRejected
from fennel_core.admission.payload import Payload
from fennel_core.admission.validator import ATTEMPTS, DeadLetter, TypedRows, Validator
from fennel_core.ingest import source_metrics
from fennel_core.ingest.batches import PreparedRequest, SourceRows, TargetRows
from fennel_core.ingest.catalogs import EndpointTarget
from fennel_core.ingest.store import CatalogVersion
from fennel_core.vocab.ids import BranchName


@dataclass(frozen=True, slots=True)
class LoggedBy:
    """A client of `branch` waits for the outcome: rows that its branch refuses reject them all."""

    branch: BranchName


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Rows that a source read: no client waits, so every row that does not fit is a dead letter."""

    rows: SourceRows


@dataclass(frozen=True, slots=True)
class Received:
    """Rows as they arrived; see `PreparedRequest` for the fields."""

    body: bytes
    payload: Payload
    round_robin: int
    origin: LoggedBy | ReadFrom


async def prepare(
    validator: Validator,
    version: CatalogVersion,
    targets: Sequence[EndpointTarget],
    received: Received,
) -> PreparedRequest:
    """Return the rows, typed for every target under the definitions of `version`.

    Raises `RowsRejected` for rows that a client's own branch refuses, and `SourceCodeFailed` where
    user code that may not be skipped could not be run.
    """
    entries: list[TargetRows] = []
    dead: list[tuple[EndpointTarget, DeadLetter]] = []
    for target in targets:
        rows, rejected = await _validated(validator, target, received)
        entries += [TargetRows(target, part) for part in rows]
        dead += [(target, part) for part in rejected]
    raw = {target.binding.raw_topic: target.partitions for target in targets}
    return PreparedRequest(
        version,
        received.body,
        len(received.payload),
        received.round_robin,
        tuple(raw.items()),
        frozenset(target.binding.topic for target in targets),
        tuple(entries),
        tuple(dead),
        received.origin.rows if isinstance(received.origin, ReadFrom) else None,
    )


async def _validated(
    validator: Validator, target: EndpointTarget, received: Received
) -> tuple[list[TypedRows], list[DeadLetter]]:
    origin, attempts = received.origin, None
    if isinstance(origin, LoggedBy):
        if origin.branch in target.branches:
            return [await _validated_or_rejected(validator, target, received.payload)], []
        attempts = ATTEMPTS
    return await validator.validate_or_dead_letter(
        target.binding, received.payload, target.erased, attempts=attempts
    )


async def _validated_or_rejected(
    validator: Validator, target: EndpointTarget, payload: Payload
) -> TypedRows:
    try:
        return await validator.validate(target.binding, payload, target.erased)
    except RowsRejected:
        source_metrics.count_rejected(target.binding, len(payload))
        raise
