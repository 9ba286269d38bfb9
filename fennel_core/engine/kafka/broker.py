"""`engine.broker.Broker` on Kafka: the clients of one slot and the threads that block for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fennel_core.connections import offsets
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import client_config, consumer_config
from fennel_core.engine.broker import require_within_log
from fennel_core.engine.errors import ProducerFenced
from fennel_core.engine.kafka.consumer import ConsumerLimits
from fennel_core.engine.kafka.locating_consumer import LocatingConsumer
from fennel_core.engine.kafka.producer import FENCED_CODES, KafkaProducer, open_producer
from fennel_core.engine.kafka.reader import KafkaRangeReader, ReplayConsumer
from fennel_core.engine.kafka.shared_consumer import SharedConsumer
from fennel_core.engine.kafka.subscription import KafkaSubscription
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicPartition

T = TypeVar("T")

CONTROL_THREADS: Final = 8
"""For opening producers and for offsets of logs. They only wait: a slot opens a producer for each
partition of each new job, and a commit answers soon after that.
"""


class KafkaBroker:
    """See `engine.broker.Broker`."""

    def __init__(self, settings: Settings, limits: ConsumerLimits | None = None) -> None:
        self._settings, self._limits = settings, limits or ConsumerLimits()
        self._live = self._new_consumer()
        self._replays = ReplayConsumer(self._new_consumer)
        self._admin = AdminClient(client_config(settings))
        self._threads = ThreadPoolExecutor(settings.commit_threads, thread_name_prefix="commit")
        # Requests that may take seconds while a broker restarts must not keep commits waiting.
        self._control_threads = ThreadPoolExecutor(CONTROL_THREADS, thread_name_prefix="control")
        self._timeout_s = settings.transaction_timeout_ms / 1000

    def _new_consumer(self) -> SharedConsumer:
        return SharedConsumer(
            LocatingConsumer(consumer_config(self._settings)),
            asyncio.get_running_loop(),
            ConsumerLimits(),
        )

    async def starts(self, sources: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        return await self._in_thread(partial(offsets.starts, self._admin, sources, self._timeout_s))

    async def subscribe(self, positions: Mapping[TopicPartition, Offset]) -> KafkaSubscription:
        bounds = await self._bounds(list(positions))
        for source, position in positions.items():
            require_within_log(source, position, *bounds[source])
        return self._live.subscribe(positions)

    async def _bounds(
        self, sources: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[Offset, Offset]]:
        return await self._in_thread(partial(offsets.bounds, self._admin, sources, self._timeout_s))

    async def producer(self, transactional_id: str) -> KafkaProducer:
        client = await self._in_thread(
            partial(open_producer, self._settings, transactional_id, self._timeout_s)
        )
        return KafkaProducer(client, self._threads, self._timeout_s)

    async def range_reader(self) -> KafkaRangeReader:
        async def bounds_of(source: TopicPartition) -> tuple[Offset, Offset]:
            return (await self._bounds([source]))[source]

        consumer = self._replays.acquire()
        return KafkaRangeReader(
            consumer.subscribe, bounds_of, self._timeout_s, self._replays.release
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._control_threads, work)
        except KafkaException as failed:
            error: Any = failed.args[0]
            raise (
                ProducerFenced(error.str())
                if error.code() in FENCED_CODES
                else SystemUnavailable(error.str())
            ) from failed

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._live.stop)
        self._threads.shutdown(wait=False)
        self._control_threads.shutdown(wait=False)
