"""A sink over real stores: files of history, the platform's log and an external cluster, with
writers that are abandoned at any step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import uuid
from collections.abc import Mapping, Sequence

import polars as pl
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.connections import offsets, s3
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.installation import installation_objects, installation_of
from fennel_core.connections.kafka import client_config
from fennel_core.connections.postgres import Pool, pool
from fennel_core.history import parquet
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.roll import object_key
from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice, plan_slices
from fennel_core.settings.model import Settings
from fennel_core.sinks import kafka as sinks_kafka
from fennel_core.sinks import reader
from fennel_core.sinks.debezium import ChangeSource, DebeziumForm
from fennel_core.sinks.errors import SinkAhead, SinkRowsLost
from fennel_core.sinks.kafka import KafkaPositionCopy, KafkaSinkLog, KafkaSinkSession
from fennel_core.sinks.reader import TopicVersions
from fennel_core.sinks.writer import NO_ERASURES, SinkWriter
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName
from fennel_core.vocab.versions import encode_frame
from tests.support.external_topics import committed, created, external
from tests.support.kafka import secured_kafka
from tests.support.s3 import S3Server
from tests.support.sink_world import USERS, frame

__all__ = ["secured_kafka"]
PARTS = 2
MESSAGES = 60
"""Per partition; the first third is in history only, the second in history and the log."""
SEED = 86


def messages(part: int) -> list[pl.DataFrame]:
    """Return messages: each adds two versions of three keys, and corrects an earlier one."""
    found = []
    for n in range(MESSAGES):
        first = 2 * n
        versions = [
            (part + PARTS * (number % 3), number, number, number, 1)
            for number in (first, first + 1)
        ]
        if n:
            number = first - 1
            old = (part + PARTS * (number % 3), number, number, number)
            versions += [(*old, -1), (old[0], 1000 + number, number, number, 1)]
        found.append(frame(versions))
    return found


def expected() -> dict[bytes, list[tuple[str, int | None, int | None]]]:
    """Return the events of each key, in order, made of the definition of `messages`."""
    found: dict[bytes, list[tuple[str, int | None, int | None]]] = {}
    for part in range(PARTS):
        for n in range(MESSAGES):
            first = 2 * n
            changes: list[tuple[int, str, int | None, int]] = []
            if n:
                changes.append((first - 1, "u", first - 1, 1000 + first - 1))
            changes += [(number, "c", None, number) for number in (first, first + 1)]
            for number, op, old, new in changes:
                key = json.dumps({"user": part + PARTS * (number % 3)}).replace(" ", "").encode()
                found.setdefault(key, []).append((op, old, new))
    return found


async def stored(settings: Settings, connections: Pool, topic: TopicName) -> None:
    """Write the messages to the log and two thirds of them to history; shorten the log."""
    admin, producer = AdminClient(client_config(settings)), Producer(client_config(settings))
    wanted = [NewTopic(topic, PARTS, 1), NewTopic(f"{topic}.sink", 1, 1)]
    for made in admin.create_topics(wanted).values():
        made.result(30)
    files = PostgresHistoryFiles(connections)
    objects = installation_objects(settings, connections)
    for part in range(PARTS):
        every = [(Offset(n), encode_frame(each)) for n, each in enumerate(messages(part))]
        for _, value in every:
            producer.produce(topic, value, partition=part)
        for first, end in ((0, 17), (17, 40)):
            rows = parquet.file_frame(every[first:end], USERS.key_names)
            body = parquet.encode_file(rows)
            key = object_key(topic, PartitionIndex(part), Offset(first), uuid.uuid4().hex)
            await objects.put(key, body)
            place = (topic, PartitionIndex(part), Offset(first), Offset(end))
            times = Micros(0), Micros(2 * MESSAGES)
            assert await files.add(HistoryFile(*place, key, rows.height, len(body), *times))
    assert producer.flush(30) == 0
    starts = {(topic, PartitionIndex(part)): Offset(20) for part in range(PARTS)}
    offsets.delete_before(admin, starts, 30)


class Platform:
    """Writers of one sink; the event loop runs beside their threads."""

    def __init__(self, settings: Settings, connections: Pool, topic: TopicName, place: str) -> None:
        self.settings, self._connections = settings, connections
        self.topic, self.place = topic, place
        self._loop = asyncio.get_running_loop()

    def plan(self) -> Sequence[TopicSlice]:
        work = plan_slices(self.settings, self._connections, [self.topic])
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)[self.topic]

    def open(self, following: Mapping[int, int]) -> TopicVersions:
        return TopicVersions(self.settings, "out/users", USERS, self.plan, following)

    def writer(self, installation: str) -> SinkWriter:
        name = TopicName(f"{self.topic}.sink")
        return SinkWriter(
            "out/users",
            USERS,
            DebeziumForm(ChangeSource("out", "w", "Users", USERS), lambda: 7),
            KafkaSinkLog(external(self.settings), self.place, installation, name, self.topic),
            KafkaPositionCopy(self.settings, name, self.topic),
            self.open,
        )


def killed_often(platform: Platform, installation: str) -> int:
    """Write everything with writers that are abandoned, or run at once; return how many ended."""
    chance, ended, idle = random.Random(SEED), 0, 0  # noqa: S311  # a seeded choice of faults
    writers = [platform.writer(installation)]
    while idle < 2:
        writer = chance.choice(writers)
        action = chance.random()
        if action < 0.15:
            writers.append(platform.writer(installation))  # a zombie stays behind
        elif action < 0.3 and writer._session is not None:
            # Dies between what it sent and its commit.
            session = writer._session
            assert isinstance(session, KafkaSinkSession)
            with contextlib.suppress(KafkaException):  # it may be fenced already
                session._producer.begin_transaction()
                session._producer.produce(platform.place, b"half", key=b"half")
                session._producer.flush(30)
            writers.remove(writer)
            ended += 1
        writers = writers or [platform.writer(installation)]
        try:
            idle = idle + 1 if writers[-1].step(NO_ERASURES).idle else 0
        except ConnectionsError:
            ended += 1
    for writer in writers:
        writer.close()
    return ended


async def test_each_change_is_written_once_from_history_and_log(
    s3_server: S3Server,
    secured_kafka: Settings,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "MAX_ROWS", 10)
    monkeypatch.setattr(reader, "MAX_MESSAGES", 3)
    monkeypatch.setattr(reader, "WAIT_S", 0.5)
    monkeypatch.setattr(sinks_kafka, "COPY_EVERY_S", 0.0)
    bucket = f"test-{uuid.uuid4().hex[:8]}"
    access = {name: getattr(s3_server, name) for name in S3Server.__dataclass_fields__}
    settings = secured_kafka.model_copy(update=access | {"s3_bucket": bucket})
    s3.ensure_bucket(s3.client(settings), bucket)
    topic = TopicName(f"w.topic.{uuid.uuid4().hex}.1")
    place = created(settings)
    async with pool(database, name="test", size=2) as connections:
        await stored(settings, connections, topic)
        platform = Platform(settings, connections, topic, place)
        installation = str(await installation_of(connections))
        ended = await asyncio.to_thread(killed_often, platform, installation)
        assert ended > 3, "writers were killed"
        found: dict[bytes | None, list[tuple[str, int | None, int | None]]] = {}
        for key, values in (await asyncio.to_thread(committed, settings, place)).items():
            for value in values:
                assert value is not None, "nothing is deleted"
                event = json.loads(value)
                old, new = event["before"], event["after"]
                images = (old and old["age"], new and new["age"])
                found.setdefault(key, []).append((event["op"], *images))
        assert found == expected()
        with pytest.raises(SinkAhead, match="restored to an earlier time"):
            await asyncio.to_thread(platform.open, {0: MESSAGES + 5})
        await connections_without_history(connections, topic)
        with pytest.raises(SinkRowsLost, match="records 3 to 19 of partition 0"):
            await asyncio.to_thread(platform.open, {0: 3, 1: 30})


async def connections_without_history(connections: Pool, topic: TopicName) -> None:
    await PostgresHistoryFiles(connections).remove([topic])
