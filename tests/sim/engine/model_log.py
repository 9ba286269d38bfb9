"""The model of Kafka: transactions that stay open, block readers, time out and are fenced.

The records of a transaction take their offsets when it begins. Readers stop below the first record
of the oldest open transaction. The end of a transaction, committed or aborted, takes one more
offset in each partition it wrote. Aborted records keep their offsets and are never read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from fennel_core.engine.broker import OutgoingRecord, Record
from fennel_core.engine.errors import ProducerFenced
from fennel_core.vocab.ids import Offset, TopicPartition

START = Offset(0)


@dataclass(eq=False, slots=True)
class Transaction:
    id: str
    generation: int
    began_ms: int
    state: str = "open"
    first: dict[TopicPartition, int] = field(default_factory=dict)
    next: dict[TopicPartition, Offset] = field(default_factory=dict)


@dataclass(slots=True)
class _Log:
    entries: list[tuple[Transaction, Record | None]] = field(default_factory=list)
    """A record of None is the end of a transaction."""
    open: list[Transaction] = field(default_factory=list)
    start: Offset = START


class ModelLog:
    """The state of the log, which survives every client."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._logs: dict[TopicPartition, _Log] = {}
        self._generation: dict[str, int] = {}
        self._open: dict[str, Transaction] = {}
        self.listeners: dict[asyncio.Event, None] = {}
        """Set whenever readers may see more."""

    def log(self, source: TopicPartition) -> _Log:
        return self._logs.setdefault(source, _Log())

    def partitions(self) -> list[TopicPartition]:
        return sorted(self._logs)

    def open(self, id_: str) -> int:
        """Open a producer: fence the older ones of this id and abort their open transactions."""
        self._generation[id_] = self._generation.get(id_, 0) + 1
        if id_ in self._open:
            self._end(self._open[id_], "aborted")
        return self._generation[id_]

    def begin(
        self, id_: str, generation: int, records: Sequence[OutgoingRecord], now_ms: int
    ) -> Transaction:
        """Write the records of a transaction; readers do not see them yet."""
        self._require_not_fenced(id_, generation)
        transaction = self._open[id_] = Transaction(id_, generation, now_ms)
        for sent in records:
            source = (sent.topic, sent.partition)
            log = self.log(source)
            if source not in transaction.first:
                transaction.first[source] = len(log.entries)
                log.open.append(transaction)
            control = next((value.decode() for name, value in sent.headers if name == "c"), None)
            log.entries.append((transaction, Record(Offset(len(log.entries)), sent.value, control)))
            transaction.next[source] = Offset(len(log.entries))
        return transaction

    def end(self, transaction: Transaction, state: str) -> None:
        """Commit or abort a transaction."""
        self._require_not_fenced(transaction.id, transaction.generation)
        if transaction.state != "open":
            raise ProducerFenced(f"the transaction of {transaction.id} was ended by the broker")
        self._end(transaction, state)

    def expire(self, now_ms: int) -> None:
        """Abort transactions past their time-out; their producers cannot be used again."""
        for transaction in list(self._open.values()):
            if transaction.began_ms + self._timeout_ms < now_ms:
                self._generation[transaction.id] += 1
                self._end(transaction, "aborted")

    def truncate(self, source: TopicPartition, start: Offset) -> None:
        """Delete the records below `start`."""
        self.log(source).start = start

    def idle(self) -> bool:
        return not self._open

    def stable_end(self, source: TopicPartition) -> Offset:
        log = self.log(source)
        return Offset(min((t.first[source] for t in log.open), default=len(log.entries)))

    def committed(
        self, source: TopicPartition, first: int, stop: int | None = None
    ) -> list[Record]:
        """Return the records that readers of committed records see in [first, stop)."""
        end = self.stable_end(source) if stop is None else min(stop, self.stable_end(source))
        entries = self.log(source).entries[first:end]
        return [
            record
            for transaction, record in entries
            if record is not None and transaction.state == "committed"
        ]

    def _require_not_fenced(self, id_: str, generation: int) -> None:
        if self._generation[id_] != generation:
            raise ProducerFenced(f"a newer producer of {id_} is open")

    def _end(self, transaction: Transaction, state: str) -> None:
        transaction.state = state
        if self._open.get(transaction.id) is transaction:
            del self._open[transaction.id]
        for source in transaction.first:
            log = self.log(source)
            log.open.remove(transaction)
            log.entries.append((transaction, None))
        for listener in self.listeners:
            listener.set()
