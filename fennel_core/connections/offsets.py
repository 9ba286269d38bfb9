"""Where Kafka's logs begin, end, and stood at a time; and deleting what lies before an offset.
Blocking, one request for many.

Theory. `end` is after the last committed record: what an open transaction has written is not there
yet. A log's beginning moves only forward, and deleting what is gone already is no error, so every
call may be repeated.

The client names the leader and the leader's epoch as its cached metadata have them, and nothing but
our asking renews these: of a broker that was killed and came back it would be told "leader epoch is
older" for minutes. So an answer that the metadata are stale renews them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from fennel_core.vocab.ids import Offset, TopicName, TopicPartition

PAUSE_S: Final = 0.02
LARGEST_PAUSE_S: Final = 0.5
STALE_EPOCH: Final = frozenset({KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH})
"""The leader was elected anew, as when its broker has started again."""
_ASK_AGAIN: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        *STALE_EPOCH,
    }
)
"""Leaders that are being elected, or that the client's metadata do not know yet."""


def bounds(
    admin: AdminClient, sources: Sequence[TopicPartition], timeout_s: float
) -> dict[TopicPartition, tuple[Offset, Offset]]:
    """The first offset of each log and the one after its last committed record. KafkaException when
    any cannot be told.
    """
    begins = starts(admin, sources, timeout_s)
    ends = _asked(admin, dict.fromkeys(sources, OffsetSpec.latest()), timeout_s)
    return {source: (begins[source], ends[source]) for source in sources}


def _asked(
    admin: AdminClient, specs: Mapping[TopicPartition, OffsetSpec], timeout_s: float
) -> dict[TopicPartition, Offset]:
    """One answer for each; leaders that are just being elected, as of a topic that was just made,
    are asked again.
    """
    found: dict[TopicPartition, Offset] = {}
    left, deadline_s, pause_s = dict(specs), time.monotonic() + timeout_s, PAUSE_S
    while left:
        asked = {RdTopicPartition(*source): spec for source, spec in left.items()}
        futures: Mapping[Any, Any] = admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_s
        )
        for at, future in futures.items():
            try:
                found[(TopicName(at.topic), at.partition)] = Offset(
                    future.result(2 * timeout_s).offset
                )
            except KafkaException as failed:
                if failed.args[0].code() not in _ASK_AGAIN or time.monotonic() > deadline_s:
                    raise
        left = {source: spec for source, spec in left.items() if source not in found}
        if left:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LARGEST_PAUSE_S)
            admin.list_topics(
                timeout=timeout_s
            )  # renews what the client has cached of every topic it knows
    return found


def starts(
    admin: AdminClient, sources: Sequence[TopicPartition], timeout_s: float
) -> dict[TopicPartition, Offset]:
    """The first offset of each log. KafkaException when any cannot be told."""
    return _asked(admin, dict.fromkeys(sources, OffsetSpec.earliest()), timeout_s)


def offsets_at_time(
    admin: AdminClient, sources: Sequence[TopicPartition], time_ms: int, timeout_s: float
) -> dict[TopicPartition, Offset]:
    """The first record of each log that was appended at `time_ms` (since 1970) or later; its end
    where there is none. KafkaException.
    """
    found = _asked(admin, dict.fromkeys(sources, OffsetSpec.for_timestamp(time_ms)), timeout_s)
    none = [source for source, offset in found.items() if offset < 0]
    return found | _asked(admin, dict.fromkeys(none, OffsetSpec.latest()), timeout_s)


def delete_before(
    admin: AdminClient, starts: Mapping[TopicPartition, Offset], timeout_s: float
) -> None:
    """Delete every record below these offsets. KafkaException when any log refused; the others were
    shortened all the same.
    """
    if not starts:
        return
    wanted = [RdTopicPartition(*source, offset) for source, offset in starts.items()]
    futures: Mapping[Any, Any] = admin.delete_records(
        wanted, request_timeout=timeout_s, operation_timeout=timeout_s
    )
    refused: KafkaException | None = None
    for future in futures.values():
        try:
            future.result(2 * timeout_s)
        except KafkaException as failed:
            refused = failed
    if refused is not None:
        raise refused
