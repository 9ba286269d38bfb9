"""Dead letters of admission: rejected rows as they were logged, with the dataset and the reason."""

from __future__ import annotations

import msgspec
import polars as pl
import pyarrow as pa

from fennel_core.admission.validator import DeadLetter
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.versions import POS

COLUMNS = ("dataset", "row")
"""Name of the target dataset, and the row as JSON text."""


def dead_letter_frame(
    dataset: DatasetName, letter: DeadLetter, positions: pa.Array
) -> pl.DataFrame:
    """Return the rows of a dead letter; `positions[n]` belongs to the row with number n."""
    columns = letter.payload.columns
    texts = [
        msgspec.json.encode(dict(zip(columns, values, strict=True))).decode()
        for values in zip(*columns.values(), strict=True)
    ]
    own = positions.take(pa.array(letter.payload.numbers))
    return pl.DataFrame(
        {
            COLUMNS[0]: [dataset] * len(texts),
            COLUMNS[1]: texts,
            POS: pl.Series(own, dtype=pl.Binary),
        }
    )
