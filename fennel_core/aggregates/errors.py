"""Failures of aggregations."""

from __future__ import annotations

from typing import ClassVar


class AggregateError(Exception):
    """Root of the failures of this package. `code` is stable."""

    code: ClassVar[str] = "aggregate"


class AggregatedColumnMissing(AggregateError):
    """An aggregation names a column that its input does not have.

    Raised when the aggregator is made. Validation of a commit rejects such a definition, so the
    definition was stored by other means; commit it again.
    """

    code: ClassVar[str] = "aggregated-column-missing"
