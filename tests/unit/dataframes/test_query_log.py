"""Which logged queries a read selects, and in which columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
import pytest

from fennel_core.dataframes.log_source import LogSelection
from fennel_core.dataframes.query_log import (
    OWN_COLUMNS,
    parse_log_options,
    rows_as,
)
from fennel_core.history.errors import ReadFailed
from fennel_core.vocab import query_log_blocks
from fennel_core.vocab.ids import DatasetName, Micros
from fennel_core.vocab.query_log_blocks import LogBlock
from fennel_core.vocab.versions import decode

NOW = datetime(2026, 5, 1, tzinfo=UTC)
NOON = datetime(2026, 4, 1, 12, tzinfo=UTC)
ERASED = query_log_blocks.subject(DatasetName("Users"), ("uid",), b"2")


def block(hours: list[int], *, workflow: str = "fraud", branch: str = "main") -> LogBlock:
    """Rows of queries at these hours after noon; the one of hour 2 has an erasable key."""
    frame = pl.DataFrame(
        {
            "request_id": [f"r{hour}" for hour in hours],
            "row": [0] * len(hours),
            "timestamp": [NOON + timedelta(hours=hour) for hour in hours],
            "__row_subjects": [[ERASED] if hour == 2 else [] for hour in hours],
            "__request_subjects": [[] for _ in hours],
        },
        schema=query_log_blocks.ROW_COLUMNS,
    ).with_columns(pl.Series("F.hour", hours, dtype=pl.Int64))
    return query_log_blocks.block_of(
        frame, workflow=workflow, branch=branch, commit="c1", sampling_rate=0.25
    )


def us(hour: float) -> Micros:
    return Micros(int((NOON + timedelta(hours=hour)).timestamp()) * 1_000_000)


def selected(blocks: list[LogBlock], selection: LogSelection, *erased: bytes) -> list[int]:
    """Return the hours that a read of these blocks returns."""
    schema = pa.schema([*OWN_COLUMNS, pa.field("F.hour", pa.int64())])
    frame = decode(query_log_blocks.encode(blocks)).filter(selection.of_blocks())
    return [
        row["F.hour"]
        for each in query_log_blocks.blocks_of(frame)
        for row in rows_as(schema, each, selection, frozenset(erased)).to_pylist()
    ]


BLOCKS = [block([0, 1, 2]), block([3]), block([4], workflow="ads"), block([5], branch="b")]


@pytest.mark.parametrize(
    ("selection", "hours"),
    [
        (LogSelection("fraud", "main", None, None, ()), [0, 1, 2, 3]),
        (LogSelection("", "main", None, None, ()), [0, 1, 2, 3, 4]),
        (LogSelection("fraud", "b", None, None, ()), [5]),
        (LogSelection("fraud", "main", us(1), us(3), ()), [1, 2]),
        (LogSelection("fraud", "main", us(2.5), None, ()), [3]),
        (LogSelection("fraud", "main", None, us(0), ()), []),
        (LogSelection("other", "main", None, None, ()), []),
    ],
)
def test_rows_are_selected_by_workflow_branch_and_time(
    selection: LogSelection, hours: list[int]
) -> None:
    assert selected(BLOCKS, selection) == hours


def test_rows_of_erased_keys_are_never_selected() -> None:
    assert selected(BLOCKS, LogSelection("", "main", None, None, ()), ERASED) == [0, 1, 3, 4]


def test_columns_that_a_query_did_not_have_are_null() -> None:
    schema = pa.schema([*OWN_COLUMNS, ("F.hour", pa.int64()), ("F.new", pa.list_(pa.string()))])
    [row] = rows_as(
        schema, block([1]), LogSelection("", "main", None, None, ()), frozenset()
    ).to_pylist()
    assert row == {
        "workflow": "fraud",
        "branch": "main",
        "commit": "c1",
        "request_id": "r1",
        "row": 0,
        "timestamp": NOON + timedelta(hours=1),
        "sampling_rate": 0.25,
        "F.hour": 1,
        "F.new": None,
    }


@pytest.mark.parametrize(
    ("first", "last", "overlaps"),
    [(us(0), us(1), False), (us(0), us(2), True), (us(3), us(9), True), (us(4), us(9), False)],
)
def test_files_out_of_the_time_are_not_opened(
    first: Micros, last: Micros, *, overlaps: bool
) -> None:
    assert LogSelection("", "main", us(2), us(4), ()).may_overlap(first, last) is overlaps


def test_options_are_parsed() -> None:
    options = {
        "query_log": "fraud",
        "token": "t",
        "from": "2026-04-01T12:00:00",
        "features": "A.b, A.c",
    }
    found = parse_log_options(options, NOW)
    assert found.selection == LogSelection("fraud", "main", us(0), None, ("A.b", "A.c"))
    assert (found.workspace, found.token) == (None, "t")
    assert parse_log_options({"query_log": "*", "workspace": "w"}, NOW).selection.workflow == ""


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"query_log": "x", "token": "t", "as_of": "2026-01-01"}, "[read-option]"),
        ({"query_log": "x"}, "[read-option]"),
        ({"query_log": "x", "url": "http://f:1"}, "[read-option]"),
        ({"query_log": "x", "url": "http://f:1", "token": "t", "workspace": "w"}, "[read-option]"),
        ({"query_log": "x", "token": "t", "until": "tomorrow"}, "[read-until]"),
    ],
)
def test_options_without_effect_or_meaning_are_refused(options: dict[str, str], code: str) -> None:
    with pytest.raises(ReadFailed, match=code.replace("[", r"\[")):
        parse_log_options(options, NOW)
