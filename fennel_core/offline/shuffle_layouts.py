"""The columns of the rows that an offline query shuffles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from fennel_core.offline.batch_work import result_types
from fennel_core.offline.blocks import ANSWERS_KIND, ROWS_KIND, BlockLayout
from fennel_core.offline.lookup_rounds import ANSWER_TYPES, DONE
from fennel_core.offline.query_steps import CallInRounds, Registers, ShuffleByKey, ShuffleByRow
from fennel_core.offline.rows import AT, ELEMENT, REASON, ROW, register
from fennel_core.offline.sources import LookupSource
from fennel_core.offline.timeline import KEY, ORDER, SOURCE, TIME, version_column
from fennel_core.operators.rows import frame_columns
from fennel_core.query.columns import LOGICAL_TIME, logical_type
from fennel_core.query.program import QueryProgram
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

_OF_TIMELINE: Final[Mapping[str, pl.DataType]] = {
    KEY: pl.Binary(),
    TIME: pl.Int64(),
    SOURCE: pl.Int8(),
}
_OF_VERSIONS: Final[Mapping[str, pl.DataType]] = {
    **_OF_TIMELINE,
    POS: pl.Binary(),
    SIGN: pl.Int8(),
    IS_TOMBSTONE: pl.Boolean(),
}


def shuffle_layout(
    step: ShuffleByKey | ShuffleByRow, live: Registers, types: Mapping[int, Dtype]
) -> BlockLayout:
    """Return the layout of a shuffle, behind which the registers `live` are read."""
    group = step.group
    known = dict(types)
    if isinstance(step, ShuffleByRow):
        known.update(group.outputs)  # elements of the lists, not the lists
    rows: dict[str, pl.DataType] = {ROW: pl.Int64(), AT: LOGICAL_TIME, REASON: pl.String()}
    if group.listed:
        rows[ELEMENT] = pl.Int64()
    rows.update((register(place), logical_type(known[place])) for place in sorted(live))
    if isinstance(step, ShuffleByRow):
        return BlockLayout({ROWS_KIND: rows}, (ROW, ELEMENT))
    sources = [source for _, source in group.sources]
    return BlockLayout({ROWS_KIND: {**_OF_TIMELINE, **rows}, **_versions(sources)}, ORDER)


def called_layout(step: CallInRounds, live: Registers, types: Mapping[int, Dtype]) -> BlockLayout:
    """Return the layout of batches and their answers, behind which registers `live` are read."""
    rows: dict[str, pl.DataType] = {ROW: pl.Int64(), AT: LOGICAL_TIME, REASON: pl.String()}
    rows[DONE] = pl.Boolean()
    rows.update((register(place), logical_type(types[place])) for place in sorted(live | step.read))
    return BlockLayout({ROWS_KIND: rows, ANSWERS_KIND: ANSWER_TYPES}, (ROW,))


def request_layout(source: LookupSource) -> BlockLayout:
    """Return the layout of a timeline of requests of user code and versions of one dataset."""
    return BlockLayout({ROWS_KIND: {**_OF_TIMELINE, ROW: pl.Int64()}, **_versions([source])}, ORDER)


def _versions(sources: Sequence[LookupSource]) -> dict[int, Mapping[str, pl.DataType]]:
    return {
        number: {
            **_OF_VERSIONS,
            **{
                version_column(number, name): frame_columns(source.schema)[name]
                for name in source.version_columns
            },
        }
        for number, source in enumerate(sources)
    }


def result_layout(program: QueryProgram, types: Mapping[int, Dtype]) -> BlockLayout:
    """Return the layout of finished rows, in the order of the input."""
    return BlockLayout({ROWS_KIND: result_types(program, types)}, (ROW,))
