"""Window specs that the protocol drops are recovered in the client's environment."""

from __future__ import annotations

import pytest

from fennel_core.definition import window_specs
from fennel_core.definition.validation import decode_commit
from fennel_core.definition.window_specs import add_window_specs, client_program_runner
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.wire.operators import WindowOp
from tests.support.definition_world import recorded

RECEIVED = decode_commit(recorded("operators"))


async def test_recovered_window_aggregations_are_stored_and_not_requested_again() -> None:
    body = await add_window_specs(
        RECEIVED.body, RECEIVED.request, None, client_program_runner(Settings())
    )
    again = decode_commit(body)
    (window,) = [
        o.kind
        for o in again.request.operators
        if o.dataset == "Sessions" and isinstance(o.kind, WindowOp)
    ]
    assert [s.name for s in window.specs] == ["orders"]
    assert await add_window_specs(body, again.request, None, never) is body


async def never(program: str) -> str:
    raise AssertionError("nothing has to be run")


async def test_a_commit_without_windowed_groupbys_runs_nothing() -> None:
    plain = decode_commit(recorded("featuresets"))
    assert await add_window_specs(plain.body, plain.request, None, never) is plain.body


async def test_program_output_that_does_not_match_the_request_is_refused() -> None:
    async def odd(program: str) -> str:
        return "[]"

    with pytest.raises(ApiError) as refused:
        await add_window_specs(RECEIVED.body, RECEIVED.request, None, odd)
    assert (refused.value.status, refused.value.code) == (400, "window-aggregations")


async def test_failing_code_is_reported_with_its_error_and_sees_no_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FENNEL_ADMIN_TOKEN", "hush")
    run = client_program_runner(Settings())
    assert (
        await run("import os; print([n for n in os.environ if n.startswith('FENNEL')])")
    ).strip() == "[]"
    with pytest.raises(ApiError, match="NameError: name 'nothing' is not defined"):
        await run("nothing")


async def test_code_over_its_time_or_memory_limit_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = client_program_runner(Settings(executor_memory_limit_bytes=1))
    with pytest.raises(ApiError, match="MemoryError"):
        await run("x = bytearray(5 * 1024 ** 3)")
    monkeypatch.setattr(window_specs, "TIME_LIMIT_SECONDS", 0.5)
    with pytest.raises(ApiError, match=r"did not end within 0\.5 s"):
        await run("while True: pass")
