"""Offsets of Kafka logs: their start, their end, the offset at a time; and deleting old records.

All functions block, send one request for many partitions, and raise KafkaException.

Theory. The end of a log is the offset after its last committed record; records of an open
transaction are not part of it. The start of a log only moves forward, and deleting deleted records
is not an error, so every call can be repeated.

The client sends the leader and leader epoch of its cached metadata and renews them only on demand.
After a broker was killed and restarted, requests would fail with "leader epoch is older" for
minutes. So a response that the metadata are stale renews them before the retry.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

PAUSE_S: Final = 0.02
LARGEST_PAUSE_S: Final = 0.5
STALE_EPOCH: Final = frozenset({KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH})
"""A new leader was elected, for example because its broker restarted."""
DENIED: Final = KafkaError.TOPIC_AUTHORIZATION_FAILED
_RETRIABLE: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError._NOENT,  # the client has cached that none of the topics exist
        *STALE_EPOCH,
    }
)
"""The leader is being elected, or the client's metadata do not have it yet."""


def bounds(
    admin: AdminClient,
    partitions: Sequence[TopicPartition],
    timeout_s: float,
    *,
    skip_unknown: bool = False,
) -> dict[TopicPartition, tuple[Offset, Offset]]:
    """Return the first offset of each log and the one after its last committed record.

    With `skip_unknown`, partitions that do not exist are absent from the result.
    """
    first = _list_offsets(
        admin, dict.fromkeys(partitions, OffsetSpec.earliest()), timeout_s, skip_unknown
    )
    end = _list_offsets(
        admin, dict.fromkeys(partitions, OffsetSpec.latest()), timeout_s, skip_unknown
    )
    return {each: (first[each], end[each]) for each in partitions if each in first and each in end}


def denied_topic(
    admin: AdminClient, topics: Collection[TopicName], timeout_s: float
) -> TopicName | None:
    """Return the first of `topics` that this client's user may not describe.

    To the library's other calls such a topic looks like one that does not exist.
    """
    if not topics:
        return None
    described = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=timeout_s)
    for topic, answer in described.items():
        failed = answer.exception(2 * timeout_s)
        if isinstance(failed, KafkaException) and failed.args[0].code() == DENIED:
            return TopicName(topic)
    return None


def _list_offsets(
    admin: AdminClient,
    specs: Mapping[TopicPartition, OffsetSpec],
    timeout_s: float,
    skip_unknown: bool = False,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[TopicPartition, Offset]:
    """Return one offset for each partition; retry while leaders are being elected."""
    found: dict[TopicPartition, Offset] = {}
    left, deadline_s, pause_s = dict(specs), time.monotonic() + timeout_s, PAUSE_S
    while left:
        requested = {RdTopicPartition(*partition): spec for partition, spec in left.items()}
        futures: Mapping[Any, Any] = admin.list_offsets(
            requested, isolation_level=isolation, request_timeout=timeout_s
        )
        for at, future in futures.items():
            partition = (TopicName(at.topic), PartitionIndex(at.partition))
            try:
                found[partition] = Offset(future.result(2 * timeout_s).offset)
            except KafkaException as failed:
                code = failed.args[0].code()
                if skip_unknown and code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    del left[partition]
                elif code not in _RETRIABLE or time.monotonic() > deadline_s:
                    raise
        left = {partition: spec for partition, spec in left.items() if partition not in found}
        if left:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LARGEST_PAUSE_S)
            # Renews the cached metadata of every topic that the client knows.
            admin.list_topics(timeout=timeout_s)
    return found


def starts(
    admin: AdminClient, partitions: Sequence[TopicPartition], timeout_s: float
) -> dict[TopicPartition, Offset]:
    """Return the first offset of each log."""
    return _list_offsets(admin, dict.fromkeys(partitions, OffsetSpec.earliest()), timeout_s)


def high_watermarks(
    admin: AdminClient, partitions: Sequence[TopicPartition], timeout_s: float
) -> dict[TopicPartition, Offset]:
    """Return the end of each log including open transactions.

    The broker acknowledges a commit before it writes the transaction markers, so for a moment the
    last stable offset excludes rows that a client knows to be accepted.
    """
    specs = dict.fromkeys(partitions, OffsetSpec.latest())
    return _list_offsets(admin, specs, timeout_s, isolation=IsolationLevel.READ_UNCOMMITTED)


def offsets_at_time(
    admin: AdminClient, partitions: Sequence[TopicPartition], time_ms: int, timeout_s: float
) -> dict[TopicPartition, Offset]:
    """Return the first record of each log appended at `time_ms` (since 1970) or later.

    It is the log's end where there is no such record. A negative time, as a retention that is
    longer than the time since 1970 gives, is the beginning.
    """
    spec = OffsetSpec.for_timestamp(max(time_ms, 0))  # negative numbers mean something else
    found = _list_offsets(admin, dict.fromkeys(partitions, spec), timeout_s)
    none = [partition for partition, offset in found.items() if offset < 0]
    return found | _list_offsets(admin, dict.fromkeys(none, OffsetSpec.latest()), timeout_s)


def delete_before(
    admin: AdminClient, starts: Mapping[TopicPartition, Offset], timeout_s: float
) -> None:
    """Delete every record below these offsets.

    If one log refuses, the others are shortened all the same and the error is raised at the end.
    """
    if not starts:
        return
    requested = [RdTopicPartition(*partition, offset) for partition, offset in starts.items()]
    futures: Mapping[Any, Any] = admin.delete_records(
        requested, request_timeout=timeout_s, operation_timeout=timeout_s
    )
    refused: KafkaException | None = None
    for future in futures.values():
        try:
            future.result(2 * timeout_s)
        except KafkaException as failed:
            refused = failed
    if refused is not None:
        raise refused
