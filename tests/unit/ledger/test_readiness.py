"""When new jobs are ready to serve reads."""

from __future__ import annotations

from fennel_core.blueprints.logical import AssetKind, LogicalJob, LogicalOutput
from fennel_core.blueprints.spec import Job, Output
from fennel_core.ledger.readiness import (
    BlockedByParkedJob,
    CatchingUp,
    NextRound,
    ReadEnds,
    Ready,
    WarmingJobs,
    jobs_with_backlog,
    judge_readiness,
    with_ends,
)
from fennel_core.ledger.store import CatchUp, PartitionProgress
from fennel_core.operators.spec import TableSpec
from fennel_core.vocab.ids import JobId, Offset, PartitionIndex, TopicName, WorkspaceId
from tests.support.toy_commits import SCHEMA, key

ORDERS, TOTALS = TopicName("orders"), TopicName("totals")
A, B = JobId("a"), JobId("b")
NOTHING = CatchUp()
NEVER_BEFORE = None


def job(id_: JobId, source: TopicName, *outputs: TopicName, partitions: int = 1) -> Job:
    return Job(
        id_,
        WorkspaceId("w"),
        (source,),
        tuple(Output(topic, ()) for topic in outputs),
        TableSpec(SCHEMA),
        TopicName(f"log of {id_}"),
        TopicName("dead"),
        partitions,
        f"job {id_}",
    )


PIPELINE, TABLE = job(A, ORDERS, TOTALS), job(B, TOTALS)
CHAIN = WarmingJobs(((PIPELINE,), (TABLE,)), frozenset())
ONLY_OPTIONAL = WarmingJobs((), frozenset({A}))


def running(id_: JobId, topic: TopicName, offset: int, part: int = 0) -> PartitionProgress:
    applied = {topic: Offset(offset)}
    return PartitionProgress(id_, PartitionIndex(part), "running", None, applied)


def reported(id_: JobId, status: str, error: str | None = None) -> PartitionProgress:
    return PartitionProgress(id_, PartitionIndex(0), status, error)


def ends(
    orders: int | None = None, totals: int | None = None
) -> dict[tuple[TopicName, int], Offset]:
    wanted = {ORDERS: orders, TOTALS: totals}
    return {(topic, 0): Offset(end) for topic, end in wanted.items() if end is not None}


def test_a_commit_without_new_jobs_is_ready() -> None:
    assert judge_readiness(WarmingJobs((), frozenset()), NOTHING, []) == Ready()


def test_a_chain_is_not_ready_when_its_first_job_has_caught_up() -> None:
    progress = [running(A, ORDERS, 9), running(B, TOTALS, 0)]
    first = with_ends(NOTHING, (PIPELINE,), ends(9), [running(A, ORDERS, 0)])
    assert judge_readiness(CHAIN, first, progress) == ReadEnds(
        (TABLE,), frozenset({(TOTALS, 0)})
    ), "the topic between the jobs counts, as it is after the first job has passed"
    second = with_ends(first, (TABLE,), ends(totals=1_000_000), progress)
    assert judge_readiness(CHAIN, second, progress) == CatchingUp(
        frozenset({(B, 0)}), required=True, records=1_000_000
    )


def test_the_ends_of_a_layer_are_read_only_after_the_layer_before_has_passed() -> None:
    assert judge_readiness(CHAIN, NOTHING, []) == ReadEnds((PIPELINE,), frozenset({(ORDERS, 0)}))
    known = CatchUp(ends(9), backlog=9)
    assert judge_readiness(CHAIN, known, [running(A, ORDERS, 8)]) == CatchingUp(
        frozenset({(A, 0)}), required=True, records=1
    )


def test_a_fixed_end_is_reached_although_the_log_grows() -> None:
    progress = [running(A, ORDERS, 500), running(B, TOTALS, 70)]
    assert judge_readiness(CHAIN, CatchUp(ends(9, 7)), progress) == Ready()


