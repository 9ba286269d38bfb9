"""Aggregate into a keyed dataset: a version of the result at every time at which it changes
(`moments.py`, `timeline.py`).
"""

from __future__ import annotations

from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.make import make
from fennel_core.operators.aggregate.assemble import Assembler
from fennel_core.operators.aggregate.filing import Filing
from fennel_core.operators.aggregate.moments import Moment, RowMomentStep
from fennel_core.operators.aggregate.results import Derived, Results, assembled
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.aggregate.timeline import Changes, changes, covered, lookback_us, reach
from fennel_core.operators.spec import AggregateSpec, has_validity


class EmittedAggregateStep(RowMomentStep):
    """The step of a `spec.AggregateSpec` that is not terminal."""

    def __init__(self, spec: AggregateSpec) -> None:
        assert not spec.terminal, "a terminal aggregate emits nothing"
        assert not has_validity(spec.input), "see EmittedFactsStep"
        aggregations = [make(one, spec.input) for one in spec.specs]
        filing = Filing(spec.input, spec.keys, spec.along, aggregations)
        tiles = Tiles(filing.layout, aggregations)
        assembler = Assembler(tiles, aggregations, range(len(aggregations)))
        self._windows = [one.window for one in spec.specs]
        results = Results(
            assembled(assembler), [one.name for one in spec.specs], spec.keys, spec.output, None
        )
        super().__init__(filing, tiles, results, lookback_us(self._windows))

    def changes(self, ts: Ints) -> Changes:
        return changes(self._windows, ts)

    def reach(self, ts: Ints) -> tuple[Ints, Ints]:
        return reach(self._windows, ts)

    def derived(self, moment: Moment) -> Derived:
        key, time = moment
        return Derived(key, time, tuple(covered(window, time) for window in self._windows))
