"""Every dead letter is counted once, whatever happens to the servers that count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

import pytest
from structlog.testing import capture_logs

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.dead_letters import counting
from fennel_core.dead_letters.counting import LogRange, count_new_letters
from fennel_core.dead_letters.counts import CountKey, DeadLetterMessage
from fennel_core.dead_letters.memory import MemoryDeadLetterCounts
from fennel_core.definition.dead_letter_check import DeadLetterCheck
from fennel_core.telemetry import metrics
from fennel_core.vocab.dead_letters import INGEST, DeadLetterKind, DeadLetterOrigin
from fennel_core.vocab.ids import (
    Millis,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)

TOPIC = TopicName("shop.dead.x.1")
SOURCES = tuple((TOPIC, PartitionIndex(part)) for part in range(2))
ORIGINS = (
    DeadLetterOrigin(DeadLetterKind.NOT_ADMITTED, INGEST, "Users", "Field `age` not found"),
    DeadLetterOrigin(DeadLetterKind.USER_CODE, "shop.job.a.1", "Orders.clean: transform", "boom"),
)


@dataclass
class MemoryLetters:
    """`DeadLetterLog`; offsets between messages belong to markers and aborted transactions.

    `fails_at`: the number of the message at which the next read is cut off.
    """

    messages: dict[TopicPartition, list[DeadLetterMessage]] = field(
        default_factory=lambda: {source: [] for source in SOURCES}
    )
    starts: dict[TopicPartition, Offset] = field(default_factory=dict)
    ends: dict[TopicPartition, Offset] = field(default_factory=dict)
    fails_at: int | None = None

    def write(self, source: TopicPartition, rows: int, origin: DeadLetterOrigin) -> None:
        at = self.ends.get(source, Offset(0))
        self.messages[source].append(DeadLetterMessage(at, rows, origin, Millis(at)))
        self.ends[source] = Offset(at + 2)

    def bounds(self, topics: Mapping[TopicName, int]) -> Mapping[TopicPartition, LogRange]:
        return {
            source: LogRange(self.starts.get(source, Offset(0)), end)
            for source, end in self.ends.items()
            if source[0] in topics
        }

    def read(self, source: TopicPartition, wanted: LogRange) -> Iterator[DeadLetterMessage]:
        for number, message in enumerate(self.messages[source]):
            if self.fails_at == number:
                self.fails_at = None
                raise SystemUnavailable("Kafka: no response")
            if wanted.first <= message.offset < wanted.end:
                yield message


def living_topic() -> MemoryDeadLetterCounts:
    return MemoryDeadLetterCounts({TOPIC: (WorkspaceId("shop"), len(SOURCES))})


@pytest.mark.parametrize("seed", range(40))
async def test_every_letter_is_counted_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of several servers, cut off and repeated, in any order with writes."""
    dice = Random(seed)  # noqa: S311  # repeatable, and no secret
    monkeypatch.setattr(counting, "MESSAGES_PER_PASS", dice.choice([1, 2, 100]))
    counts, letters = living_topic(), MemoryLetters()
    stale = MemoryDeadLetterCounts(counts.living)
    written = dict.fromkeys(ORIGINS, 0)
    for _ in range(30):
        for _ in range(dice.randrange(4)):
            origin, rows = dice.choice(ORIGINS), dice.randrange(1, 5)
            letters.write(dice.choice(SOURCES), rows, origin)
            written[origin] += rows
        if dice.random() < 0.3:
            letters.fails_at = dice.randrange(5)
        # A server that read the positions earlier than it writes finds another server's.
        overtaken = dice.random() < 0.4
        monkeypatch.setattr(
            counts,
            "positions",
            stale.positions if overtaken else type(stale).positions.__get__(counts),
        )
        try:
            await count_new_letters(counts, letters)
        except SystemUnavailable:
            continue
    monkeypatch.undo()
    letters.fails_at = None
    while await count_new_letters(counts, letters):
        pass
    found = {each.key: each.count.rows for each in await counts.read()}
    assert found == {
        CountKey(origin.writer, origin.subject, origin.kind): rows
        for origin, rows in written.items()
        if rows
    }


async def test_letters_that_are_deleted_before_they_are_counted_are_an_error() -> None:
    counts, letters = living_topic(), MemoryLetters()
    for _ in range(3):
        letters.write(SOURCES[0], 1, ORIGINS[0])
    letters.starts[SOURCES[0]] = Offset(3)
    with capture_logs() as logs:
        assert await count_new_letters(counts, letters) == 1
    assert [(entry["first"], entry["next"]) for entry in logs] == [(0, 3)]
    letters.starts[SOURCES[0]] = letters.ends[SOURCES[0]]
    assert await count_new_letters(counts, letters) == 0


async def test_the_metric_and_the_log_say_what_became_a_dead_letter() -> None:
    counts, letters = living_topic(), MemoryLetters()
    letters.write(SOURCES[0], 2, ORIGINS[0])
    check = DeadLetterCheck(counts, letters)
    with capture_logs() as logs:
        await check.check_once()
    assert logs == [], "a server that starts reports what is new from then on"
    letters.write(SOURCES[1], 3, ORIGINS[0])
    with capture_logs() as logs:
        await check.check_once()
        await check.check_once()
    assert [(entry["subject"], entry["rows"], entry["reason"]) for entry in logs] == [
        ("Users", 3, "Field `age` not found")
    ]
    line = 'fennel_dead_letter_rows{kind="not-admitted",subject="Users",workspace="shop"} 5.0'
    assert line in metrics.render().decode()


async def test_a_check_without_kafka_is_repeated() -> None:
    counts, letters = living_topic(), MemoryLetters()
    letters.write(SOURCES[0], 2, ORIGINS[0])
    letters.fails_at = 0
    check = DeadLetterCheck(counts, letters)
    with capture_logs() as logs:
        await check.check_once()
    assert [entry["log_level"] for entry in logs] == ["warning"]
    await check.check_once()
    assert [each.count.rows for each in await counts.read()] == [2]
