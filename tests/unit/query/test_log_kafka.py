"""A producer that failed for good is replaced, and every message gets an outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from fennel_core.query import log_kafka
from fennel_core.query.log_kafka import KafkaLogProducer
from fennel_core.query.query_log import NotDelivered
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import TopicName

TOPIC = TopicName("shop.querylog.1")
Report = Callable[[KafkaError | None, object], None]


class FakeProducer:
    """The library's producer. `refused`: what `produce` raises; `failed`: of every delivery."""

    made = 0
    refused: Exception | None = None
    failed: KafkaError | None = None
    broken: Exception | None = None

    def __init__(self, _config: object, logger: object) -> None:
        if FakeProducer.broken is not None:
            raise FakeProducer.broken
        FakeProducer.made += 1
        self._reports: list[Report] = []

    def produce(self, _topic: str, _value: bytes, *, headers: object, on_delivery: Report) -> None:
        if FakeProducer.refused is not None:
            raise FakeProducer.refused
        self._reports.append(on_delivery)

    def poll(self, _seconds: float) -> None:
        while self._reports:
            self._reports.pop()(FakeProducer.failed, None)

    flush = poll

    def purge(self, **_which: bool) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeProducer]:
    monkeypatch.setattr(log_kafka, "Producer", FakeProducer)
    for name, value in (("made", 0), ("refused", None), ("failed", None), ("broken", None)):
        monkeypatch.setattr(FakeProducer, name, value)
    return FakeProducer


def sent(producer: KafkaLogProducer) -> NotDelivered | None:
    """Send a message and return its outcome."""
    outcomes: list[NotDelivered | None] = []
    producer.produce(TOPIC, b"x", outcomes.append)
    producer.poll()
    [outcome] = outcomes
    return outcome


def test_a_producer_that_refuses_messages_after_a_fatal_error_is_replaced(
    fake: type[FakeProducer],
) -> None:
    producer = KafkaLogProducer(Settings())
    fake.refused = KafkaException(KafkaError(KafkaError._FATAL))
    assert sent(producer) is not None
    fake.refused = None
    assert sent(producer) is None
    assert fake.made == 2


def test_a_producer_whose_deliveries_failed_fatally_is_replaced(fake: type[FakeProducer]) -> None:
    producer = KafkaLogProducer(Settings())
    fake.failed = KafkaError(KafkaError._FATAL)
    assert not fake.failed.fatal(), "as in delivery reports"
    assert sent(producer) is not None
    fake.failed = None
    assert sent(producer) is None
    assert fake.made == 2


@pytest.mark.parametrize(
    "error", [BufferError("full"), KafkaException(KafkaError(KafkaError._QUEUE_FULL))]
)
def test_a_producer_that_is_only_full_is_kept(fake: type[FakeProducer], error: Exception) -> None:
    producer = KafkaLogProducer(Settings())
    fake.refused = error
    assert sent(producer) is not None
    fake.refused = None
    assert sent(producer) is None
    assert fake.made == 1


def test_a_producer_that_cannot_be_made_costs_only_the_message(fake: type[FakeProducer]) -> None:
    producer = KafkaLogProducer(Settings())
    fake.broken = KafkaException(KafkaError(KafkaError._INVALID_ARG))
    assert sent(producer) is not None
    fake.broken = None
    assert sent(producer) is None
