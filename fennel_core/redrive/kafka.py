"""Dead-letter topics in Kafka; see `store.py`.

The transactional id of a partition is made of its topic, whose name is never used twice, and its
number: opening the producer fences every earlier one and ends its transaction.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from confluent_kafka import Message

from fennel_core.connections.committed_records import committed_records, log_ends
from fennel_core.ingest.kafka import KafkaTransactionalProducer
from fennel_core.ingest.store import ProducerRecord
from fennel_core.redrive.letters import Letter
from fennel_core.redrive.store import settlement
from fennel_core.settings.model import Settings
from fennel_core.vocab.dead_letters import SettledLetter, origin_of, settled_letters
from fennel_core.vocab.ids import Millis, Offset, TopicPartition

BATCH: Final = 50
"""Messages that are fetched at once: a letter may have 16 MiB."""


class KafkaLetterLog:
    """See `store.LetterLog`. `threads` run the calls that block."""

    def __init__(self, settings: Settings, threads: ThreadPoolExecutor) -> None:
        self._settings, self._threads = settings, threads

    def letters(self, at: TopicPartition) -> Generator[Letter, None, None]:
        # Twice, because a later message settles a letter, whose rows are not kept until then.
        ends = log_ends(self._settings, [at])
        done: set[int] = set()
        for _, record in committed_records(self._settings, ends, BATCH):
            headers, value = _content(record)
            done.update(each.offset for each in settled_letters(headers, value) or ())
        for _, record in committed_records(self._settings, ends, BATCH):
            headers, value = _content(record)
            offset = record.offset()
            assert offset is not None, "a record has an offset"
            if offset in done or settled_letters(headers, value) is not None:
                continue
            _, written_ms = record.timestamp()
            yield Letter(at, Offset(offset), Millis(written_ms), origin_of(headers), value)

    async def open(self, at: TopicPartition) -> KafkaLetterSession:
        producer = KafkaTransactionalProducer(self._settings, f"{at[0]}.{at[1]}", self._threads)
        await producer.open()
        return KafkaLetterSession(at, producer)


def _content(record: Message) -> tuple[list[tuple[str, bytes]], bytes]:
    value = record.value()
    assert value is not None, "dead letters have rows"
    return [(name, bytes(content)) for name, content in record.headers() or ()], value


class KafkaLetterSession:
    """See `store.LetterSession`."""

    def __init__(self, at: TopicPartition, producer: KafkaTransactionalProducer) -> None:
        self._at, self._producer, self._over = at, producer, False

    async def commit(
        self,
        messages: Sequence[ProducerRecord],
        settled: Sequence[SettledLetter],
        deadline_s: float,
    ) -> None:
        # The producer would open again and fence the session that has the partition now.
        assert not self._over, "a session whose transaction failed is over"
        self._over = True
        await self._producer.commit((*messages, settlement(self._at, settled)), deadline_s)
        self._over = False

    def close(self) -> None:
        self._over = True
        self._producer.close()
