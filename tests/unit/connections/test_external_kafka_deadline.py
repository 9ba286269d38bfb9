"""A cluster that is slow for each partition has one deadline for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fennel_core.connections import external_kafka
from fennel_core.connections.external_kafka import (
    ExternalKafka,
    ExternalKafkaUnusable,
    ExternalTopic,
    newest_messages,
    stream_bounds,
)

KAFKA = ExternalKafka("shop", "broker:9092", "PLAINTEXT", "", "", "")
PARTITIONS = 100


class Slow:
    """A consumer to which no message ever comes."""

    def __init__(self, _: object) -> None:
        pass

    def get_watermark_offsets(self, _: object, timeout: float) -> tuple[int, int]:
        time.sleep(min(timeout, 0.02))
        return 0, 5

    def assign(self, _: object) -> None:
        pass

    def poll(self, timeout: float) -> None:
        time.sleep(timeout)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "order",
    [
        lambda: newest_messages(KAFKA, "orders", PARTITIONS, 5),
        lambda: stream_bounds(KAFKA, "orders", None),
    ],
)
def test_all_partitions_together_have_one_deadline(
    order: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_kafka, "Consumer", Slow)
    monkeypatch.setattr(external_kafka, "REQUEST_S", 0.1)
    monkeypatch.setattr(external_kafka, "ORDER_S", 0.3)
    topic = ExternalTopic("cluster/topic", PARTITIONS)
    monkeypatch.setattr(external_kafka, "describe_topic", lambda *_: topic)
    begun_s = time.monotonic()
    with pytest.raises(ExternalKafkaUnusable, match=r"all partitions of topic `orders`"):
        order()
    assert time.monotonic() - begun_s < 1.5
