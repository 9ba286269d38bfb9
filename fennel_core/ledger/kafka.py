"""Topics in Kafka, through the admin client.

Theory. The admin client answers with futures of its own threads, so calls run in a worker thread. A
batch is one request: brokers make hundreds of topics in one controller round. Retention counts the
time of ingest, never event time, so brokers stamp the messages. What jobs read is never shortened
by the broker, which does not know who needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic as KafkaTopic

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.kafka import FETCH_MAX_BYTES, client_config
from fennel_core.ledger.topics import TopicRefusal, TopicSpec, Unreachable
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import TopicName

REQUEST_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 20.0
"""A little more than the broker is given, so that its own answer comes first."""
BATCH: Final = 200
"""Topics per request: bounds what one controller round holds up."""
FOR_EVER: Final = "-1"
_NEEDED: Final = frozenset({AssetKind.TOPIC, AssetKind.REPLAYLOG})
"""Jobs read these: they are shortened by who needs them (definition/log_retention.py), not by the
broker.
"""
_UNKNOWN_OUTCOME: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_CONTROLLER,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    }
)


class KafkaTopicAdmin:
    """See `ledger.effectors.Topics`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin: AdminClient | None = None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(client_config(self._settings))
        return self._admin

    def _config(self, kind: AssetKind) -> dict[str, str]:
        return {
            "cleanup.policy": "delete",
            "retention.ms": FOR_EVER if kind in _NEEDED else str(self._settings.kafka_retention_ms),
            "retention.bytes": FOR_EVER,
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(FETCH_MAX_BYTES),
        }

    async def create(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        return await asyncio.to_thread(self._create, topics)

    def _create(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        refused: dict[TopicName, TopicRefusal] = {}
        for start in range(0, len(topics), BATCH):
            wanted = [
                KafkaTopic(
                    t.name,
                    num_partitions=t.partitions,
                    replication_factor=self._settings.kafka_replication,
                    config=self._config(t.kind),
                )
                for t in topics[start : start + BATCH]
            ]
            futures = self._client().create_topics(
                wanted, operation_timeout=REQUEST_SECONDS, request_timeout=ANSWER_SECONDS
            )
            refused |= _gather(futures, fine=KafkaError.TOPIC_ALREADY_EXISTS)
        return refused

    async def delete(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        return await asyncio.to_thread(self._delete, names)

    def _delete(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        refused: dict[TopicName, TopicRefusal] = {}
        for start in range(0, len(names), BATCH):
            futures = self._client().delete_topics(
                list(names[start : start + BATCH]),
                operation_timeout=REQUEST_SECONDS,
                request_timeout=ANSWER_SECONDS,
            )
            refused |= _gather(futures, fine=KafkaError.UNKNOWN_TOPIC_OR_PART)
        return refused

    async def names(self) -> list[TopicName]:
        return await asyncio.to_thread(self._names)

    def _names(self) -> list[TopicName]:
        try:
            return sorted(self._client().list_topics(timeout=REQUEST_SECONDS).topics)
        except KafkaException as error:
            raise Unreachable(str(error)) from error


def _gather(futures: Mapping[str, Any], *, fine: int) -> dict[TopicName, TopicRefusal]:
    """Wait for every answer of a batch before judging any: an unknown outcome of one topic leaves
    the batch to be tried again.
    """
    refused: dict[TopicName, TopicRefusal] = {}
    unknown: list[str] = []
    for name, error in _errors(futures):
        if error.code() == fine:
            continue
        if error.code() in _UNKNOWN_OUTCOME:
            unknown.append(f"{name}: {error.str()}")
        else:
            refused[TopicName(name)] = TopicRefusal(error.str())
    if unknown:
        raise Unreachable("; ".join(unknown[:3]))
    return refused


def _errors(futures: Mapping[str, Any]) -> Iterable[tuple[str, KafkaError]]:
    for name, future in futures.items():
        try:
            future.result()
        except KafkaException as error:
            yield name, error.args[0]
