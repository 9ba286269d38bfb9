"""No workspace takes a server from the others."""

from __future__ import annotations

import pytest

from fennel_core.connections.api_errors import WorkspaceBusy, WorkspaceTooFast
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.vocab.ids import WorkspaceId

SHOP, OTHER = WorkspaceId("shop"), WorkspaceId("other")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_workspace_has_at_most_so_many_requests_under_way() -> None:
    limits = WorkspaceLimits(2, 0.0)
    with limits.entered(SHOP), limits.entered(SHOP):
        with pytest.raises(WorkspaceBusy) as refused, limits.entered(SHOP):
            pass
        assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
        with limits.entered(OTHER):
            pass
    with pytest.raises(RuntimeError), limits.entered(SHOP):
        raise RuntimeError
    with limits.entered(SHOP), limits.entered(SHOP):
        pass


def test_a_workspace_sends_at_most_so_many_requests_per_second() -> None:
    clock = Clock()
    limits = WorkspaceLimits(100, 2.0, clock)

    def passes(workspace: WorkspaceId = SHOP) -> bool:
        try:
            with limits.entered(workspace):
                return True
        except WorkspaceTooFast:
            return False

    assert [passes() for _ in range(3)] == [True, True, False]
    assert passes(OTHER)
    clock.now += 0.5
    assert [passes() for _ in range(2)] == [True, False]
    clock.now += 3600.0
    assert [passes() for _ in range(3)] == [True, True, False], "a pause saves one second's worth"


def test_a_rate_below_one_lets_a_request_through_at_a_time() -> None:
    clock = Clock()
    limits = WorkspaceLimits(100, 0.1, clock)
    with limits.entered(SHOP):
        pass
    with pytest.raises(WorkspaceTooFast) as refused, limits.entered(SHOP):
        pass
    assert (refused.value.status, refused.value.retry_after_s) == (429, 10)
    clock.now += 10.0
    with limits.entered(SHOP):
        pass
