"""Errors of Kafka's controller: which are tried again, and which refuse a topic for good."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic as KafkaTopic

from fennel_core.ledger import creation
from fennel_core.ledger.errors import AssetNotCreated, KafkaUnavailable
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import CommitId
from tests.support.ledger_world import World, reserve
from tests.support.toy_commits import toy

RESTARTING = {
    "throttled": KafkaError.THROTTLING_QUOTA_EXCEEDED,
    "too few brokers": KafkaError.INVALID_REPLICATION_FACTOR,
    "no controller": KafkaError.NOT_CONTROLLER,
    "timed out": KafkaError.REQUEST_TIMED_OUT,
}
"""What a cluster answers while a broker restarts, or is asked for too much at once."""


@dataclass
class RestartingCluster:
    """The admin client's part of a cluster that answers with `code` `failures` times."""

    code: int
    failures: int
    created: set[str] = field(default_factory=set)

    def create_topics(self, topics: Iterable[KafkaTopic], **_: float) -> dict[str, Future[None]]:
        self.failures -= 1
        return {topic.topic: self._answer(topic.topic) for topic in topics}

    def _answer(self, topic: str) -> Future[None]:
        answer: Future[None] = Future()
        if self.failures >= 0:
            answer.set_exception(KafkaException(KafkaError(self.code, "not now")))
        else:
            self.created.add(topic)
            answer.set_result(None)
        return answer


class AdminOf(KafkaTopicAdmin):
    """The production class over a cluster without a network."""

    def __init__(self, cluster: RestartingCluster) -> None:
        super().__init__(Settings())
        self._cluster = cluster

    def _client(self) -> AdminClient:
        return self._cluster  # type: ignore[return-value]  # of its methods, the one that is called


async def create(cluster: RestartingCluster) -> World:
    """Reserve a commit and create its topics in `cluster`."""
    world = World()
    await world.open()
    id_ = await world.receive("first")
    await reserve(world.context(), id_, toy("orders"))
    context = replace(world.context(), topics=AdminOf(cluster))
    await creation.create_assets(context, id_)
    return world


@pytest.mark.parametrize("code", RESTARTING.values(), ids=RESTARTING)
async def test_a_broker_that_restarts_for_a_moment_undoes_no_commit(code: int) -> None:
    cluster = RestartingCluster(code, failures=2)
    world = await create(cluster)
    assert world.ledger.state.commits[CommitId("first")].state is CommitState.CREATED
    entries = world.ledger.state.entry_rows.values()
    assert cluster.created == {e.asset for e in entries if ".job." not in e.asset}


@pytest.mark.parametrize("code", RESTARTING.values(), ids=RESTARTING)
async def test_a_cluster_that_stays_too_small_fails_the_commit_with_its_text(code: int) -> None:
    with pytest.raises(KafkaUnavailable, match="not now"):
        await create(RestartingCluster(code, failures=100))


async def test_a_topic_that_kafka_refuses_fails_the_commit_at_once() -> None:
    cluster = RestartingCluster(KafkaError.POLICY_VIOLATION, failures=100)
    with pytest.raises(ApiError, match="not now") as refused:
        await create(cluster)
    assert refused.value.code == AssetNotCreated.CODE
    assert cluster.failures == 99, "one request"
