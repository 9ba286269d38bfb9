"""The life cycle of requests for training data: every cell of the table, leases and epochs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fennel_core.offline import request_row
from fennel_core.offline.request_row import (
    AFTER_REFUSAL,
    ALMOST,
    LOST,
    MAX_CLAIMS,
    MAX_STARTS,
    RUN_LEASE,
    START_LEASE,
    NewRequest,
    OfflineRequest,
    RequestDefinition,
    RequestFailure,
    RequestResult,
    RunLimits,
    RunProgress,
    RunSuperseded,
    requests_to_start,
)
from fennel_core.offline.request_states import (
    TRANSITIONS,
    RequestEvent,
    RequestState,
    TransitionRefused,
    next_state,
)
from fennel_core.vocab.ids import BranchName, WorkspaceId

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WANTED = RequestDefinition(("F.k",), ("F.v",), "at", "default", 3, "in", 0, 2)
RESULT = RequestResult("result/1", (), (), None)
BROKEN = RequestFailure("code", "text")
HALF = RunProgress(0.5)


def request(id_: str = "q", workspace: str = "shop", age_s: int = 0) -> OfflineRequest:
    created = NOW - timedelta(seconds=age_s)
    return OfflineRequest(id_, WorkspaceId(workspace), BranchName("main"), "ann", WANTED, created)


@pytest.mark.parametrize(("state", "event"), itertools.product(RequestState, RequestEvent))
def test_what_is_not_in_the_table_is_refused(state: RequestState, event: RequestEvent) -> None:
    allowed = {
        "queued": {"claim": "running", "fail": "failed", "cancel": "cancelled"},
        "running": {
            "claim": "running",
            "finish": "done",
            "fail": "failed",
            "cancel": "cancelled",
        },
        "cancelled": {"cancel": "cancelled"},
    }
    following = allowed.get(state, {}).get(event)
    if following is None:
        assert (state, event) not in TRANSITIONS
        with pytest.raises(TransitionRefused, match=f"`{event}` .* `{state}`"):
            next_state(state, event)
    else:
        assert next_state(state, event) == following


def test_a_run_that_was_replaced_can_neither_report_nor_finish_nor_fail() -> None:
    first = request_row.claimed(request(), NOW)
    second = request_row.claimed(first, NOW)
    assert (first.epoch, second.epoch) == (1, 2)
    for change in (
        lambda: request_row.reported(second, first.epoch, HALF, NOW),
        lambda: request_row.finished(second, first.epoch, RESULT, NOW),
        lambda: request_row.failed(second, first.epoch, BROKEN, NOW),
    ):
        with pytest.raises(RunSuperseded, match="another run has claimed"):
            change()
    done = request_row.finished(second, second.epoch, RESULT, NOW)
    assert (done.state, done.completion, done.result) == (RequestState.DONE, 1.0, RESULT)
    with pytest.raises(RunSuperseded, match="is done"):
        request_row.reported(done, second.epoch, HALF, NOW)


def test_every_end_has_a_time() -> None:
    running = request_row.claimed(request(), NOW)
    assert running.ended_at is None
    for ended in (
        request_row.finished(running, 1, RESULT, NOW),
        request_row.failed(running, 1, BROKEN, NOW),
        request_row.cancelled(running, NOW),
    ):
        assert (ended.is_open, ended.ended_at) == (False, NOW)


def test_completion_never_falls_and_is_not_complete_before_the_result_counts() -> None:
    row = request_row.claimed(request(), NOW)
    row = request_row.reported(row, 1, RunProgress(0.4), NOW)
    assert request_row.reported(row, 1, RunProgress(0.2), NOW).completion == 0.4
    assert request_row.reported(row, 1, RunProgress(1.0), NOW).completion == ALMOST


def test_failed_rows_are_known_while_a_run_works_and_start_again_with_the_next() -> None:
    row = request_row.claimed(request(), NOW)
    row = request_row.reported(row, 1, RunProgress(0.4, 2), NOW)
    assert request_row.reported(row, 1, RunProgress(0.4, 1), NOW).failed_rows == 2
    assert request_row.claimed(row, NOW).failed_rows == 0


def test_the_oldest_requests_start_first_within_the_limit_of_each_workspace() -> None:
    rows = [request("a", age_s=1), request("b", age_s=3), request("c", age_s=2)]
    rows.append(request("d", "other", age_s=0))
    assert [row.id for row in requests_to_start(rows, NOW, RunLimits(2))] == ["b", "c", "d"]
    rows[1] = request_row.started(rows[1], NOW)
    assert [row.id for row in requests_to_start(rows, NOW, RunLimits(2))] == ["c", "d"]
    later = NOW + START_LEASE
    assert [row.id for row in requests_to_start(rows, later, RunLimits(1))] == ["b", "d"]


def test_all_workspaces_share_a_limit_and_those_with_fewer_runs_go_first() -> None:
    rows = [request(f"a{age}", age_s=age) for age in (9, 8, 7)]
    rows += [request(f"b{age}", "other", age) for age in (2, 1)]
    assert [row.id for row in requests_to_start(rows, NOW, RunLimits(2, 3))] == ["a9", "a8", "b2"]
    rows[0] = request_row.started(rows[0], NOW)
    assert [row.id for row in requests_to_start(rows, NOW, RunLimits(2, 2))] == ["b2"]
    rows[3] = request_row.started(rows[3], NOW)
    assert requests_to_start(rows, NOW, RunLimits(2, 2)) == ()


def test_a_request_from_a_form_has_the_run_of_the_form_from_the_beginning() -> None:
    new = NewRequest("q", WorkspaceId("shop"), BranchName("main"), "ann", WANTED, "manual__1")
    row = request_row.admitted(new, 0, 1, NOW)
    assert (row.starts, row.newest_run) == (1, "manual__1")
    assert requests_to_start([row], NOW, RunLimits(2)) == ()
    later = request_row.started(row, NOW + START_LEASE)
    assert (later.starts, later.newest_run) == (2, "offline-q-2")
    waiting = request_row.admitted(replace(new, run_name=None), 0, 1, NOW)
    assert (waiting.newest_run, requests_to_start([waiting], NOW, RunLimits(2))) == (
        None,
        (waiting,),
    )


def test_a_request_whose_runs_are_lost_fails() -> None:
    row, now = request(), NOW
    for number in range(1, MAX_STARTS + 1):
        row = request_row.started(row, now)
        assert row.starts == number
        with pytest.raises(RunSuperseded):
            request_row.started(row, now)
        now += START_LEASE
    row = request_row.started(row, now)
    assert row.state is RequestState.FAILED
    assert row.failure is not None
    assert row.failure.code == LOST


def test_a_start_that_was_refused_does_not_count_unless_the_run_began() -> None:
    started = request_row.started(request(), NOW)
    refused = request_row.start_refused(started, started, NOW)
    assert (refused.starts, refused.newest_run, refused.has_run(NOW)) == (0, None, True)
    began = request_row.claimed(started, NOW)
    assert request_row.start_refused(began, started, NOW) == began
    assert request_row.start_refused(refused, started, NOW) == refused


def test_a_run_that_ended_before_it_claimed_is_soon_followed_by_another() -> None:
    row, now = request(), NOW
    for _ in range(MAX_STARTS):
        row = request_row.released(request_row.started(row, now), now)
        assert row.has_run(now)
        now += AFTER_REFUSAL
        assert not row.has_run(now)
        assert request_row.released(row, now) == row
    assert request_row.started(row, now).state is RequestState.FAILED
    going = request_row.claimed(request_row.started(request(), NOW), NOW)
    assert request_row.released(going, NOW) == going, "it may be the run of another server"


def test_refused_starts_do_not_count_after_a_run_was_lost() -> None:
    row, now = request_row.claimed(request_row.started(request(), NOW), NOW), NOW
    for _ in range(2 * MAX_STARTS):
        now += START_LEASE
        asked = request_row.started(row, now)
        row = request_row.start_refused(asked, asked, now)
    assert (row.starts, row.is_open) == (1, True)


def test_a_request_that_is_claimed_again_and_again_fails() -> None:
    row = request_row.started(request(), NOW)
    for epoch in range(1, MAX_CLAIMS + 1):
        row = request_row.claimed(row, NOW)
        assert (row.epoch, row.is_open) == (epoch, True)
    later = NOW + RUN_LEASE
    for lost in (request_row.claimed(row, later), request_row.started(row, later)):
        assert lost.state is RequestState.FAILED
        assert lost.failure is not None
        assert (lost.failure.code, f"{MAX_CLAIMS} runs" in lost.failure.text) == (LOST, True)


def test_objects_are_removed_when_no_run_can_write_and_results_later() -> None:
    week = timedelta(days=7)
    running = request_row.claimed(request(), NOW)
    assert not request_row.is_removable(running, NOW + 10 * week, week)
    dropped = request_row.cancelled(running, NOW)
    assert not request_row.is_removable(dropped, NOW, week)
    assert request_row.is_removable(dropped, NOW + RUN_LEASE, week)
    assert request_row.is_removable(request_row.released(dropped, NOW), NOW, week)
    assert request_row.released(running, NOW) == running, "another run may work on it"
    broken = request_row.failed(running, 1, BROKEN, NOW)
    assert not request_row.is_removable(broken, NOW, week), "a task may still be writing"
    assert request_row.is_removable(broken, NOW + RUN_LEASE, week)
    assert request_row.is_removable(request_row.cancelled(request(), NOW), NOW, week)
    done = request_row.finished(running, 1, RESULT, NOW)
    assert not request_row.is_removable(done, NOW + week / 2, week)
    assert request_row.is_removable(done, NOW + week, week)
    gone = request_row.removed(done, NOW + week)
    assert not request_row.is_removable(gone, NOW + 2 * week, week)
    assert replace(gone, removed_at=None) == done


def test_a_request_is_forgotten_after_its_objects_and_a_time() -> None:
    week = timedelta(days=7)
    done = request_row.finished(request_row.claimed(request(), NOW), 1, RESULT, NOW)
    assert not request_row.is_forgettable(done, NOW + 9 * week, week), "its result is still there"
    gone = request_row.removed(done, NOW + 2 * week)
    assert not request_row.is_forgettable(gone, NOW + week - timedelta(seconds=1), week)
    assert request_row.is_forgettable(gone, NOW + week, week)
    assert not request_row.is_forgettable(request(), NOW + 9 * week, week)
