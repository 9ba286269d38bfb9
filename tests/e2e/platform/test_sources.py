"""Sources are added to a dataset and removed from it while it serves, without a new version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform")]
NOW = "2026-01-01T00:00:00"
PEOPLE = "tests.e2e.platform.people_"


async def log(api: Api, endpoint: str, name: str, age: int) -> int:
    """Log a person to an endpoint; return the status."""
    data = {"name": [name], "age": [age], "at": [NOW]}
    body = {"webhook": "door", "endpoint": endpoint, "data": data}
    status, _ = await api.call("POST", "/log", body)
    return status


async def ages(api: Api, *names: str) -> list[int | None]:
    await api.good("POST", "/barrier", {"timeout_s": 60})
    body = {"keys": [{"name": name} for name in names], "fields": ["age"]}
    answer = await api.good("POST", "/dataset/Person/lookup", body)
    found: list[int | None] = answer["data"]["age"]
    return found


async def aged(api: Api, age: int) -> int:
    """Return how many people have the age, as the pipeline behind the dataset counts them."""
    body: dict[str, Any] = {"keys": [{"age": age}], "fields": []}
    answer = await api.good("POST", "/dataset/Ages/lookup", body)
    count: int = answer["data"]["people"][0]
    return count


async def test_a_dataset_keeps_its_rows_when_its_sources_change(
    make: Callable[[], Awaitable[Api]],
) -> None:
    api = await make()
    await api.commit(f"{PEOPLE}one", **INLINE)
    assert await log(api, "people", "Ada", 36) == 200
    assert await log(api, "guests", "Bob", 36) == 404, "the endpoint is not a source yet"
    assert await ages(api, "Ada", "Bob") == [36, None]

    added = await api.commit(f"{PEOPLE}two_sources", **INLINE)
    assert "source `door/guests` is added" in str(added)
    assert [e for e in added["plan"]["entries"] if e.get("rows_to_recompute")] == []
    assert await ages(api, "Ada") == [36]
    assert await log(api, "people", "Eve", 36) == 200
    assert await log(api, "guests", "Bob", 36) == 200
    assert await ages(api, "Ada", "Bob", "Eve") == [36, 36, 36]
    assert await aged(api, 36) == 3

    removed = await api.commit(f"{PEOPLE}guests", **INLINE)
    assert "source `door/people` is removed" in str(removed)
    assert await log(api, "people", "Cyd", 36) == 404
    assert await log(api, "guests", "Dan", 36) == 200
    assert await ages(api, "Ada", "Bob", "Cyd", "Dan", "Eve") == [36, 36, None, 36, 36]
    assert await aged(api, 36) == 4
