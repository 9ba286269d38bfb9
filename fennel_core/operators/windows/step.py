"""Tumbling and hopping windows as keys: one row per key and window that contains a row, at the
window's end, once it has closed.

Theory. The end of a window is a change point of its key (`aggregate/change_points.py`), to which
the rows inside the window contribute; a window never reaches beyond itself. So a row makes the
change points of the windows it lies in, and the result at each is assembled over that window. With
aggregations the client also counts the first empty window after a filled one (its shipped tests
average over such rows), so the change point one stride later is made as well. Without aggregations
only windows that contain a row have a row.
"""

from __future__ import annotations

from fennel_core.aggregates.count import CountAggregator
from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.factory import make_aggregator
from fennel_core.operators.aggregate.assemble import Assembler
from fennel_core.operators.aggregate.change_points import ChangePoint, RowChangePointStep
from fennel_core.operators.aggregate.grouping import Grouping
from fennel_core.operators.aggregate.results import ResultEmitter, ResultRow, assembled
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.aggregate.window_times import RowTimes, change_times, containing
from fennel_core.operators.spec import WindowsSpec
from fennel_core.wire import operators as wire


class HoppingWindowsStep(RowChangePointStep):
    """Runs a `WindowsSpec` over tumbling or hopping windows."""

    def __init__(self, spec: WindowsSpec) -> None:
        assert isinstance(spec.window, wire.Tumbling | wire.Hopping), "see SessionWindowsStep"
        self._window = spec.window
        self._with_empty = bool(spec.specs)
        aggregators = [
            CountAggregator(None),
            *(make_aggregator(one, spec.input) for one in spec.specs),
        ]
        grouping = Grouping(spec.input, spec.by, None, aggregators)
        tiles = Tiles(grouping.layout, aggregators)
        self._value_count = len(aggregators)
        # The first value, the number of rows, is not a column: no column has the empty name.
        names = ["", *(one.name for one in spec.specs)]
        assembler = Assembler(tiles, aggregators, range(self._value_count))
        results = ResultEmitter(assembled(assembler), names, spec.by, spec.output, spec.field)
        super().__init__(grouping, tiles, results, spec.window.lookback_us)

    def changes(self, ts: Ints) -> RowTimes:
        if self._with_empty:
            return change_times((self._window,), ts)
        return containing(self._window, ts)

    def reach(self, ts: Ints) -> None:  # noqa: ARG002  # the contract of RowChangePointStep
        return None

    def result_row(self, point: ChangePoint) -> ResultRow:
        begin, end = point.time - self._window.duration_us, point.time
        ranges = ((begin - 1, end - 1),) * self._value_count
        return ResultRow(point.key, end, ranges, window=(begin, end))
