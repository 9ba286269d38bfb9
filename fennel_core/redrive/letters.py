"""Open letters of a partition, and which of them an order is about: pure functions.

A *letter* is a message of a dead-letter topic with the rows of one reason. It is open until a later
message of its partition settles it (`vocab.dead_letters`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fennel_core.ingest.catalogs import EndpointTarget, RoutingTable
from fennel_core.vocab.dead_letters import INGEST, DeadLetterKind, DeadLetterOrigin
from fennel_core.vocab.ids import DatasetName, Millis, Offset, TopicName, TopicPartition
from fennel_core.vocab.versions import row_count


@dataclass(frozen=True, slots=True)
class Letter:
    """A message of a dead-letter topic; `value` has its rows (`admission.dead_letters`)."""

    at: TopicPartition
    offset: Offset
    written_ms: Millis
    origin: DeadLetterOrigin
    value: bytes

    @property
    def rows(self) -> int:
        return row_count(self.value)

    @property
    def source(self) -> str:
        """The webhook and endpoint, or connector and stream, of the rows; empty if not known."""
        return "" if self.origin.target is None else self.origin.target.endpoint


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters an order is about; what is None selects all.

    `dataset` is also the title of a job. `sink`: connector and place, as `hooks/rows`. `since_ms`
    and `until_ms`: when the letter was written, from the first, and before the second. `reason`: a
    part of the reason, in any case.
    """

    dataset: str | None = None
    source: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    reason: str | None = None
    sink: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == LetterFilter()

    def matches(self, letter: Letter) -> bool:
        """Return whether the order is about a letter."""
        return (
            self.dataset in (None, letter.origin.subject)
            and self.source in (None, letter.source)
            and self.sink in (None, letter.origin.sink)
            and (self.since_ms is None or letter.written_ms >= self.since_ms)
            and (self.until_ms is None or letter.written_ms < self.until_ms)
            and (self.reason is None or self.reason.casefold() in letter.origin.reason.casefold())
        )


class Obstacle(StrEnum):
    """Why a letter cannot be replayed; the text is for people."""

    JOB = (
        "a job wrote it: correct the code of the pipeline, and the commit makes a job that "
        "computes all rows again"
    )
    SINK_GONE = (
        "no branch has the sink that it is from, because the sink was removed, or its dataset has "
        "another content now, which another sink sends from its beginning"
    )
    RECOMPUTED = (
        "a version of the dataset that was computed from the stored requests wrote it; correct the "
        "definition, and the commit makes a version that computes all requests again"
    )
    CODE = "the code of its source could not be run"
    UNREADABLE = "the message of the stream is no row, whatever the definitions are"
    NO_TARGET = (
        "an earlier release wrote it without its target, so it is not known whether the dataset "
        "has its rows already; log those again that it lacks"
    )
    NOT_CURRENT = (
        "no branch has the version of the dataset that it was meant for; a newer version was "
        "computed from all requests, and has typed the row itself"
    )
    SEVERAL = "its source was replaced by several sources of the endpoint; log the rows again"


TEXT_KINDS: Final = frozenset({DeadLetterKind.NOT_ADMITTED, DeadLetterKind.UNCLASSIFIED})
"""Kinds of letters of ingest that have the rows as they arrived."""


@dataclass(frozen=True, slots=True)
class DeliveringSink:
    """The sink that sends the changes of a letter again."""

    name: TopicName


LetterTarget = EndpointTarget | DeliveringSink | Obstacle


def target_of(letter: Letter, table: RoutingTable) -> LetterTarget:
    """Return the source that types the rows of a letter again, the sink that sends its changes
    again, or why neither can be.

    Rows go back to the very topic that lacks them. Another version of the dataset was computed from
    the raw requests, so it has these rows, or a letter of its own.
    """
    origin = letter.origin
    if origin.kind is DeadLetterKind.UNREADABLE:
        return Obstacle.UNREADABLE
    if origin.kind is DeadLetterKind.NOT_DELIVERED:
        sink = TopicName(origin.writer)
        return DeliveringSink(sink) if sink in table.sinks else Obstacle.SINK_GONE
    if origin.writer != INGEST and origin.kind is DeadLetterKind.NOT_ADMITTED:
        return Obstacle.RECOMPUTED
    if origin.writer != INGEST or origin.kind not in TEXT_KINDS:
        return Obstacle.JOB
    if origin.target is None:
        return Obstacle.NO_TARGET
    targets = [
        target
        for found in (*table.targets.values(), *table.feeds.values())
        for target in found
        if target.binding.dataset == DatasetName(origin.subject)
    ]
    same = [t for t in targets if t.binding.topic == origin.target.topic]
    exact = [t for t in same if t.binding.identity == origin.target.binding]
    if exact:
        return exact[0]
    fed = [t for t in same if f"{t.binding.webhook}/{t.binding.endpoint}" == origin.target.endpoint]
    if not fed:
        return Obstacle.NOT_CURRENT
    return fed[0] if len(fed) == 1 else Obstacle.SEVERAL
