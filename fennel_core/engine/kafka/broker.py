"""`engine.broker.Broker` on Kafka: the clients of one slot and the threads that block for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fennel_core.connections import offsets
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import client_config
from fennel_core.engine.broker import Record, require_within_log
from fennel_core.engine.errors import ProducerFenced
from fennel_core.engine.kafka.consumer import KafkaSubscription, SharedConsumer
from fennel_core.engine.kafka.producer import FENCED_CODES, KafkaProducer, open_producer
from fennel_core.engine.kafka.reader import read_range
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicPartition

T = TypeVar("T")


class KafkaBroker:
    """See `engine.broker.Broker`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._consumer = SharedConsumer(settings, asyncio.get_running_loop())
        self._admin = AdminClient(client_config(settings))
        self._threads = ThreadPoolExecutor(settings.commit_threads, thread_name_prefix="kafka")
        self._timeout_s = settings.transaction_timeout_ms / 1000

    async def starts(self, sources: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        return await self._in_thread(partial(offsets.starts, self._admin, sources, self._timeout_s))

    async def subscribe(self, positions: Mapping[TopicPartition, Offset]) -> KafkaSubscription:
        bounds = await self._in_thread(
            partial(offsets.bounds, self._admin, list(positions), self._timeout_s)
        )
        for source, position in positions.items():
            require_within_log(source, position, *bounds[source])
        subscription = KafkaSubscription(self._consumer, positions)
        self._consumer.add(subscription)
        return subscription

    async def producer(self, transactional_id: str) -> KafkaProducer:
        client = await self._in_thread(
            partial(open_producer, self._settings, transactional_id, self._timeout_s)
        )
        return KafkaProducer(client, self._threads, self._timeout_s)

    async def read(
        self, source: TopicPartition, first: Offset, stop: Offset | None = None
    ) -> list[Record]:
        return await self._in_thread(
            partial(read_range, self._settings, source, first, stop, self._timeout_s)
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except KafkaException as failed:
            error: Any = failed.args[0]
            raise (
                ProducerFenced(error.str())
                if error.code() in FENCED_CODES
                else SystemUnavailable(error.str())
            ) from failed

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._consumer.stop)
        self._threads.shutdown(wait=False)
