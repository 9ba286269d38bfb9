"""Runners of tests that call user code with each row alone by the path of any call."""

from __future__ import annotations

from abc import ABC, abstractmethod

import polars as pl
import pyarrow as pa

from fennel_core.executors.calls import MOST_EACH_ROWS, ExtractCall
from fennel_core.executors.errors import CallFailed
from fennel_core.offline.code_lookups import CallLookups


class EachRow(ABC):
    """Adds `failing_rows` to a runner of extractors."""

    @abstractmethod
    def run(self, call: ExtractCall, rows: pa.Table, lookups: CallLookups | None) -> pl.DataFrame:
        """See `ExtractorRunner.run`."""

    def failing_rows(self, call: ExtractCall, rows: pa.Table) -> list[tuple[int, CallFailed]]:
        assert len(rows) <= MOST_EACH_ROWS
        found: list[tuple[int, CallFailed]] = []
        for number in range(len(rows)):
            try:
                self.run(call, rows.slice(number, 1), None)
            except CallFailed as failed:
                found.append((number, failed))
        return found
