"""The contract of dead-letter topics, in memory and over Kafka's transactions."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.dead_letters.counting import LogRange
from fennel_core.dead_letters.counts import count_messages
from fennel_core.dead_letters.kafka import KafkaDeadLetters
from fennel_core.ingest.store import ProducerRecord, boot_s
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.topics import TopicSpec
from fennel_core.redrive.kafka import KafkaLetterLog
from fennel_core.redrive.store import LetterLog, MemoryLetterLog
from fennel_core.settings.model import Settings
from fennel_core.vocab.dead_letters import (
    INGEST,
    DeadLetterKind,
    DeadLetterOrigin,
    DeadLetterTarget,
    SettledLetter,
)
from fennel_core.vocab.ids import Identity, Offset, PartitionIndex, TopicName, TopicPartition
from fennel_core.vocab.versions import encode_frame

ORIGIN = DeadLetterOrigin(
    DeadLetterKind.NOT_ADMITTED,
    INGEST,
    "Users",
    "`ß` is no number",
    "Kafka topic `orders`[0] at 3",
    DeadLetterTarget(TopicName("w.topic.users.1"), Identity("users"), "shop/orders"),
)


@pytest.fixture
def at() -> TopicPartition:
    return TopicName(f"t{uuid.uuid4().hex[:12]}.dead.x.1"), PartitionIndex(0)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.platform)])
async def log(request: pytest.FixtureRequest, at: TopicPartition) -> AsyncIterator[LetterLog]:
    if request.param == "memory":
        yield MemoryLetterLog({})
        return
    request.getfixturevalue("infra")
    topics = KafkaTopicAdmin(Settings())
    await topics.create([TopicSpec(at[0], AssetKind.DEAD, 1)])
    with ThreadPoolExecutor(4) as threads:
        yield KafkaLetterLog(Settings(), threads)
    await topics.delete([at[0]])


def letter(at: TopicPartition, rows: int) -> ProducerRecord:
    value = encode_frame(pl.DataFrame({"row": ["{}"] * rows}))
    return ProducerRecord(*at, value, ORIGIN.headers())


def settled(offset: int, rows: int) -> SettledLetter:
    return SettledLetter(offset, INGEST, "Users", DeadLetterKind.NOT_ADMITTED, rows, 0, 0)


def soon() -> float:
    return boot_s() + 60


async def test_letters_are_read_until_they_are_settled(log: LetterLog, at: TopicPartition) -> None:
    assert list(log.letters(at)) == []
    session = await log.open(at)
    await session.commit([letter(at, 2), letter(at, 3)], [], soon())
    first, second = log.letters(at)
    assert (first.rows, second.rows, second.source) == (2, 3, "shop/orders")
    assert first.origin == ORIGIN
    await session.commit([letter(at, 4)], [settled(first.offset, 2)], soon())
    assert [each.rows for each in log.letters(at)] == [3, 4]
    session.close()


async def test_a_session_that_another_one_fenced_settles_nothing(
    log: LetterLog, at: TopicPartition
) -> None:
    first = await log.open(at)
    await first.commit([letter(at, 1)], [], soon())
    (only,) = log.letters(at)
    second = await log.open(at)
    with pytest.raises((TransactionAborted, TransactionOutcomeUnknown)):
        await first.commit([letter(at, 9)], [settled(only.offset, 1)], soon())
    first.close()
    assert [each.rows for each in log.letters(at)] == [1]
    await second.commit([], [settled(only.offset, 1)], soon())
    assert list(log.letters(at)) == []
    second.close()


async def test_after_its_deadline_an_order_settles_nothing(
    log: LetterLog, at: TopicPartition
) -> None:
    session = await log.open(at)
    with pytest.raises(TransactionAborted):
        await session.commit([letter(at, 1)], [], boot_s() - 1)
    session.close()
    assert list(log.letters(at)) == []


@pytest.mark.parametrize("log", [pytest.param("kafka", marks=pytest.mark.platform)], indirect=True)
async def test_the_counts_have_letters_and_what_was_settled(
    log: LetterLog, at: TopicPartition
) -> None:
    session = await log.open(at)
    await session.commit([letter(at, 2), letter(at, 3)], [], soon())
    first, _ = log.letters(at)
    await session.commit([], [settled(first.offset, 2)], soon())
    session.close()
    letters = KafkaDeadLetters(Settings())
    found = letters.bounds({at[0]: 1})[at]
    ((key, count),) = count_messages(letters.read(at, LogRange(Offset(0), found.end))).items()
    assert (key.subject, count.rows, count.replayed, count.open) == ("Users", 5, 2, 3)
