"""The plan of a commit as data: what happens to each asset, why, and what it costs in rows.

A `PlanRecord` is stored with the commit, returned by the API as JSON, rendered as text
(`plan_text.py`) and shown on the commit's page. It is a description: the ledgers execute the plan
itself (`commit_plan.py`), and nothing is ever read back from the text.

Amounts count Kafka messages, because that is what the offsets of a topic say; a message holds the
rows of one request or of one iteration. `RowAmount(None)` is an amount that could not be measured,
and no amount at all (`None`) means that the question does not arise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from fennel_core.blueprints.logical import AssetKind
from fennel_core.vocab.ids import AssetId

FORMAT: Final = 1
"""Format of a stored record. Raise it when a field changes its meaning."""


class PlanAction(StrEnum):
    """What a commit does to one asset."""

    CREATE = "create"
    """Nothing has this content yet."""
    ADOPT = "adopt"
    """Another branch has it; this one will share it."""
    KEEP = "keep"
    """The branch has it already."""
    REVIVE = "revive"
    """It was retained with its rows and its state, and is used again."""
    RELEASE = "release"
    """The branch stops using it; another branch or commit still does."""
    RETAIN = "retain"
    """Nothing uses it any more; it is deleted after a grace period unless it is revived."""
    DESTROY = "destroy"
    """Nothing uses it any more, so it is deleted with its rows."""


@dataclass(frozen=True, slots=True)
class RowAmount:
    """An amount of rows, as messages in Kafka. None: it could not be measured."""

    messages: int | None


@dataclass(frozen=True, slots=True)
class DeadLetterForecast:
    """How many rows of earlier requests a source replay will dead-letter, as far as they were read.

    `rows_dead` of `rows_read` rows do not fit the new version; these are the rows of
    `messages_read` of the messages in `rows_to_recompute`, spread over those that Kafka still has.
    `reason`: the most frequent one, without values of rows. `unchecked`: why no row was
    checked; None if rows were. `only_in_history`: messages that Kafka has no more, which the replay
    reads and of which no row was checked.
    """

    messages_read: int
    rows_read: int
    rows_dead: int
    reason: str | None = None
    unchecked: str | None = None
    only_in_history: int = 0


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One asset in the plan.

    `title` names the asset for people, `entity` is the dataset or endpoint that it belongs to, and
    empty for what belongs to the whole workspace. `reason` says why the action is necessary.
    `rows_lost`: rows that no other asset holds and that disappear with this one.
    `rows_to_recompute`: existing rows that a new job has to read.
    `requests_of`: the endpoint from whose requests a new source replay recomputes its dataset.
    `dead_letters`: how many of their rows it will not admit, if that was looked at.
    `retained_ms`: how long a retained asset can be revived; None: until its loss is confirmed.
    """

    action: PlanAction
    kind: AssetKind
    asset: AssetId
    title: str
    entity: str
    reason: str
    rows_lost: RowAmount | None = None
    rows_to_recompute: RowAmount | None = None
    retained_ms: int | None = None
    requests_of: str | None = None
    dead_letters: DeadLetterForecast | None = None

    @property
    def loses_rows(self) -> bool:
        """True unless it is certain that no row disappears with the asset."""
        return self.rows_lost is not None and self.rows_lost.messages != 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that was accepted but that its author should know; `text` is one sentence.

    `code` is stable, `entity` is the full name of the definition.
    """

    code: str
    entity: str
    text: str


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan as it is stored with its commit: assets of the new version first."""

    entries: tuple[PlanEntry, ...]
    notices: tuple[Notice, ...] = ()
    format: int = FORMAT


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(PlanRecord).decode


def encode_record(record: PlanRecord) -> bytes:
    """Return the record as JSON."""
    return _encode(record)


def decode_record(stored: bytes) -> PlanRecord:
    """Return the record that `encode_record` wrote. Raises msgspec.DecodeError."""
    return _decode(stored)
