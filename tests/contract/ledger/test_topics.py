"""The contract of a topic admin, in memory and in Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.topics import MemoryTopicAdmin, TopicAdmin, TopicSpec
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import TopicName


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.platform)])
def topics(request: pytest.FixtureRequest) -> TopicAdmin:
    if request.param == "memory":
        return MemoryTopicAdmin()
    request.getfixturevalue("infra")
    return KafkaTopicAdmin(Settings())


@pytest.fixture
def prefix() -> Iterator[str]:
    """A workspace name of this test's own."""
    return f"t{uuid.uuid4().hex[:12]}"


async def listed(topics: TopicAdmin, prefix: str, expected: set[TopicName]) -> set[TopicName]:
    """What there is under the prefix, once the broker's metadata has caught up with `expected` (or
    not, after a while).
    """
    deadline = time.monotonic() + 10
    while True:
        found = {name for name in await topics.names() if name.startswith(prefix)}
        if found == expected or time.monotonic() > deadline:
            return found


def wanted(prefix: str, *kinds: AssetKind) -> list[TopicSpec]:
    return [TopicSpec(TopicName(f"{prefix}.{kind}.{i}"), kind, 2) for i, kind in enumerate(kinds)]


async def test_creating_and_deleting_topics_is_idempotent(topics: TopicAdmin, prefix: str) -> None:
    new = wanted(prefix, AssetKind.TOPIC, AssetKind.RAW, AssetKind.REPLAYLOG, AssetKind.DEAD)
    names = {t.name for t in new}
    assert await topics.create(new[:2]) == {}
    assert await topics.create(new) == {}
    assert await listed(topics, prefix, names) == names
    assert await topics.delete(sorted(names)) == {}
    assert await topics.delete(sorted(names)) == {}
    assert await listed(topics, prefix, set()) == set()


async def test_empty_lists_of_topics_are_accepted(topics: TopicAdmin) -> None:
    assert await topics.create([]) == {}
    assert await topics.delete([]) == {}


@pytest.mark.platform
async def test_a_refused_topic_does_not_affect_the_others(infra: object, prefix: str) -> None:
    topics = KafkaTopicAdmin(Settings())
    (good,) = wanted(prefix, AssetKind.TOPIC)
    bad = TopicSpec(TopicName(f"{prefix}.not a name"), AssetKind.TOPIC, 2)
    refused = await topics.create([bad, good])
    assert set(refused) == {bad.name}
    assert await listed(topics, prefix, {good.name}) == {good.name}
    await topics.delete([good.name])


async def test_an_unreachable_broker_is_unavailable_and_not_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fennel_core.ledger.kafka.REQUEST_SECONDS", 0.5)
    monkeypatch.setattr("fennel_core.ledger.kafka.RESPONSE_SECONDS", 0.6)
    unreachable = KafkaTopicAdmin(Settings(kafka_bootstrap="127.0.0.1:1"))
    with pytest.raises(SystemUnavailable):
        await unreachable.create(wanted("x", AssetKind.TOPIC))
    with pytest.raises(SystemUnavailable):
        await unreachable.names()
