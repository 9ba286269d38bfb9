"""Tumbling and hopping windows as keys: one row per key and window that contains a row, at the
window's end, once it has closed.

Theory. A window with end E is a moment of its key (`aggregate/moments.py`) whose reasons are the
rows it contains; it never reaches beyond itself. So a row makes the moments of the windows it lies
in, and the result at each is assembled over that window. With aggregations the client also counts
the first empty window after a filled one (its shipped tests average over such rows), so the moment
one stride later is made as well; without, only windows that contain a row are rows.
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
from fennel_core.operators.aggregate.window_times import Changes, changes, containing
from fennel_core.operators.spec import WindowsSpec
from fennel_core.wire import operators as wire


class HoppingWindowsStep(RowChangePointStep):
    """The step of `spec.WindowsSpec` over tumbling and hopping windows."""

    def __init__(self, spec: WindowsSpec) -> None:
        assert isinstance(spec.window, wire.Tumbling | wire.Hopping), (
            "sessions have a step of their own"
        )
        self._window = spec.window
        self._with_empty = bool(spec.specs)
        aggregations = [
            CountAggregator(None),
            *(make_aggregator(one, spec.input) for one in spec.specs),
        ]
        filing = Grouping(spec.input, spec.by, None, aggregations)
        tiles = Tiles(filing.layout, aggregations)
        self._count = len(aggregations)
        # The first value, the number of rows, is no column: no column is called by the empty name.
        assembler = Assembler(tiles, aggregations, range(self._count))
        results = ResultEmitter(
            assembled(assembler),
            ["", *(one.name for one in spec.specs)],
            spec.by,
            spec.output,
            spec.field,
        )
        super().__init__(filing, tiles, results, spec.window.lookback_us)

    def changes(self, ts: Ints) -> Changes:
        return changes((self._window,), ts) if self._with_empty else containing(self._window, ts)

    def reach(self, ts: Ints) -> None:  # noqa: ARG002  # the contract of RowMomentStep
        return None

    def derived(self, moment: ChangePoint) -> ResultRow:
        key, end = moment
        inside = (end - self._window.duration_us - 1, end - 1)
        return ResultRow(
            key, end, (inside,) * self._count, window=(end - self._window.duration_us, end)
        )
