"""Late and corrected rows over several `log` calls of the real client: every lookup equals the
naive recompute.
"""

from __future__ import annotations

import json
import random
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fennel_core.settings.model import Settings
from tests.laws.dataflow.oracle import SECOND, Accepted
from tests.support.corrections import (
    BASE_S,
    CITIES,
    LOOKUP_TIMES_S,
    LOOKUPS,
    NOW_US,
    OIDS,
    UIDS,
    comparable,
)

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform")]
SCRIPT = Path(__file__).with_name("corrections.py")
CALLS = 24


@pytest.fixture
def workspace() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    settings = Settings()
    admin = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}
    assert (
        httpx.delete(
            f"{settings.query_url}/api/v1/workspaces/{name}", headers=admin, timeout=120
        ).status_code
        == 200
    )


def calls(chosen: random.Random) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return `log` calls in any order: late upserts, equal times, corrections within a call and by
    later ones, clicks before their users.
    """

    def row(endpoint: str) -> dict[str, Any]:
        at = 1000 * (BASE_S + chosen.randrange(13))
        uid, city = chosen.choice(UIDS), chosen.choice(CITIES)
        match endpoint:
            case "Clicks":
                return {"uid": uid, "amount": chosen.randrange(1, 10), "at": at}
            case "Users":
                return {"uid": uid, "city": city, "at": at}
            case "Cities":
                return {"city": city, "country": chosen.choice(["it", "no"]), "at": at}
            case _:
                return {
                    "oid": chosen.choice(OIDS),
                    "uid": uid,
                    "amount": chosen.randrange(1, 10),
                    "at": at,
                }

    endpoints = [chosen.choice(["Clicks", "Users", "Cities", "Orders"]) for _ in range(CALLS)]
    return [
        (endpoint, [row(endpoint) for _ in range(chosen.randrange(1, 5))]) for endpoint in endpoints
    ]


def test_lookups_and_queries_equal_the_recompute_over_everything_that_was_logged(
    workspace: str,
) -> None:
    settings = Settings()
    logs = calls(random.Random(25))  # noqa: S311  # repeatable, and no secret
    accepted = Accepted()
    for endpoint, rows in logs:
        accepted.take(endpoint, [{**row, "at": row["at"] * 1000} for row in rows])
    asked = [
        (dataset, key, moment)
        for dataset, (_, keys, _) in LOOKUPS.items()
        for key in keys
        for moment in [None, *LOOKUP_TIMES_S[::3]]
    ]
    lookups = []
    for dataset, (name, keys, _) in LOOKUPS.items():
        past = [(key, moment) for key in keys for moment in LOOKUP_TIMES_S[::3]]
        lookups.append([dataset, name, [key for key, _ in past], [moment for _, moment in past]])
        lookups.append([dataset, name, keys, None])
    calls_json = json.dumps({"logs": logs, "lookups": lookups, "cities": CITIES})
    command = [str(settings.executor_python), str(SCRIPT), settings.query_url, f"dev-{workspace}"]
    done = subprocess.run(command, input=calls_json, capture_output=True, text=True, check=False)  # noqa: S603  # a program of this test, and no shell
    assert done.returncode == 0, done.stderr[-3000:]
    responses = json.loads(done.stdout.splitlines()[-1])

    compared = 0
    for (dataset, _, keys, moments), rows in zip(lookups, responses["lookups"], strict=True):
        for key, moment, row in zip(
            keys, moments or [NOW_US / SECOND] * len(keys), rows, strict=True
        ):
            wanted = LOOKUPS[dataset][2](accepted, key, int(moment * SECOND))
            assert comparable(row, wanted) == comparable(wanted, wanted), (
                f"{dataset} of {key} as of {moment - BASE_S} s"
            )
            compared += 1
    assert compared == len(asked)

    per_city = [accepted.per_city(city, NOW_US) for city in CITIES]
    windowed = [accepted.windowed(city, NOW_US) for city in CITIES]
    assert responses["query"] == {
        "City.count": [row["count"] if row else 0 for row in per_city],
        "City.recent": [row["recent"] if row else 0 for row in per_city],
        "City.windows": [row["count"] if row else 0 for row in windowed],
    }
