"""Aggregate into a keyed dataset: a version of the result at every time at which it changes
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
    Changes,
    changes,
    covered,
    lookback_us,
    reach,
)
from fennel_core.operators.spec import AggregateSpec, has_validity


class EmittedAggregateStep(RowChangePointStep):
    """The step of a `spec.AggregateSpec` that is not terminal."""

    def __init__(self, spec: AggregateSpec) -> None:
        assert not spec.terminal, "a terminal aggregate emits nothing"
        assert not has_validity(spec.input), "see EmittedFactsStep"
        aggregations = [make_aggregator(one, spec.input) for one in spec.specs]
        filing = Grouping(spec.input, spec.keys, spec.along, aggregations)
        tiles = Tiles(filing.layout, aggregations)
        assembler = Assembler(tiles, aggregations, range(len(aggregations)))
        self._windows = [one.window for one in spec.specs]
        results = ResultEmitter(
            assembled(assembler), [one.name for one in spec.specs], spec.keys, spec.output, None
        )
        super().__init__(filing, tiles, results, lookback_us(self._windows))

    def changes(self, ts: Ints) -> Changes:
        return changes(self._windows, ts)

    def reach(self, ts: Ints) -> tuple[Ints, Ints]:
        return reach(self._windows, ts)

    def derived(self, moment: ChangePoint) -> ResultRow:
        key, time = moment
        return ResultRow(key, time, tuple(covered(window, time) for window in self._windows))
