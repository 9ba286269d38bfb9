"""When new jobs are warm."""

from __future__ import annotations

from fennel_core.ledger.decide import Catching, Stuck, Warm, caught_up, warmth
from fennel_core.ledger.store import Progress
from fennel_core.vocab.ids import JobId

A, B = JobId("a"), JobId("b")


def part(job: JobId, number: int, status: str = "running", lag: int | None = 0, error: str | None = None) -> Progress:
    return Progress(job, number, status, lag, error)


def test_no_new_job_is_warm() -> None:
    assert warmth([], frozenset()) == Warm()


def test_a_partition_is_behind_until_it_runs_at_the_end_of_its_inputs() -> None:
    progress = [part(A, 0), part(A, 1, lag=3), part(B, 0, "recovering", 0), part(B, 1, "running", None), part(B, 2, "idle", None)]
    assert warmth(progress, frozenset()) == Catching(frozenset({(A, 1), (B, 0), (B, 1), (B, 2)}))


def test_having_caught_up_once_is_enough_because_the_ends_of_the_switch_were_passed() -> None:
    seen = caught_up([part(A, 0, lag=0), part(A, 1, lag=2)])
    assert seen == {(A, 0)}
    assert warmth([part(A, 0, lag=7), part(A, 1, lag=0)], seen) == Warm()


def test_a_parked_job_is_told_with_its_error_even_while_others_are_catching_up() -> None:
    progress = [part(A, 0, "parked", None, "no such column"), part(A, 1, "parked", None, "no such column"), part(B, 0, lag=4)]
    assert warmth(progress, frozenset()) == Stuck(((A, "no such column"),))
