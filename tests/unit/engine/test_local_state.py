"""Which local states a slot deletes."""

from pathlib import Path

import pytest

from fennel_core.bank.registry import RegisteredJob
from fennel_core.connections.garbage import DeletionLimit, DeletionRefused
from fennel_core.engine.local_state import LocalStateGarbage
from fennel_core.vocab.ids import JobId, Millis

A, B = JobId("a"), JobId("b")
GRACE_MS = Millis(1000)


def garbage(limit: DeletionLimit | None = None) -> LocalStateGarbage:
    return LocalStateGarbage(GRACE_MS, limit or DeletionLimit(20, 20))


def job(name: JobId, desired: str = "run") -> RegisteredJob:
    return RegisteredJob(name, desired, {})


def test_the_state_of_a_removed_job_is_deleted_as_soon_as_the_job_is_gone() -> None:
    selected = garbage()
    assert selected.to_delete({A, B}, [job(A, "remove"), job(B)], 0, 0) == []
    assert selected.to_delete({A, B}, [job(B)], 1, 1) == [A]


def test_the_state_of_an_unknown_job_is_deleted_after_the_grace_period() -> None:
    selected = garbage()
    assert selected.to_delete({A, B}, [job(B)], 0, 5) == []
    assert selected.to_delete({A, B}, [job(B)], 1005, 1006) == []
    assert selected.to_delete({A, B}, [job(B)], 1006, 1007) == [A]


def test_a_job_that_returns_starts_its_grace_period_again() -> None:
    selected = garbage()
    selected.to_delete({A}, [], 0, 0)
    selected.to_delete({A}, [job(A)], 900, 900)
    assert selected.to_delete({A}, [], 1800, 1800) == []
    assert selected.to_delete({A}, [], 2801, 2801) == [A]


def test_a_slow_read_of_the_registry_does_not_count_as_absence() -> None:
    selected = garbage()
    assert selected.to_delete({A}, [], 0, 5000) == []
    assert selected.to_delete({A}, [], 5500, 99_000) == []


def test_an_empty_registry_deletes_nothing_beyond_the_limit() -> None:
    stored = {JobId(str(number)) for number in range(21)}
    selected = garbage()
    selected.to_delete(stored, [], 0, 0)
    with pytest.raises(DeletionRefused, match="21 of 21 items of kind `local-state`"):
        selected.to_delete(stored, [], 2000, 2000)


def test_superseded_state_is_deleted_after_the_grace_period_a_few_at_a_time() -> None:
    states = [Path(name) for name in "abc"]
    selected = garbage(DeletionLimit(2, 20))
    assert selected.superseded_to_delete(states, 0) == []
    assert selected.superseded_to_delete(states, 1000) == []
    assert selected.superseded_to_delete(states, 1001) == states[:2]
    assert selected.superseded_to_delete(states[2:], 1002) == states[2:]


def test_superseded_state_that_comes_back_starts_its_grace_period_again() -> None:
    selected = garbage()
    selected.superseded_to_delete([Path("a")], 0)
    selected.superseded_to_delete([], 900)
    assert selected.superseded_to_delete([Path("a")], 1500) == []
    assert selected.superseded_to_delete([Path("a")], 2501) == [Path("a")]
