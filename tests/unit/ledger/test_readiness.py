"""When new jobs are ready to serve reads."""

from __future__ import annotations

from fennel_core.blueprints.logical import AssetKind, LogicalJob, LogicalOutput
from fennel_core.ledger.readiness import (
    BlockedByParkedJob,
    CatchingUp,
    Ready,
    caught_up,
    jobs_with_backlog,
    judge_readiness,
)
from fennel_core.ledger.store import PartitionProgress
from fennel_core.operators.spec import TableSpec
from fennel_core.vocab.ids import JobId
from tests.support.toy_commits import SCHEMA, key

A, B = JobId("a"), JobId("b")


def progress_of(
    job: JobId, number: int, status: str = "running", lag: int | None = 0, error: str | None = None
) -> PartitionProgress:
    return PartitionProgress(job, number, status, lag, error)


def test_a_commit_without_new_jobs_is_ready() -> None:
    assert judge_readiness([], frozenset(), ()) == Ready()


def test_a_partition_is_behind_until_it_runs_at_the_end_of_its_inputs() -> None:
    progress = [
        progress_of(A, 0),
        progress_of(A, 1, lag=3),
        progress_of(B, 0, "replaying", 0),
        progress_of(B, 1, "running", None),
        progress_of(B, 2, "idle", None),
    ]
    assert judge_readiness(progress, frozenset(), {A}) == CatchingUp(
        frozenset({(A, 1), (B, 0), (B, 1), (B, 2)}), required=True
    )
    assert judge_readiness(progress, frozenset({(A, 1)}), {A}) == CatchingUp(
        frozenset({(B, 0), (B, 1), (B, 2)}), required=False
    )


def test_having_caught_up_once_since_the_switch_is_enough() -> None:
    seen = caught_up([progress_of(A, 0, lag=0), progress_of(A, 1, lag=2)])
    assert seen == {(A, 0)}
    assert (
        judge_readiness([progress_of(A, 0, lag=7), progress_of(A, 1, lag=0)], seen, {A}) == Ready()
    )


PARKED = [
    progress_of(A, 0, "parked", None, "no such column"),
    progress_of(A, 1, "parked", None, "no such column"),
    progress_of(B, 0, lag=4),
]


def test_a_parked_required_job_is_reported_while_others_catch_up() -> None:
    assert judge_readiness(PARKED, frozenset(), {A, B}) == BlockedByParkedJob(
        ((A, "no such column"),), required=True
    )


def test_a_parked_optional_job_does_not_end_the_wait_for_a_required_one() -> None:
    assert judge_readiness(PARKED, frozenset(), {B}) == CatchingUp(
        frozenset({(A, 0), (A, 1), (B, 0)}), required=True
    )
    assert judge_readiness(PARKED, frozenset(), ()) == BlockedByParkedJob(
        ((A, "no such column"),), required=False
    )


def test_a_job_has_a_backlog_if_an_input_existed_before_or_another_such_job_fills_it() -> None:
    def job(name: str, *inputs: str) -> LogicalJob:
        keys = [key(AssetKind.TOPIC, i) for i in inputs]
        output = LogicalOutput(key(AssetKind.TOPIC, name), ())
        log, dead = key(AssetKind.REPLAYLOG, name), key(AssetKind.DEAD, "")
        return LogicalJob(
            key(AssetKind.JOB, name),
            tuple(keys),
            (output,),
            TableSpec(SCHEMA),
            log,
            dead,
            1,
            name,
            name,
        )

    jobs = [job("c", "b"), job("b", "a", "old"), job("y", "x"), job("d", "y", "c"), job("z", "y")]
    new = {key(AssetKind.TOPIC, name) for name in "abcdxyz"}
    assert jobs_with_backlog(jobs, new) == {key(AssetKind.JOB, name) for name in "bcd"}
    assert jobs_with_backlog(jobs, new | {key(AssetKind.TOPIC, "old")}) == frozenset()
