"""The columns of a table of changes: those of a dataset, and what each change is.

_op                  string     `c`, `u` or `d`: a row is added, replaced or deleted
_ts, _position       timestamp, string   the version that the change is about: event time, order
_withdrawn_ts, _withdrawn_position       the version that is not valid any more, else null
_retraction          boolean    nothing replaces the withdrawn version
_partition, _offset  long       the message of the platform that has the change
_event               long       the number of the change since the sink began: the order of all
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from fennel_core.vocab.dtypes import Timestamp, arrow_type
from fennel_core.vocab.schema import Schema

MESSAGE_PART: Final = "_partition"
MESSAGE_OFFSET: Final = "_offset"
EVENT: Final = "_event"
_TIME: Final = arrow_type(Timestamp())
COORDINATES: Final = (
    pa.field("_op", pa.large_string()),
    pa.field("_ts", _TIME),
    pa.field("_position", pa.large_string()),
    pa.field("_withdrawn_ts", _TIME),
    pa.field("_withdrawn_position", pa.large_string()),
    pa.field("_retraction", pa.bool_()),
    pa.field(MESSAGE_PART, pa.int64()),
    pa.field(MESSAGE_OFFSET, pa.int64()),
    pa.field(EVENT, pa.int64()),
)
"""The columns behind those of the dataset."""


def change_columns(schema: Schema) -> pa.Schema:
    """Return the columns of the changes of a dataset: all may be null."""
    return pa.schema([*schema.arrow(), *COORDINATES])
