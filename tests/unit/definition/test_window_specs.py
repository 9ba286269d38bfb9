"""Window specs that the protocol drops are recovered in the client's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from fennel_core.definition import window_specs
from fennel_core.definition.validation import decode_commit
from fennel_core.definition.window_specs import add_window_specs, client_program_runner
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.operators import WindowOp
from tests.support.definition_world import recorded
from tests.support.executors import run_client_program
from tests.support.ledger_world import SHOP

RECEIVED = decode_commit(recorded("operators"))


async def test_recovered_window_aggregations_are_stored_and_not_requested_again() -> None:
    body = await add_window_specs(RECEIVED.body, RECEIVED.request, None, SHOP, run_client_program)
    again = decode_commit(body)
    (window,) = [
        o.kind
        for o in again.request.operators
        if o.dataset == "Sessions" and isinstance(o.kind, WindowOp)
    ]
    assert [s.name for s in window.specs] == ["orders"]
    assert await add_window_specs(body, again.request, None, SHOP, never) is body


async def never(workspace: WorkspaceId, program: str) -> str:
    raise AssertionError("nothing has to be run")


async def test_a_commit_without_windowed_groupbys_runs_nothing() -> None:
    plain = decode_commit(recorded("featuresets"))
    assert await add_window_specs(plain.body, plain.request, None, SHOP, never) is plain.body


async def test_program_output_that_does_not_match_the_request_is_refused() -> None:
    async def odd(workspace: WorkspaceId, program: str) -> str:
        return "[]"

    with pytest.raises(ApiError) as refused:
        await add_window_specs(RECEIVED.body, RECEIVED.request, None, SHOP, odd)
    assert (refused.value.status, refused.value.code) == (400, "window-aggregations")


async def test_failing_code_is_reported_with_its_error() -> None:
    with pytest.raises(ApiError, match="NameError: name 'nothing' is not defined") as refused:
        await run_client_program(SHOP, "nothing")
    assert (refused.value.status, refused.value.code) == (400, "window-aggregations")


async def test_code_over_its_time_or_memory_limit_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ApiError, match="ran out of memory"):
        await run_client_program(SHOP, "x = bytearray(5 * 1024 ** 3)")
    monkeypatch.setattr(window_specs, "TIME_LIMIT_MS", 500)
    with pytest.raises(ApiError, match=r"did not end within 0\.5 s"):
        await run_client_program(SHOP, "while True: pass")


async def test_without_executors_the_commit_can_be_sent_again(tmp_path: Path) -> None:
    run = client_program_runner(Settings(data_dir=tmp_path, run_dir=tmp_path))
    with pytest.raises(ApiError) as refused:
        await run(SHOP, "print()")
    assert (refused.value.status, refused.value.code) == (503, "executor-unavailable")
