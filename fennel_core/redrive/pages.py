"""Show the rows of open letters, page by page, without those of erased keys.

A row of a letter was never typed, so its key may be unreadable. Where a dataset has erased keys, a
row is shown only if its key can be typed and is not one of them; the others are hidden, with the
reason, which may quote a value. Rows of a job have the columns of its input: they are hidden if
anything was erased in the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl

from fennel_core.admission.dead_letters import COLUMNS
from fennel_core.admission.selection import not_erased
from fennel_core.blueprints.spec import SourceBinding
from fennel_core.connections.erasures import Erased, ErasedKeys
from fennel_core.ingest.catalogs import EndpointTarget, RoutingTable
from fennel_core.redrive.api_errors import LetterFilterMalformed
from fennel_core.redrive.letters import TEXT_KINDS, Letter, target_of
from fennel_core.vocab import dtypes
from fennel_core.vocab.dead_letters import INGEST
from fennel_core.vocab.ids import DatasetName, TopicPartition
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN, decode
from fennel_core.wire.errors import BadColumn
from fennel_core.wire.json_decode import decode_column

OWN: Final = (POS, SIGN, IS_TOMBSTONE)
"""Columns of a job's rows that are the platform's own."""
HIDDEN: Final = "hidden, because it may quote a row of an erased key"
"""Instead of a reason."""
_decode_row = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A row of a letter. A page begins at one."""

    at: TopicPartition
    offset: int
    row: int

    def text(self) -> str:
        """Return the place as a response names it."""
        return f"{self.at[0]}:{self.at[1]}:{self.offset}:{self.row}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place that `text` made. Raises LetterFilterMalformed."""
        topic, *numbers = text.rsplit(":", 3)
        if len(numbers) != 3 or not all(each.isdecimal() for each in numbers):
            raise LetterFilterMalformed(
                f"`after` is `{text}`, and must be the `next` of an earlier response"
            )
        part, offset, row = map(int, numbers)
        return cls((topic, part), offset, row)  # type: ignore[arg-type]  # ids are checked by use


def shown_rows(letter: Letter, table: RoutingTable, erased: Erased) -> list[Any]:
    """Return the rows of a letter as JSON values; None for one that is hidden."""
    origin, frame = letter.origin, decode(letter.value)
    if origin.writer != INGEST:
        if erased:
            return [None] * len(frame)
        rows = frame.drop([name for name in OWN if name in frame.columns]).to_dicts()
        return [msgspec.json.decode(msgspec.json.encode(row, enc_hook=str)) for row in rows]
    rows = [_decode_row(text) for text in frame.get_column(COLUMNS[1])]
    keys = erased.get(DatasetName(origin.subject), ())
    if not keys:
        return rows
    target = target_of(letter, table)
    if not isinstance(target, EndpointTarget) or origin.kind not in TEXT_KINDS:
        return [None] * len(rows)
    hidden = np.zeros(len(rows), dtype=bool)
    for each in keys:
        hidden |= _may_be_erased(target.binding, rows, each)
    return [None if hide else row for row, hide in zip(rows, hidden.tolist(), strict=True)]


def letter_rows(
    letter: Letter, first: int, count: int, table: RoutingTable, erased: Erased
) -> list[dict[str, Any]]:
    """Return at most `count` rows of a letter from number `first` on, as the API lists them."""
    rows = shown_rows(letter, table, erased)
    reason = letter.origin.reason
    if any(row is None for row in rows):
        reason = HIDDEN
    return [
        {
            "partition": letter.at[1],
            "offset": letter.offset,
            "row_number": number,
            "written_ms": letter.written_ms,
            "subject": letter.origin.subject,
            "source": letter.source or None,
            "sink": letter.origin.sink or None,
            "source_position": letter.origin.source or None,
            "kind": letter.origin.kind.value,
            "reason": reason,
            "hidden": row is None,
            "row": row,
        }
        for number, row in enumerate(rows[first : first + count], start=first)
    ]


def _may_be_erased(
    binding: SourceBinding, rows: Sequence[dict[str, Any]], erased: ErasedKeys
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row whether its key is erased, or is unknown."""
    made = {name for name, _ in binding.source.preproc}
    unknown = np.zeros(len(rows), dtype=bool)
    columns: dict[str, pl.Series] = {}
    for name in erased.columns:
        field = binding.schema.field(name)
        if field is None or name in made:
            return np.ones(len(rows), dtype=bool)
        values = [row.get(name) for row in rows]
        wanted = dtypes.Optional(dtypes.base(field.dtype))
        try:
            array = decode_column(values, wanted, name)
        except BadColumn as bad:
            for each in bad.bad:
                values[each.row] = None
            array = decode_column(values, wanted, name)
        column = pl.Series(name, array)
        unknown |= column.is_null().to_numpy()
        columns[name] = column
    frame = pl.DataFrame(columns).filter(pl.Series(~unknown))
    kept = not_erased(frame, (erased,)) if len(frame) else None
    gone = unknown.copy()
    if kept is not None:
        gone[~unknown] = ~kept.to_numpy()
    return gone
