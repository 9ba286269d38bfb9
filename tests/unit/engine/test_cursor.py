from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.engine.kafka.cursor import (
    Cursor,
    Move,
    MoveTo,
    Pause,
    Resume,
    Stay,
    next_move,
)
from fennel_core.vocab.ids import Offset

TURN = 100


def moved(cursor: Cursor | None, *wanted: int) -> Move:
    return next_move(cursor, [Offset(offset) for offset in wanted], TURN)


@pytest.mark.parametrize(
    ("cursor", "wanted", "move"),
    [
        (None, (), Stay()),
        (None, (7, 3), MoveTo(Offset(3))),
        (Cursor(Offset(5)), (5,), Stay()),
        (Cursor(Offset(5)), (), Pause()),
        (Cursor(Offset(5), paused=True), (), Stay()),
        (Cursor(Offset(5), paused=True), (5, 9), Resume()),
        (Cursor(Offset(500)), (10,), MoveTo(Offset(10))),
        (Cursor(Offset(5)), (5, 2), Stay()),
        (Cursor(Offset(5), turn_bytes=TURN), (5,), Stay()),
        (Cursor(Offset(5), turn_bytes=TURN), (5, 2), MoveTo(Offset(2))),
        (Cursor(Offset(5), turn_bytes=TURN), (5, 2, 8), MoveTo(Offset(8))),
        (Cursor(Offset(5), at_end=True), (5, 2), MoveTo(Offset(2))),
        (Cursor(Offset(5), at_end=True), (5,), Stay()),
        (Cursor(Offset(5)), (2, 8), MoveTo(Offset(8))),
    ],
)
def test_the_cursor_moves_to_what_readers_want(
    cursor: Cursor | None, wanted: Sequence[int], move: Move
) -> None:
    assert moved(cursor, *wanted) == move


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(0, 20))
def test_every_reader_has_its_turn(wanted: list[int], position: int) -> None:
    served = set()
    cursor = Cursor(Offset(position), turn_bytes=TURN)
    for _ in range(2 * len(wanted)):
        match moved(cursor, *wanted):
            case MoveTo(offset):
                cursor = Cursor(offset, turn_bytes=TURN)
        served.add(cursor.position)
    assert served >= set(wanted)
