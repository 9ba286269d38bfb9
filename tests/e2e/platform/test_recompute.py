"""A new version of a source dataset has the rows of its endpoint, as its users expect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from fennel_core.apps.local import status_requests
from fennel_core.connections.kafka import consumer_config
from fennel_core.settings.model import Settings
from fennel_core.vocab.versions import decode
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform")]
NOW = "2026-01-01T00:00:00"
PEOPLE = "tests.e2e.platform.people_"


def dead_letters(workspace: str, settings: Settings) -> list[tuple[str, str]]:
    """Return dataset and reason of every dead letter of a workspace."""
    consumer = Consumer(consumer_config(settings))
    found: list[tuple[str, str]] = []
    try:
        known = consumer.list_topics(timeout=10).topics
        places = [
            TopicPartition(name, part, 0)
            for name, topic in known.items()
            if name.startswith(f"{workspace}.dead.")
            for part in topic.partitions
        ]
        consumer.assign(places)
        left = len(places)
        while left:
            message = consumer.poll(10)
            assert message is not None, "the broker responds"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                left -= 1
                continue
            reason = dict(message.headers())["reason"].decode()
            found += [(row["dataset"], reason) for row in decode(message.value()).to_dicts()]
    finally:
        consumer.close()
    return found


async def people(api: Api, *names: str) -> list[dict[str, Any] | None]:
    await api.good("POST", "/barrier", {"timeout_s": 60})
    body = {"keys": [{"name": name} for name in names], "fields": []}
    answer = await api.good("POST", "/dataset/Person/lookup", body)
    columns = answer["data"]
    return [
        {field: values[row] for field, values in columns.items() if field not in ("name", "at")}
        if found
        else None
        for row, found in enumerate(answer["found"])
    ]


async def counted(api: Api, age: int) -> int:
    answer = await api.good("POST", "/dataset/Ages/lookup", {"keys": [{"age": age}], "fields": []})
    count: int = answer["data"]["people"][0]
    return count


async def test_new_versions_are_recomputed_from_raw_requests(
    make: Callable[[], Awaitable[Api]], settings: Settings
) -> None:
    api = await make()
    await api.commit(f"{PEOPLE}one", **INLINE)
    assert (await api.log(name=["Ada", "Eve"], age=[36, 36], at=[NOW] * 2, city=["rome", 5]))[
        0
    ] == 200
    assert (await api.log(name=["Bob"], age=[7], at=[NOW]))[0] == 200
    assert await people(api, "Ada", "Bob", "Cyd") == [{"age": 36}, {"age": 7}, None]

    plan = await api.commit(f"{PEOPLE}two", **INLINE)
    assert "Person: recompute from door/people" in str(plan)
    assert await people(api, "Ada", "Bob") == [
        {"age": 36, "email": None},
        {"age": 7, "email": None},
    ]
    assert await counted(api, 36) == 2
    assert (await api.log(name=["Cyd"], age=[36], at=[NOW], email=["c@d"]))[0] == 200
    assert await people(api, "Cyd") == [{"age": 36, "email": "c@d"}]
    assert dead_letters(api.workspace, settings) == []

    await api.commit(f"{PEOPLE}three", **INLINE)
    # Requests of Bob and Cyd lack the city; a number is text, too.
    assert await people(api, "Ada", "Bob", "Cyd", "Eve") == [
        {"age": 36, "city": "rome", "double": 72},
        None,
        None,
        {"age": 36, "city": "5", "double": 72},
    ]
    assert await counted(api, 36) == 2
    dead = dead_letters(api.workspace, settings)
    assert [name for name, _ in dead] == ["Person", "Person"]
    assert all("Field `city` not found in dataframe" in reason for _, reason in dead)

    async def counted_for_status() -> bool:
        answers = await asyncio.to_thread(status_requests.read, settings)
        mine = [r for r in answers.dead_letters or () if r["workspace"] == api.workspace]
        return [(r["kind"], r["rows"], r["job"] is None) for r in mine] == [
            ("not-admitted", 2, False)
        ]

    await eventually(counted_for_status, within_s=30)
