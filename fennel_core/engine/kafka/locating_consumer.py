"""A consumer that looks for the leaders of new topics at once.

Theory. librdkafka reads nothing of a partition until it knows its leader. For an assigned topic
that it has not met it asks once per second, so the first read of a new topic would wait for half a
second on average, and a commit creates new topics. A request for the metadata of the topic brings
the answer within one fetch. The call does not wait for it: the consumer's thread has other
partitions to read, and librdkafka takes the answer in by itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException

REQUEST_S: Final = 0.001
"""Long enough to send the request; a call without a timeout would wait for the answer."""


class LocatingConsumer(Consumer):  # type: ignore[misc]  # confluent_kafka has no types
    """Use it from one thread."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._asked: set[str] = set()
        """Topics whose metadata were requested since a partition of them was last given up."""

    def incremental_assign(self, partitions: list[Any]) -> None:
        super().incremental_assign(partitions)
        for topic in {each.topic for each in partitions} - self._asked:
            with suppress(KafkaException):  # no answer yet; without any, librdkafka asks again
                self.list_topics(topic, REQUEST_S)
            self._asked.add(topic)

    def incremental_unassign(self, partitions: list[Any]) -> None:
        super().incremental_unassign(partitions)
        self._asked -= {each.topic for each in partitions}
