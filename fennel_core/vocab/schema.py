"""The schema of a dataset: key fields, value fields and one timestamp field.

Column order is fixed: keys, then values, then the timestamp. Every batch, topic and state row of a
dataset uses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from fennel_core.vocab.dtypes import Field, Timestamp, arrow_type


@dataclass(frozen=True, slots=True)
class Schema:
    """Fields of a dataset; `timestamp` names its timestamp field."""

    keys: tuple[Field, ...]
    values: tuple[Field, ...]
    timestamp: str

    @property
    def keyed(self) -> bool:
        """True if the dataset has key fields."""
        return bool(self.keys)

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.keys)

    @property
    def value_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.values)

    @property
    def fields(self) -> tuple[Field, ...]:
        """All fields in the order of columns: keys, values, timestamp."""
        return (*self.keys, *self.values, Field(self.timestamp, Timestamp()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    def field(self, name: str) -> Field | None:
        """Return the field called `name`, None if there is none."""
        return next((f for f in self.fields if f.name == name), None)

    def arrow(self) -> pa.Schema:
        """Return the Arrow schema of a batch of rows."""
        return pa.schema([(f.name, arrow_type(f.dtype)) for f in self.fields])
