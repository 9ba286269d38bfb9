"""Limited sources of each kind are read in steps, and at once when the limit is ended.

`make connectors` runs this.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fennel_core.apps.local import status_requests
from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.orders import orders
from tests.support.polling import eventually
from tests.support.user_systems import BUCKET, CONNECTORS, UserSystems
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(1200)]
NOW = "2026-01-01T00:00:00Z"
ROWS = 40
ROWS_PER_S = 2.0
STEPS = 4
"""A step has two seconds' rows, so there are ten; a test that looks seldom sees fewer."""
DEFINITIONS = orders(
    "S3, Kafka, Postgres, source",
    CONNECTORS
    + """
folder = files.bucket("{bucket}", path="{name}/*.json", format="json")
given = {{"disorder": "14d", "cdc": "append"}}""",
    """\
@source(kafka.topic("{name}"), **given)
@source(postgres.table("orders", cursor="id"), every="1s", **given)
@source(folder, every="1s", **given)""",
)


@pytest.fixture
def systems(settings: Settings) -> Iterator[UserSystems]:
    made = UserSystems(settings)
    made.execute("CREATE TABLE orders (id bigserial, city text, amount int, at timestamptz)")
    yield made
    made.close()


def sell(systems: UserSystems, first: int) -> None:
    """Put orders into each place."""
    rows = [{"city": "Paris", "amount": 1, "at": NOW} for _ in range(ROWS)]
    systems.send([json.dumps(row).encode() for row in rows])
    for number, row in enumerate(rows, first):
        systems.execute(
            "INSERT INTO orders (city, amount, at) VALUES (%(city)s, %(amount)s, %(at)s)", row
        )
        systems.put(f"{number}.json", json.dumps(row).encode())


async def listed(api: Api) -> dict[str, dict[str, Any]]:
    return {each["source"]: each for each in (await api.good("GET", "/sources"))["sources"]}


async def test_limited_sources_are_read_in_steps_until_the_limit_is_ended(
    make: Callable[[], Awaitable[Api]], settings: Settings, systems: UserSystems, tmp_path: Path
) -> None:
    api = await make()
    values = systems.addresses() | {"bucket": BUCKET}
    (tmp_path / "orders.py").write_text(DEFINITIONS.format(**values))
    definitions = await commit_of(str(tmp_path / "orders.py"), folder=tmp_path)
    await api.good("POST", "/commit", definitions, **INLINE)
    names = list(await listed(api))
    assert len(names) == 3
    for name in names:
        limit = {"source": name, "rows_per_s": ROWS_PER_S}
        assert await api.good("POST", "/sources/limit", limit) == limit

    async def limited() -> bool:
        found = status_requests.read(settings).sources or ()
        own = [each["rows_per_s"] for each in found if each["workspace"] == api.workspace]
        return own == [ROWS_PER_S] * 3

    await eventually(limited, within_s=120, interval_s=0.2)
    sell(systems, 0)
    steps: dict[str, set[int]] = defaultdict(set)

    async def accepted(rows: int) -> bool:
        found = await listed(api)
        for name, source in found.items():
            steps[name].add(source["datasets"][0]["accepted"])
        return all(source["datasets"][0]["accepted"] >= rows for source in found.values())

    await eventually(lambda: accepted(ROWS), within_s=300, interval_s=0.2, what=lambda: dict(steps))
    seen = {name: sorted(counts) for name, counts in steps.items()}
    assert all(len(counts) > STEPS for counts in seen.values()), seen
    for name in names:
        await api.good("POST", "/sources/limit", {"source": name, "rows_per_s": None})
    assert {each["rows_per_s"] for each in (await listed(api)).values()} == {None}
    sell(systems, ROWS)
    await eventually(
        lambda: accepted(2 * ROWS), within_s=300, interval_s=0.2, what=lambda: dict(steps)
    )
    assert {max(counts) for counts in steps.values()} == {2 * ROWS}, "each row entered once"
