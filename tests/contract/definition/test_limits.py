"""The definition server counts requests by workspace, until their responses are sent."""

from __future__ import annotations

import httpx
import pytest

from fennel_core.connections.workspace_limits import WorkspaceLimits


@pytest.fixture
def limits() -> WorkspaceLimits:
    """Two requests under way, and two per second of a clock that stands still."""
    return WorkspaceLimits(2, 2.0, lambda: 0.0)


async def test_a_workspace_beyond_its_rate_is_refused_with_a_time_to_retry(
    client: httpx.AsyncClient,
) -> None:
    path, other = "/api/v1/branch/list", {"Authorization": "Bearer dev-other"}
    assert [(await client.get(path)).status_code for _ in range(2)] == [200, 200]
    refused = await client.get(path)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.headers["x-fennel-error-code"] == "workspace-too-fast"
    assert (await client.get(path, headers=other)).status_code == 200
