"""The transactional producer over a modelled client: it ends at its close, and errors are named."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.connections.kafka import FETCH_MAX_BYTES
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.errors import OutputTooLarge, OutputTopicMissing, ProducerFenced
from fennel_core.engine.kafka.producer import KafkaProducer
from fennel_core.vocab.ids import TopicName

ROW = OutgoingRecord(TopicName("target"), 0, b"row")


def error(
    code: int = KafkaError._FAIL, *, retriable: bool = False, abort: bool = False
) -> KafkaException:
    return KafkaException(
        KafkaError(code, "refused", retriable=retriable, txn_requires_abort=abort)
    )


@dataclass(eq=False)
class Client:
    """A librdkafka producer: `commits` are the results of its commit calls, None for success."""

    commits: list[KafkaException | None] = field(default_factory=list)
    undelivered: int | None = None
    purged: bool = False
    aborted: bool = False
    delivery: list[Callable[[], None]] = field(default_factory=list)

    def begin_transaction(self) -> None:
        self.delivery = []

    def produce(self, topic: str, value: bytes, **given: Any) -> None:
        message = SimpleNamespace(
            topic=lambda: topic, partition=lambda: given["partition"], offset=lambda: 7
        )
        failed = None if self.undelivered is None else KafkaError(self.undelivered)
        self.delivery.append(lambda: given["on_delivery"](failed, message))

    def commit_transaction(self, timeout_s: float) -> None:
        for deliver in self.delivery:
            deliver()
        self.delivery = []
        if self.commits and self.commits[0] is not None:
            # No local variable may hold the error: with its traceback it would keep this client.
            raise self.commits.pop(0) or AssertionError
        del self.commits[:1]

    def abort_transaction(self, timeout_s: float) -> None:
        self.aborted = True

    def purge(self, **given: bool) -> None:
        self.purged = True


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def producer(client: Client, threads: ThreadPoolExecutor) -> KafkaProducer:
    given: Any = client
    return KafkaProducer(given, threads, 1.0)


async def test_closing_ends_the_client_although_its_errors_are_still_held(
    threads: ThreadPoolExecutor,
) -> None:
    client = Client(commits=[error(abort=True), error(KafkaError._FENCED), error()])
    made, alive = producer(client, threads), weakref.ref(client)
    del client
    held = []
    for expected in (TransactionAborted, ProducerFenced, TransactionOutcomeUnknown):
        with pytest.raises(expected) as caught:
            await made.commit([ROW])
        held.append(caught)
    await made.close()
    assert alive() is None, "its threads and connections do not wait for a garbage collection"
    assert len(held) == 3


async def test_a_caller_that_is_cancelled_still_closes_the_client() -> None:
    with ThreadPoolExecutor(1) as threads:
        client = Client()
        made, alive = producer(client, threads), weakref.ref(client)
        del client
        busy = asyncio.Event()
        loop, free = asyncio.get_running_loop(), asyncio.Event()
        threads.submit(
            lambda: (
                loop.call_soon_threadsafe(busy.set),
                asyncio.run_coroutine_threadsafe(free.wait(), loop).result(),
            )
        )
        await busy.wait()
        closing = asyncio.create_task(made.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert alive() is not None, "the only thread is busy"
        free.set()
        await asyncio.to_thread(lambda: threads.submit(int).result())
        assert alive() is None


async def test_a_commit_is_resumed_while_its_error_is_retriable(
    threads: ThreadPoolExecutor,
) -> None:
    again = error(KafkaError._TIMED_OUT, retriable=True)
    made = producer(Client(commits=[again, again, None]), threads)
    assert await made.commit([ROW]) == {("target", 0): 8}
    made = producer(Client(commits=[again, again, again]), threads)
    with pytest.raises(TransactionOutcomeUnknown):
        await made.commit([ROW])


async def test_a_topic_that_is_missing_is_named(threads: ThreadPoolExecutor) -> None:
    client = Client(commits=[error(abort=True)], undelivered=KafkaError._UNKNOWN_TOPIC)
    with pytest.raises(OutputTopicMissing, match=r"no partition target\[0\]"):
        await producer(client, threads).commit([ROW])
    assert client.aborted


async def test_a_topic_that_the_client_refuses_at_once_is_missing_too(
    threads: ThreadPoolExecutor,
) -> None:
    client = Client(commits=[error(KafkaError._UNKNOWN_TOPIC)])
    with pytest.raises(OutputTopicMissing, match="of one of the job's outputs"):
        await producer(client, threads).commit([ROW])
    assert client.aborted


async def test_a_record_that_is_too_large_is_refused_before_anything_is_sent(
    threads: ThreadPoolExecutor,
) -> None:
    client = Client()
    large = OutgoingRecord(TopicName("target"), 3, bytes(FETCH_MAX_BYTES))
    with pytest.raises(OutputTooLarge, match=r"target\[3\] exceeds .*one row is too large"):
        await producer(client, threads).commit([ROW, large])
    assert client.delivery == []