def test_only_a_running_owner_counts_also_for_layers_that_have_passed() -> None:
    known = CatchUp(ends(9, 7))
    for status in ("idle", "replaying", "backfilling"):
        progress = [reported(A, status), running(B, TOTALS, 7)]
        assert judge_readiness(CHAIN, known, progress) == CatchingUp(
            frozenset({(A, 0)}), required=True, records=9
        )
    assert judge_readiness(CHAIN, known, [running(B, TOTALS, 7)]) == CatchingUp(
        frozenset({(A, 0)}), required=True, records=9
    ), "a partition without a row has no owner either"


def test_a_partition_without_input_must_run() -> None:
    jobs = WarmingJobs(((job(A, ORDERS, partitions=2),),), frozenset())
    known = CatchUp({(ORDERS, 0): Offset(0), (ORDERS, 1): Offset(0)})
    assert judge_readiness(jobs, known, [running(A, ORDERS, 0)]) == CatchingUp(
        frozenset({(A, 1)}), required=True
    )
    progress = [running(A, ORDERS, 0), running(A, ORDERS, 0, part=1)]
    assert judge_readiness(jobs, known, progress) == Ready()


def test_rounds_end_when_one_starts_without_a_backlog_or_with_one_that_does_not_halve() -> None:
    progress = [running(A, ORDERS, 9), running(B, TOTALS, 7)]

    def after(backlog: int, previous: int | None) -> object:
        return judge_readiness(CHAIN, CatchUp(ends(9, 7), backlog, previous), progress)

    assert after(16, NEVER_BEFORE) == NextRound(CatchUp(previous_backlog=16))
    assert after(7, 16) == NextRound(CatchUp(previous_backlog=7))
    assert after(8, 16) == Ready()
    assert after(0, 16) == Ready()
    assert after(0, NEVER_BEFORE) == Ready(), "nothing had to be applied"


def test_a_backlog_is_what_was_not_applied_when_the_ends_were_read() -> None:
    first = with_ends(NOTHING, (PIPELINE,), ends(9), [running(A, ORDERS, 4)])
    assert first == CatchUp(ends(9), backlog=5)
    second = with_ends(
        first, (TABLE,), ends(totals=3), [running(A, ORDERS, 9), reported(B, "idle")]
    )
    assert second == CatchUp(ends(9, 3), backlog=8), "a partition without owner applied nothing"


def test_a_parked_required_job_is_reported_while_others_catch_up() -> None:
    progress = [reported(A, "replaying"), reported(B, "parked", "no such column")]
    assert judge_readiness(CHAIN, NOTHING, progress) == BlockedByParkedJob(
        ((B, "no such column"),), required=True
    )


def test_reads_do_not_wait_for_a_parked_optional_job() -> None:
    parked = reported(A, "parked", None)
    assert judge_readiness(ONLY_OPTIONAL, NOTHING, [parked]) == BlockedByParkedJob(
        ((A, "no error was reported"),), required=False
    )
    both = WarmingJobs(((TABLE,),), frozenset({A}))
    known = CatchUp(ends(totals=7))
    assert judge_readiness(both, known, [parked, running(B, TOTALS, 6)]) == CatchingUp(
        frozenset({(B, 0)}), required=True, records=1
    ), "it does not end the wait for a required one"


def test_an_optional_job_is_ready_when_it_runs() -> None:
    assert judge_readiness(ONLY_OPTIONAL, NOTHING, [reported(A, "replaying")]) == CatchingUp(
        frozenset({(A, 0)}), required=False
    )
    assert judge_readiness(ONLY_OPTIONAL, NOTHING, [running(A, ORDERS, 0)]) == Ready()


def test_a_job_has_a_backlog_if_an_input_existed_before_or_another_such_job_fills_it() -> None:
    def logical(name: str, *inputs: str) -> LogicalJob:
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

    jobs = [
        logical("c", "b"),
        logical("b", "a", "old"),
        logical("y", "x"),
        logical("d", "y", "c"),
        logical("z", "y"),
    ]
    new = {key(AssetKind.TOPIC, name) for name in "abcdxyz"}
    assert jobs_with_backlog(jobs, new) == {key(AssetKind.JOB, name) for name in "bcd"}
    assert jobs_with_backlog(jobs, new | {key(AssetKind.TOPIC, "old")}) == frozenset()
