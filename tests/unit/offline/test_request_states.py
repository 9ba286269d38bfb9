"""The life cycle of requests for training data: every cell of the table, leases and epochs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fennel_core.offline import request_row
from fennel_core.offline.request_row import (
    ALMOST,
    LOST,
    MAX_STARTS,
    RUN_LEASE,
    START_LEASE,
    OfflineRequest,
    RequestDefinition,
    RequestFailure,
    RequestResult,
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
        lambda: request_row.reported(second, first.epoch, 0.5, NOW),
        lambda: request_row.finished(second, first.epoch, RESULT, NOW),
        lambda: request_row.failed(second, first.epoch, BROKEN, NOW),
    ):
        with pytest.raises(RunSuperseded, match="another run has claimed"):
            change()
    done = request_row.finished(second, second.epoch, RESULT, NOW)
    assert (done.state, done.completion, done.result) == (RequestState.DONE, 1.0, RESULT)
    with pytest.raises(RunSuperseded, match="is done"):
        request_row.reported(done, second.epoch, 0.5, NOW)


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
    row = request_row.reported(row, 1, 0.4, NOW)
    assert request_row.reported(row, 1, 0.2, NOW).completion == 0.4
    assert request_row.reported(row, 1, 1.0, NOW).completion == ALMOST


def test_the_oldest_requests_start_first_within_the_limit_of_each_workspace() -> None:
    rows = [request("a", age_s=1), request("b", age_s=3), request("c", age_s=2)]
    rows.append(request("d", "other", age_s=0))
    assert [row.id for row in requests_to_start(rows, NOW, 2)] == ["b", "c", "d"]
    rows[1] = request_row.started(rows[1], NOW)
    assert [row.id for row in requests_to_start(rows, NOW, 2)] == ["c", "d"]
    later = NOW + START_LEASE
    assert [row.id for row in requests_to_start(rows, later, 1)] == ["b", "d"]


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
    refused = request_row.start_refused(started, 1, NOW)
    assert (refused.starts, refused.has_run(NOW)) == (0, True)
    began = request_row.claimed(started, NOW)
    assert request_row.start_refused(began, 1, NOW) == began


def test_objects_are_removed_when_no_run_can_write_and_results_later() -> None:
    week = timedelta(days=7)
    running = request_row.claimed(request(), NOW)
    assert not request_row.is_removable(running, NOW + 10 * week, week)
    dropped = request_row.cancelled(running, NOW)
    assert not request_row.is_removable(dropped, NOW, week)
    assert request_row.is_removable(dropped, NOW + RUN_LEASE, week)
    assert request_row.is_removable(request_row.cancelled(request(), NOW), NOW, week)
    done = request_row.finished(running, 1, RESULT, NOW)
    assert not request_row.is_removable(done, NOW + week / 2, week)
    assert request_row.is_removable(done, NOW + week, week)
    gone = request_row.removed(done, NOW + week)
    assert not request_row.is_removable(gone, NOW + 2 * week, week)
    assert replace(gone, removed_at=None) == done
