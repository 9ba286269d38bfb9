"""Written by plan, a log has the same committed records at the same offsets, and the same end."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fennel_core.apps.backup.offset_plan import (
    LONGEST_WRITE,
    Abort,
    CloseFirst,
    Fill,
    OpenFirst,
    PlanStep,
    SavedRecord,
    Write,
    plan_writes,
)
from fennel_core.vocab.ids import Offset


def record(offset: int) -> SavedRecord:
    return SavedRecord(Offset(offset), None, b"row", ())


def written(steps: Iterable[PlanStep]) -> tuple[list[int], int]:
    """Return the offsets of the committed records and the end of a log that the steps make."""
    committed, end, is_open = [], 0, False
    for step in steps:
        match step:
            case Fill(count):
                assert count > 0
                committed += range(end, end + count)
                end += count
            case Write(records, in_transaction):
                committed += range(end, end + len(records))
                end += len(records) + in_transaction
            case Abort(count):
                assert count > 0, "a transaction without a record writes no end"
                end += count + 1
            case OpenFirst():
                is_open, end = True, end + 1
            case CloseFirst():
                assert is_open
                is_open, end = False, end + 1
    assert not is_open
    return committed, end


@st.composite
def logs(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """A range and its committed offsets.

    A log that begins with a record of an aborted transaction has that transaction's end later.
    """
    start = draw(st.integers(0, 4))
    end = start + draw(st.integers(0, 30))
    kept = draw(st.sets(st.integers(start, max(start, end - 1)), max_size=30))
    offsets = sorted(each for each in kept if each < end)
    if start == 0 and (offsets or [end])[0] == 1 and len(offsets) >= end - 1:
        offsets = offsets[:-1]
        if not offsets and end == 1:
            end = 2
    return start, end, offsets


@given(logs())
@example((2, 8, [2, 3, 6]))
@example((0, 4, [1, 2]))
@example((1, 3, [2]))
@example((5, 5, []))
def test_a_log_gets_its_records_at_their_offsets(log: tuple[int, int, list[int]]) -> None:
    start, end, offsets = log
    steps = list(plan_writes(Offset(start), Offset(end), map(record, offsets)))
    committed, found_end = written(steps)
    assert found_end == end
    assert [each for each in committed if each >= start] == offsets
    assert [r.offset for s in steps if isinstance(s, Write) for r in s.records] == offsets


def test_a_long_run_is_written_in_portions() -> None:
    offsets = range(3 * LONGEST_WRITE)
    steps = list(plan_writes(Offset(0), Offset(3 * LONGEST_WRITE + 1), map(record, offsets)))
    assert [len(step.records) for step in steps if isinstance(step, Write)] == [LONGEST_WRITE] * 3
    assert [step.in_transaction for step in steps if isinstance(step, Write)] == [False] * 2 + [
        True
    ]


def test_a_record_below_the_range_is_refused() -> None:
    with pytest.raises(AssertionError, match="in the range"):
        list(plan_writes(Offset(5), Offset(9), iter([record(4)])))
