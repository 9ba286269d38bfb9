"""Why rows are refused: the errors of admission, and which rows of a payload they are about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fennel_core.admission.errors import RowsRejected
from fennel_core.admission.payload import Payload
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.schema import Schema
from fennel_core.wire.errors import (
    BadColumn,
    ForbiddenValues,
    MissingColumn,
    RejectedRows,
    WireError,
)
from fennel_core.wire.json_decode import NULL_TEXT


def split_refused(payload: Payload, refused: RowsRejected) -> tuple[Payload, Payload] | None:
    """Return (bad, good) when the bad rows are known, else two halves; None if not divisible."""
    places = np.arange(len(payload))
    if refused.numbers is not None:
        bad = np.isin(payload.numbers, refused.numbers)
        return (
            None
            if bad.all() or not bad.any()
            else (payload.take(places[bad]), payload.take(places[~bad]))
        )
    middle = len(payload) // 2
    return None if middle == 0 else (payload.take(places[:middle]), payload.take(places[middle:]))


def bad_places(rejected: RejectedRows, payload: Payload) -> list[int]:
    """Return the indexes of the rejected rows: all of them when a column is missing."""
    places: list[int] = []
    for cause in rejected.causes:
        if not isinstance(cause, BadColumn):
            return list(range(len(payload)))
        places += [b.row for b in cause.bad]
    return places


def cause_kind(cause: WireError, schema: Schema) -> str:
    """Return what is wrong with a column, without the values and rows that the text may name."""
    if not isinstance(cause, BadColumn):
        assert isinstance(cause, MissingColumn), "a column is missing or has bad values"
        return str(cause)
    declared = schema.field(cause.column)
    assert declared is not None, "columns that are not declared are ignored"
    return bad_kind(cause, declared.dtype)


def bad_kind(bad: BadColumn, dtype: Dtype) -> str:
    if isinstance(bad, ForbiddenValues):
        what = "values that its type forbids"
    elif all(each.reason == NULL_TEXT for each in bad.bad):
        what = "nulls"
    else:
        what = "values that are not of its type"
    return f"field `{bad.column}` of type `{dtypes.show(dtype)}` has {what}"


def refusal(
    dataset: DatasetName,
    payload: Payload,
    text: str,
    places: Sequence[int] | None = None,
    *,
    kind: str,
) -> RowsRejected:
    where = f"Schema validation failed during data insertion to `{dataset}`: {text}"
    return RowsRejected(where, None if places is None else payload.numbers[list(places)], kind)


def preproc_refusal(dataset: DatasetName, payload: Payload, text: str) -> RowsRejected:
    """Return the refusal of every row: a column is missing that the source's code reads."""
    whole = f"Error using pre_proc for dataset `{dataset}`: {text}"
    return refusal(dataset, payload, whole, range(len(payload)), kind=whole)
