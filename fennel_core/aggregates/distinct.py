"""Distinct values, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fennel_core.aggregates.aggregation import AnyEvents
from fennel_core.aggregates.multiset import Multiset, MultisetAggregator
from fennel_core.aggregates.totals import to_result
from fennel_core.vocab.dtypes import Decimal, Dtype, base


class CountUniqueAggregator(MultisetAggregator):
    """The number of distinct values; null is one of them unless `dropnull`."""

    def __init__(self, of: str, *, dropnull: bool) -> None:
        self._of, self._dropnull = of, dropnull

    def prepare(self) -> tuple[str, ...]:
        return (self._of,)

    def elements(self, events: AnyEvents) -> Sequence[Any]:
        return events.column(self._of).elements()

    def finalize(self, partial: Multiset, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        return len(partial) - (self._dropnull and None in partial)


class DistinctAggregator(MultisetAggregator):
    """The distinct values in their own order (of numbers, else of bytes), null first; so the list
    does not depend on the order of arrival.
    """

    def __init__(self, of: str, dtype: Dtype, *, dropnull: bool) -> None:
        self._of, self._dtype, self._dropnull = of, dtype, dropnull

    def prepare(self) -> tuple[str, ...]:
        return (self._of,)

    def elements(self, events: AnyEvents) -> Sequence[Any]:
        return events.column(self._of).elements()

    def finalize(self, partial: Multiset, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        values = sorted(element for element in partial if element is not None)
        nulls = [None] if None in partial and not self._dropnull else []
        return [*nulls, *to_result_values(values, self._dtype)]


def to_result_values(elements: list[Any], dtype: Dtype) -> list[Any]:
    """As `to_result_value`, for elements that may be hundreds of thousands."""
    are_results = elements and not isinstance(elements[0], bytes)
    if are_results and not isinstance(base(dtype), Decimal):
        return elements
    return [to_result_value(element, dtype) for element in elements]


def to_result_value(element: Any, dtype: Dtype) -> object:
    """Return an element in the form of results; msgpack bytes are included unchanged."""
    return msgspec.Raw(element) if isinstance(element, bytes) else to_result(element, dtype)
