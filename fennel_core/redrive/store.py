"""The interface to dead-letter topics, and its in-memory implementation; `kafka.py` has the other.

Theory. Whether a letter is open is decided by its own partition: a later message settles it. The
message is written in the transaction that writes the rows of a replay, so both are there or
neither. An order opens a *session* of the partition, which fences every earlier session and waits
for the end of what that one began; only then are the settled letters read. So of two replays that
run at once, one finds what the other has settled, and the other can commit no more.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fennel_core.connections.errors import TransactionAborted
from fennel_core.ingest.store import ProducerRecord, require_in_time
from fennel_core.redrive.letters import Letter
from fennel_core.vocab.dead_letters import (
    SETTLED_HEADERS,
    SettledLetter,
    encode_settled,
    origin_of,
    settled_letters,
)
from fennel_core.vocab.ids import Millis, Offset, TopicName, TopicPartition


class LetterSession(Protocol):
    """The exclusive right to settle letters of a partition, until the next session is opened."""

    async def commit(
        self,
        messages: Sequence[ProducerRecord],
        settled: Sequence[SettledLetter],
        deadline_s: float,
    ) -> None:
        """Write messages and what is settled in one transaction, or none after `deadline_s`.

        Raises `TransactionAborted`, `TransactionOutcomeUnknown` and `SystemUnavailable`; the
        session is over after each.
        """
        ...

    def close(self) -> None:
        """Release what the session holds; it is over."""
        ...


class LetterLog(Protocol):
    """The dead-letter topics. Raises `SystemUnavailable`."""

    def letters(self, at: TopicPartition) -> Generator[Letter, None, None]:
        """Yield the open letters of a partition as of the call, in order; blocks.

        Whatever was committed before the call counts. Orders may be given while it runs.
        """
        ...

    async def open(self, at: TopicPartition) -> LetterSession:
        """Open a session. Letters that are read afterwards are not settled by earlier ones."""
        ...


def settlement(at: TopicPartition, settled: Sequence[SettledLetter]) -> ProducerRecord:
    """Return the message that settles letters of a partition."""
    return ProducerRecord(at[0], at[1], encode_settled(settled), SETTLED_HEADERS)


@dataclass(slots=True)
class MemoryLetterLog:
    """In-memory `LetterLog`; `log` as that of `MemoryTransactionalProducer`, `times` per offset."""

    log: dict[tuple[TopicName, int], list[ProducerRecord]]
    times: Mapping[int, Millis] = field(default_factory=dict)
    epochs: dict[TopicPartition, int] = field(default_factory=dict)

    def letters(self, at: TopicPartition) -> Generator[Letter, None, None]:
        records = list(self.log.get(at, ()))
        done = {
            each.offset
            for record in records
            for each in settled_letters(record.headers, record.value) or ()
        }
        for offset, record in enumerate(records):
            if offset in done or settled_letters(record.headers, record.value) is not None:
                continue
            written = self.times.get(offset, Millis(0))
            yield Letter(at, Offset(offset), written, origin_of(record.headers), record.value)

    async def open(self, at: TopicPartition) -> MemoryLetterSession:
        epoch = self.epochs[at] = self.epochs.get(at, 0) + 1
        return MemoryLetterSession(self, at, epoch)


@dataclass(slots=True)
class MemoryLetterSession:
    """See `LetterSession`."""

    owner: MemoryLetterLog
    at: TopicPartition
    epoch: int

    async def commit(
        self,
        messages: Sequence[ProducerRecord],
        settled: Sequence[SettledLetter],
        deadline_s: float,
    ) -> None:
        require_in_time(deadline_s)
        if self.owner.epochs[self.at] != self.epoch:
            raise TransactionAborted("a later session fenced this one")
        for message in (*messages, settlement(self.at, settled)):
            self.owner.log.setdefault((message.topic, message.partition), []).append(message)

    def close(self) -> None:
        """Nothing is held."""
