"""Read rows of a change data feed of Delta Lake: which row each puts, or which key it deletes.

The reader of the table (`sources/delta_changes.py`) adds columns to the rows of the table: what
kind of change each is, and the version and time of its commit (`vocab/delta_feed.py`).

    `_change_type`               becomes
    insert, update_postimage     a row
    read                         a row of the first full read, which is never late
    delete                       a tombstone at the time of the commit, never late

A dataset without keys has rows only: a change of one names nothing, so it is refused by name. The
reader stops before such a version; what is refused here was read for an earlier dataset with keys.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from fennel_core.admission.changes import DELETED_US, Changes, RefusedEvents
from fennel_core.admission.payload import Payload
from fennel_core.vocab import dtypes
from fennel_core.vocab.delta_feed import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    DELETE,
    INSERT,
    POSTIMAGE,
    READ,
)
from fennel_core.vocab.schema import Schema
from fennel_core.wire.errors import BadColumn
from fennel_core.wire.json_decode import decode_column

UNKNOWN: Final = f"the row has no `{CHANGE_TYPE}` that is known: it was not read from a Delta table"
KEYLESS: Final = (
    "the row of the table was updated or deleted, and the dataset has no keys to say which of its "
    "rows that is; give it the key fields of the table"
)
UNTIMED: Final = f"the delete does not say when it was made: no `{COMMIT_TIMESTAMP}`"


def native_changes(payload: Payload, schema: Schema) -> Changes:
    """Return the changes that rows of a feed make to a dataset; never raises."""
    kinds = np.array(payload.columns.get(CHANGE_TYPE, [None] * len(payload)), dtype=object)
    puts, reads, deletes = (np.isin(kinds, names) for names in _NAMES)
    refused: list[RefusedEvents] = []

    def refuse(reason: str, places: np.ndarray) -> None:
        if len(places):
            refused.append(RefusedEvents(reason, places))

    refuse(UNKNOWN, np.flatnonzero(~(puts | reads | deletes)))
    if not schema.keys:
        changed = deletes | (kinds == POSTIMAGE)
        refuse(KEYLESS, np.flatnonzero(changed))
        puts, deletes = puts & ~changed, np.zeros_like(deletes)
    gone = payload.take(np.flatnonzero(deletes))
    times = _times(gone)
    if times is None:
        refuse(UNTIMED, np.flatnonzero(deletes))
        gone, times = payload.take(np.zeros(0, dtype=np.int64)), []
    return Changes(
        payload.take(np.flatnonzero(puts)),
        payload.take(np.flatnonzero(reads)),
        gone.having(DELETED_US, times),
        tuple(refused),
    )


_NAMES: Final = ([INSERT, POSTIMAGE], [READ], [DELETE])


def _times(deletes: Payload) -> list[int] | None:
    """Return when deletes were made, in µs; None if they do not say so."""
    values = deletes.columns.get(COMMIT_TIMESTAMP, [None] * len(deletes))
    try:
        times = decode_column(values, dtypes.Timestamp(), COMMIT_TIMESTAMP)
    except BadColumn:
        return None
    return pl.Series(times).to_physical().to_list()
