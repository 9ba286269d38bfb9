"""Type the rows of letters again, for the topic that lacks them.

Theory. A replayed row is the row that ingest would have written: it has the position that it was
given when it arrived, so a version of the dataset that is computed from the raw requests later has
the same row at the same position. It is not late: it came in time, and was held back. It does not
move the watermark of its source, because it says nothing about rows that arrive now.

Rows that are refused again become letters with the new reason, in the same transaction. A letter
whose rows are all refused for the cause that it has already is left as it is. So are rows that the
source leaves out now refused: they are not in the dataset, and the next definition may take them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from fennel_core.admission.dead_letters import COLUMNS
from fennel_core.admission.payload import Payload
from fennel_core.admission.selection import not_erased
from fennel_core.admission.validator import DeadLetter, TypedRows, Validator
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.ingest.batches import dead_letter_record, typed_messages, versions_of
from fennel_core.ingest.catalogs import EndpointTarget
from fennel_core.ingest.store import ProducerRecord
from fennel_core.redrive.letters import Letter
from fennel_core.vocab.dead_letters import DeadLetterKind, SettledLetter
from fennel_core.vocab.versions import POS, decode
from fennel_core.wire.json_data import json_table

ROW: Final = COLUMNS[1]
_decode_row = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class ReplayedLetters:
    """The records of a replay, what they settle, and what became of the rows."""

    letters: int
    rows: int

    messages: tuple[ProducerRecord, ...]
    settled: tuple[SettledLetter, ...]
    accepted: int
    left_out: int
    """Outside `where`, `since`, `until` and the sample now, which stay; or of an erased key."""
    refused: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of letters in one payload; `letter_of[n]` is the letter of the row with number n."""

    payload: Payload
    positions: pa.Array
    letter_of: npt.NDArray[np.int64]


async def replay_letters(
    validator: Validator, target: EndpointTarget, letters: Sequence[Letter]
) -> ReplayedLetters:
    """Return the records that replay letters of one target and one partition.

    Raises `SourceCodeFailed` if user code could not be run.
    """
    rows, part = _rows(letters), letters[0].at[1]
    good, dead = await validator.validate_or_dead_letter(
        target.binding, rows.payload, attempts=None
    )
    out = _left_out(target, rows.payload, good, dead)
    taken = [each for each in _without_erased(good, target.erased) if len(each.numbers)]
    versions = [(part, versions_of(e, target.binding.schema, rows.positions)) for e in taken]
    accepted = sum(len(each.numbers) for each in taken)
    again = int(sum(len(each.payload) for each in dead))
    dead = [*dead, *out]
    refused = np.zeros(len(letters), dtype=np.int64)
    for letter in dead:
        np.add.at(refused, rows.letter_of[letter.payload.numbers], 1)
    fitting = np.zeros(len(letters), dtype=np.int64)
    for typed in taken:
        np.add.at(fitting, rows.letter_of[typed.numbers], 1)
    unchanged = _unchanged(letters, rows, dead, refused)
    settled = tuple(
        SettledLetter(
            letter.offset,
            letter.origin.writer,
            letter.origin.subject,
            letter.origin.kind,
            int(fits),
            letter.rows - int(fits) - int(stays),  # those of erased keys
            int(stays),
        )
        for number, (letter, fits, stays) in enumerate(zip(letters, fitting, refused, strict=True))
        if number not in unchanged
    )
    messages = [*typed_messages(target, versions)] if versions else []
    for each in dead:
        messages += _refused_again(target, letters, rows, each, unchanged, part)
    total = len(rows.letter_of)
    return ReplayedLetters(
        len(letters), total, tuple(messages), settled, accepted, total - accepted - again, again
    )


def _left_out(
    target: EndpointTarget, payload: Payload, good: Sequence[TypedRows], dead: Sequence[DeadLetter]
) -> list[DeadLetter]:
    """Return the rows that the source leaves out now, as a dead letter if there are any."""
    seen = np.zeros(len(payload), dtype=np.bool_)
    for numbers in (*(e.numbers for e in good), *(e.payload.numbers for e in dead)):
        seen[numbers] = True
    if seen.all():
        return []
    reason = (
        f"the source of `{target.binding.dataset}` leaves the row out now: by its `where`, "
        "`since`, `until` or sample"
    )
    return [DeadLetter(reason, payload.take(np.flatnonzero(~seen)), reason)]


def _without_erased(good: Sequence[TypedRows], erased: Sequence[ErasedKeys]) -> list[TypedRows]:
    """Return the rows without those of erased keys."""
    kept = []
    for each in good:
        mask = not_erased(each.frame, erased)
        if mask is not None:
            each = each.filter(mask)
        kept.append(each)
    return kept


def _rows(letters: Sequence[Letter]) -> _Rows:
    frames = [decode(letter.value) for letter in letters]
    texts = [text for frame in frames for text in frame.get_column(ROW)]
    columns: Mapping[str, Sequence[Any]] = json_table([_decode_row(text) for text in texts]).columns
    numbers = np.arange(len(texts), dtype=np.int64)
    positions = pl.concat([frame.get_column(POS) for frame in frames]).to_arrow()
    letter_of = np.repeat(np.arange(len(letters)), [len(frame) for frame in frames])
    return _Rows(Payload(columns, numbers), positions.cast(pa.large_binary()), letter_of)


def _unchanged(
    letters: Sequence[Letter],
    rows: _Rows,
    dead: Sequence[DeadLetter],
    refused: npt.NDArray[np.int64],
) -> set[int]:
    """Return the letters whose rows are all refused for the cause that the letter has already."""
    other: set[int] = set()
    for each in dead:
        for number in np.unique(rows.letter_of[each.payload.numbers]).tolist():
            if letters[number].origin.cause != each.kind:
                other.add(number)
    return {
        number
        for number, letter in enumerate(letters)
        if refused[number] == letter.rows and number not in other
    }


def _refused_again(
    target: EndpointTarget,
    letters: Sequence[Letter],
    rows: _Rows,
    dead: DeadLetter,
    unchanged: set[int],
    part: int,
) -> list[ProducerRecord]:
    """Return letters with the new reason: one for each place in a source that the old ones name.

    A letter that does not have all of the rows gets the reason without values: it must not quote
    the rows of another one.
    """
    of = rows.letter_of[dead.payload.numbers]
    by_source: dict[str, list[int]] = {}
    for place, number in enumerate(of.tolist()):
        if number not in unchanged:
            by_source.setdefault(letters[number].origin.source, []).append(place)
    return [
        dead_letter_record(
            target,
            DeadLetter(
                dead.reason if len(places) == len(of) else dead.kind,
                dead.payload.take(np.array(places)),
                dead.kind,
            ),
            rows.positions,
            part,
            DeadLetterKind.NOT_ADMITTED,
            source,
        )
        for source, places in by_source.items()
    ]
