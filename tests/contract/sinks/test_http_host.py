"""The process that writes sinks sends history and log to a real endpoint, over real stores."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.connections import s3
from fennel_core.connections.kafka import client_config
from fennel_core.connections.postgres import Pool, pool
from fennel_core.dead_letters.counting import LogRange
from fennel_core.dead_letters.counts import count_messages
from fennel_core.dead_letters.kafka import KafkaDeadLetters
from fennel_core.history.topic_slices import plan_slices
from fennel_core.redrive.kafka import KafkaLetterLog
from fennel_core.redrive.sink_replays import SinkReplay
from fennel_core.settings.model import Settings
from fennel_core.sinks.host import SinkHost, SinkThread
from fennel_core.sinks.positions import SinkRewind
from fennel_core.sinks.postgres import PostgresSinkReplays
from fennel_core.sinks.rewinds import offsets_of, read_times
from fennel_core.sinks.targets import SinkTarget
from fennel_core.sinks.writer import NO_ERASURES
from fennel_core.vocab.dead_letters import message_of
from fennel_core.vocab.ids import DatasetName, Offset, PartitionIndex, TopicName, WorkspaceId
from fennel_core.vocab.versions import encode_frame
from fennel_core.wire.connectors import Http, HttpPath, PlainSecret
from tests.support.http_receivers import Receiver, served
from tests.support.kafka import secured_kafka
from tests.support.polling import eventually
from tests.support.s3 import S3Server
from tests.support.sink_world import USERS, frame

__all__ = ["secured_kafka"]


async def test_a_sink_of_the_host_sends_and_goes_on_in_the_next_process(
    s3_server: S3Server, secured_kafka: Settings, database: str
) -> None:
    access = {name: getattr(s3_server, name) for name in S3Server.__dataclass_fields__}
    bucket, topic = f"test-{uuid.uuid4().hex[:8]}", TopicName(f"w.topic.{uuid.uuid4().hex}.1")
    name, letters = TopicName(f"{topic}.sink"), TopicName(f"{topic}.dead")
    receiver = Receiver(lambda _, body: (422, {"text": "no"}) if b'"age":13' in body else None)
    with served(receiver) as port:
        settings = secured_kafka.model_copy(
            update=access | {"s3_bucket": bucket, "http_sink_private_hosts": (f"127.0.0.1:{port}",)}
        )
        s3.ensure_bucket(s3.client(settings), bucket)
        wanted = [NewTopic(topic, 2, 1), NewTopic(name, 1, 1), NewTopic(letters, 2, 1)]
        admin = AdminClient(client_config(settings))
        for made in admin.create_topics(wanted).values():
            made.result(30)
        producer = Producer(client_config(settings))

        def log(first: int) -> None:
            for n in range(first, first + 10):
                value = encode_frame(frame([(n, n, n, n, 1)]))
                producer.produce(topic, value, partition=n % 2)
            assert producer.flush(30) == 0

        hooks = Http("hooks", PlainSecret(f"http://127.0.0.1:{port}"), "/health", None)
        table = HttpPath(hooks, "/rows", 5, (("X-Team", PlainSecret("ann")),))
        target = SinkTarget(
            WorkspaceId("w"), name, topic, DatasetName("Users"), USERS, table, letters, 2
        )
        async with pool(database, name="test", size=2) as connections:
            for first in (0, 10):
                log(first)
                host = SinkHost(settings, connections)
                host._loop = asyncio.get_running_loop()

                def write(host: SinkHost, rewind: SinkRewind | None = None) -> None:
                    writer = host.writer(target, threading.Event())
                    while not writer.step(NO_ERASURES, rewind).idle:
                        pass
                    writer.close()

                await asyncio.to_thread(write, host)
            assert len(receiver.requests) == 20, "nothing was sent twice"
            planned = await plan_slices(settings, connections, [topic])
            epoch, last = "1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
            places = {
                to: offsets_of(
                    to, "hooks/rows", planned[topic], await read_times(settings)(topic, 2, at_ms)
                )
                for to, at_ms in ((epoch, 0), (last, 4_102_444_800_000))
            }
            assert places == {epoch: {0: 0, 1: 0}, last: {0: 10, 1: 10}}
            await asyncio.to_thread(write, host, SinkRewind(1, {0: 8}, whole=False))
            keys = [key for key, _ in receiver.requests]
            assert len(keys) == 22
            assert set(keys[20:]) <= set(keys[:20]), "sent again, they are known by their keys"
            await assert_letters_are_sent_again(host, target, receiver, connections)
    assert sorted(e["after"]["user"] for e in receiver.events()) == list(range(20))
    assert {path for path, _ in receiver.seen} == {"/rows"}


async def assert_letters_are_sent_again(
    host: SinkHost, target: SinkTarget, receiver: Receiver, connections: Pool
) -> None:
    """Let the endpoint take the row that it refused, and order that it is sent again."""
    assert target.dead_letters is not None
    at = (target.dead_letters, PartitionIndex(1))
    with ThreadPoolExecutor(1) as threads:
        letters = KafkaLetterLog(host._settings, threads)
        (letter,) = await asyncio.to_thread(lambda: list(letters.letters(at)))
        assert (letter.origin.sink, letter.origin.writer) == (target.title, target.name)
        (refused,) = [each for each in receiver.requests if b'"age":13' in each[1]]
        receiver.answers = lambda *_: None
        async with connections.connection() as connection:
            await connection.execute("INSERT INTO workspace (name, partitions) VALUES ('w', 2)")
            await connection.execute(
                "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title, "
                "blueprint) VALUES (%s, 'w', 'sink', 'a', 1, 'live', '', '')",
                (target.name,),
            )
        orders = PostgresSinkReplays(connections)
        message = message_of(letter.origin.source)
        await orders.order([SinkReplay(target.name, at, letter.offset, message)])
        host._replays = await orders.counts()
        thread = SinkThread(host, target)
        thread.start()

        async def over() -> bool:
            return not await orders.counts()

        await eventually(over, within_s=60, what=lambda: str(thread.report))
        thread.stop()
        await asyncio.to_thread(thread.join, 30)
        assert receiver.requests[-1] == refused, "under the key that was refused"
        assert not await asyncio.to_thread(lambda: list(letters.letters(at)))
    log = KafkaDeadLetters(host._settings)
    end = log.bounds({at[0]: 2})[at].end
    ((_, count),) = count_messages(log.read(at, LogRange(Offset(0), end))).items()
    assert (count.rows, count.replayed, count.open) == (1, 1, 0)
