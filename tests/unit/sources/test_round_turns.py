"""Sources of files share the workers in turn, and leave one to others."""

from __future__ import annotations

import threading

import pytest

from fennel_core.sources.round_turns import Turns, worker_turns


@pytest.mark.parametrize(("workers", "turns"), [(1, 1), (2, 1), (3, 2), (8, 7)])
def test_one_worker_is_left_where_there_are_several(workers: int, turns: int) -> None:
    own = worker_turns(workers)
    held = [own.turn(lambda: False) for _ in range(turns)]
    assert all(turn.__enter__() for turn in held)
    looks = iter([False, True])
    with own.turn(lambda: next(looks)) as given:
        assert not given
    for turn in held:
        turn.__exit__(None, None, None)
    with own.turn(lambda: False) as given:
        assert given


def test_turns_are_given_in_order() -> None:
    turns, order = Turns(1), []
    asked = [threading.Event(), threading.Event()]

    def take(name: str, asking: threading.Event) -> None:
        def stopped() -> bool:
            asking.set()
            return False

        with turns.turn(stopped):
            order.append(name)

    first, second = (
        threading.Thread(target=take, args=(name, asking))
        for name, asking in zip("ab", asked, strict=True)
    )
    with turns.turn(lambda: False):
        # A source looks whether it was stopped once it has its place in the queue.
        first.start()
        asked[0].wait(10)
        second.start()
        asked[1].wait(10)
    # Who has had a turn and asks again comes behind those who wait.
    with turns.turn(lambda: False):
        assert order == ["a", "b"]
    first.join(10)
    second.join(10)


def test_a_turn_that_fails_is_given_back() -> None:
    turns = Turns(1)
    with pytest.raises(ValueError, match="x"), turns.turn(lambda: False):
        raise ValueError("x")
    with turns.turn(lambda: False) as given:
        assert given
