"""Aggregate into a keyed dataset: emit a version of the result at every time at which it changes
(`change_points.py`, `window_times.py`).
"""

from __future__ import annotations

from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.factory import make_aggregator
from fennel_core.operators.aggregate.assemble import Assembler
from fennel_core.operators.aggregate.change_points import ChangePoint, RowChangePointStep
from fennel_core.operators.aggregate.grouping import Grouping
from fennel_core.operators.aggregate.results import ResultEmitter, ResultRow, assembled
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.aggregate.window_times import (
    RowTimes,
    change_times,
    covered,
    lookback_us,
    reach,
)
from fennel_core.operators.spec import AggregateSpec, has_validity


class EmittedAggregateStep(RowChangePointStep):
    """Runs an `AggregateSpec` that is not terminal over a keyless input."""

    def __init__(self, spec: AggregateSpec) -> None:
        assert not spec.terminal, "a terminal aggregate emits nothing"
        assert not has_validity(spec.input), "see EmittedKeyedAggregateStep"
        aggregators = [make_aggregator(one, spec.input) for one in spec.specs]
        grouping = Grouping(spec.input, spec.keys, spec.along, aggregators)
        tiles = Tiles(grouping.layout, aggregators)
        assembler = Assembler(tiles, aggregators, range(len(aggregators)))
        self._windows = [one.window for one in spec.specs]
        names = [one.name for one in spec.specs]
        results = ResultEmitter(assembled(assembler), names, spec.keys, spec.output, None)
        super().__init__(grouping, tiles, results, lookback_us(self._windows))

    def changes(self, ts: Ints) -> RowTimes:
        return change_times(self._windows, ts)

    def reach(self, ts: Ints) -> tuple[Ints, Ints]:
        return reach(self._windows, ts)

    def result_row(self, point: ChangePoint) -> ResultRow:
        ranges = tuple(covered(window, point.time) for window in self._windows)
        return ResultRow(point.key, point.time, ranges)
