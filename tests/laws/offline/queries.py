"""Queries of the offline laws: rows with a time each, and what the oracle returns for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from hypothesis import strategies as st

from fennel_core.offline.rows import AT, ROW
from fennel_core.query.columns import LOGICAL_TIME, QueryColumn, logical_type
from tests.laws.offline import naive
from tests.laws.offline.worlds import GIVEN, KEYS, SECOND, TYPES, World

FAILED = "failed"
AT_TIMES = st.sampled_from(
    [n * SECOND + d for n in (-9, 0, 1, 2, 3, 4, 11, 13, 50) for d in (0, 1)]
)
QUERIES = st.lists(
    st.tuples(
        st.fixed_dictionaries(
            {
                "F.k": st.integers(0, 2),
                "F.n": st.none() | KEYS,
                "F.ks": st.none() | st.lists(KEYS, max_size=3),
                "F.ns": st.lists(st.none() | KEYS, max_size=3),
            }
        ),
        AT_TIMES,
    ),
    min_size=3,
    max_size=12,
)
Query = tuple[dict[str, Any], int]


def given_frame(queries: Sequence[Query]) -> pl.DataFrame:
    """Return the rows of queries, numbered in order."""
    return pl.DataFrame(
        {
            ROW: pl.Series(range(len(queries)), dtype=pl.Int64),
            AT: pl.Series([at for _, at in queries], dtype=pl.Int64).cast(LOGICAL_TIME),
            **{
                name: pl.Series([row[name] for row, _ in queries], dtype=logical_type(TYPES[name]))
                for name in GIVEN
            },
        }
    )


def plain_rows(made: pl.DataFrame, outputs: Sequence[str], failed: set[int]) -> list[Any]:
    """Return the outputs of each row in order, `FAILED` where it failed."""
    columns = [QueryColumn(TYPES[name], series=made[name]).values for name in outputs]
    return [
        FAILED if number in failed else [_plain(value) for value in values]
        for number, values in zip(made[ROW].to_list(), zip(*columns, strict=True), strict=True)
    ]


def _plain(value: Any) -> Any:
    """Lists and tuples are one thing here."""
    return list(value) if isinstance(value, tuple) else value


def expected(world: World, outputs: Sequence[str], row: dict[str, Any], at: int) -> Any:
    """Return what the naive oracle has for one row."""
    try:
        return [naive.feature(world, name, row, at) for name in outputs]
    except naive.Failed:
        return FAILED
