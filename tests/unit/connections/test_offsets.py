"""Offsets that Kafka is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from fennel_core.connections.offsets import offsets_at_time
from fennel_core.vocab.ids import PartitionIndex, TopicName

PARTITION = (TopicName("t"), PartitionIndex(0))


class Admin:
    """Answers every request with offset 0, and remembers the specifications.

    `stale`: the error with which every request fails until the metadata are renewed.
    """

    def __init__(self, stale: int | None = None) -> None:
        self.specs: list[OffsetSpec] = []
        self._stale = stale

    def list_offsets(self, requested: Mapping[Any, OffsetSpec], **_: Any) -> dict[Any, Future[Any]]:
        self.specs += requested.values()
        found: Future[Any] = Future()
        if self._stale is None:
            found.set_result(SimpleNamespace(offset=0))
        else:
            found.set_exception(KafkaException(KafkaError(self._stale)))
        return dict.fromkeys(requested, found)

    def list_topics(self, **_: Any) -> None:
        self._stale = None


@pytest.mark.parametrize(("time_ms", "asked"), [(5, 5), (0, 0), (-1, 0), (-1_358_244_638_462, 0)])
def test_a_time_before_1970_is_the_beginning_of_the_log(time_ms: int, asked: int) -> None:
    """Kafka refuses other negative numbers, and reads -1 and -2 as the ends of the log."""
    admin = Admin()
    assert offsets_at_time(admin, [PARTITION], time_ms, 1.0) == {PARTITION: 0}  # type: ignore[arg-type]  # a double
    assert [spec._value for spec in admin.specs] == [asked]


@pytest.mark.parametrize("stale", [KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_stale_metadata_are_renewed_before_the_retry(stale: int) -> None:
    """Without it a client that asked for a topic too early would not find it for minutes."""
    admin = Admin(stale)
    assert offsets_at_time(admin, [PARTITION], 5, 1.0) == {PARTITION: 0}  # type: ignore[arg-type]  # a double
    assert len(admin.specs) == 2
