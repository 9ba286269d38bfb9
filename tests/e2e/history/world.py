"""Topics full of signed versions on real Kafka, and the history writer as a process that a test may
kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import urllib.request
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.apps.local.status_tables import history_by_topic
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.connections import s3
from fennel_core.connections.kafka import client_config, consumer_config, producer_config
from fennel_core.connections.postgres import Pool
from fennel_core.history import parquet
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Field, Int, Optional, Str
from fennel_core.vocab.ids import DatasetName, PartitionIndex, TopicName, WorkspaceId
from fennel_core.vocab.keys import key_bytes, partition_of
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import FORMAT_HEADER, arrow_schema, decode, encode
from tests.support.installation import own_prefix
from tests.support.s3 import object_keys

WORKSPACE = WorkspaceId("shop")
TOKEN = "a-token-of-the-test"  # noqa: S105  # a fixed value of a test
PARTITIONS = 3
KEYED = Schema((Field("user", Int()),), (Field("city", Optional(Str())),), "at")
KEYLESS = Schema((), (Field("amount", Int()),), "at")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


@dataclass
class World:
    """Topics, rows of the database and settings of one test. `rows`: every committed signed
    version, by dataset.
    """

    settings: Settings
    pool: Pool
    run: str
    rng: random.Random
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"Homes": [], "Events": []})
    hlc: int = 0

    @property
    def files(self) -> PostgresHistoryFiles:
        return PostgresHistoryFiles(self.pool)

    def topic(self, dataset: str) -> TopicName:
        return TopicName(f"{WORKSPACE}.topic.{dataset.lower()}{self.run}.1")

    def environment(self) -> dict[str, str]:
        changed = {
            "FENNEL_POSTGRES_DSN": self.settings.postgres_dsn.get_secret_value(),
            "FENNEL_S3_BUCKET": self.settings.s3_bucket,
            "FENNEL_DATA_DIR": str(self.settings.data_dir),
            "FENNEL_HISTORY_PORT": str(self.settings.history_port),
            "FENNEL_HISTORY_TRIGGER_S": "0.3",
            "FENNEL_HISTORY_MAX_WAIT_S": "0.1",
            "FENNEL_HISTORY_FILE_BYTES": "30000",
            "FENNEL_HISTORY_BATCH_RECORDS": "400",
        }
        return {**os.environ, **changed}

    async def open(self) -> None:
        """The topics, and a branch that serves both datasets."""
        admin = AdminClient(client_config(self.settings))
        for made in admin.create_topics(
            [NewTopic(self.topic(name), PARTITIONS, 1) for name in self.rows]
        ).values():
            made.result(10)
        views = tuple(
            DatasetView(DatasetName(name), 1, schema, self.topic(name), None, False, True, (), True)
            for name, schema in (("Homes", KEYED), ("Events", KEYLESS))
        )
        total = DatasetView(DatasetName("Total"), 1, KEYED, None, None, True, False, (), False)
        catalog = stored_names.dumps(Catalog(WORKSPACE, (*views, total), (), (), PARTITIONS))
        async with self.pool.connection() as connection, connection.transaction():
            await connection.execute("INSERT INTO workspace (name) VALUES (%s)", (WORKSPACE,))
            await connection.execute(
                "INSERT INTO token (digest, workspace, role)"
                " VALUES (sha256(%s::text::bytea), %s, 'admin')",
                (TOKEN, WORKSPACE),
            )
            await connection.execute(
                "INSERT INTO commit (id, workspace, branch, state, digest, request, "
                "options, catalog)"
                " VALUES ('c1', %s, 'main', 'finished', '', '', '{}', %s)",
                (WORKSPACE, catalog),
            )
            await connection.execute(
                "INSERT INTO branch (workspace, name, target, serving) VALUES (%s, "
                "'main', 'c1', 'c1')",
                (WORKSPACE,),
            )
            for name in self.rows:
                topic = self.topic(name)
                await connection.execute(
                    "INSERT INTO asset (id, workspace, kind, identity, incarnation, "
                    "state, title, blueprint)"
                    " VALUES (%s, %s, 'topic', %s, 1, 'live', '', '')",
                    (topic, WORKSPACE, topic),
                )

    def write(self, rows: int) -> None:
        """Write transactions with upserts, tombstones, retractions and events; some are aborted or
        hold a control record.
        """
        producer = Producer(producer_config(self.settings, f"test-{self.run}-{self.hlc}"))
        producer.init_transactions(10)
        written = 0
        while written < rows:
            producer.begin_transaction()
            batches = [("Homes", self._homes()), ("Events", self._events())]
            for name, batch in batches:
                self._produce(producer, name, batch)
            if self.rng.random() < 0.3:
                part = self.rng.randrange(PARTITIONS)
                producer.produce(
                    self.topic("Homes"), b"\x01", partition=part, headers=[("c", b"f")]
                )
            if self.rng.random() < 0.1:
                producer.flush(10)  # otherwise aborted records are never sent
                producer.abort_transaction(10)
                continue
            producer.commit_transaction(10)
            for name, batch in batches:
                self.rows[name] += batch
                written += len(batch)

    def _homes(self) -> list[Row]:
        taken = [
            row for row in self.rows["Homes"][-400:] if row["__sign"] > 0 and not row.get("taken")
        ]
        back = self.rng.sample(taken, min(len(taken), 3))
        batch = [{**row, "__sign": -1} for row in back]
        for row in back:
            row["taken"] = True
        for _ in range(self.rng.randint(1, 180)):
            gone = self.rng.random() < 0.05
            city = None if gone else self.rng.choice(["Rome", "Oslo", "Bonn", None])
            batch.append(
                {
                    "user": self.rng.randrange(500),
                    "city": city,
                    "at": self._time(),
                    "__sign": 1,
                    "__tombstone": gone,
                }
            )
        return self._stamped(batch)

    def _events(self) -> list[Row]:
        amounts = [self.rng.randrange(1000) for _ in range(self.rng.randint(1, 180))]
        return self._stamped(
            [
                {"amount": amount, "at": self._time(), "__sign": 1, "__tombstone": False}
                for amount in amounts
            ]
        )

    def _time(self) -> datetime:
        return BEGIN + timedelta(seconds=self.rng.randrange(1000))

    def _stamped(self, batch: list[Row]) -> list[Row]:
        self.hlc += 1
        positions = stamp(Hlc(self.hlc), 0, len(batch)).to_pylist()
        return [{"__pos": position, **row} for position, row in zip(positions, batch, strict=True)]

    def _produce(self, producer: Producer, name: str, batch: list[Row]) -> None:
        schema = KEYED if name == "Homes" else KEYLESS
        table = pa.Table.from_pylist(batch, schema=arrow_schema(schema))
        frame = decode(encode(table))
        if schema.keyed:
            parts = [partition_of(key, PARTITIONS) for key in key_bytes(frame, schema.key_names)]
        else:
            parts = [row % PARTITIONS for row in range(len(batch))]
        for part in sorted(set(parts)):
            value = encode(table.filter(pa.array([each == part for each in parts])))
            producer.produce(self.topic(name), value, partition=part, headers=[FORMAT_HEADER])

    def read(self, name: str, part: int) -> list[tuple[int, pl.DataFrame]]:
        """Return the data records of a partition as a plain consumer of committed records reads
        them.
        """
        consumer, found = Consumer(consumer_config(self.settings)), []
        consumer.assign([TopicPartition(self.topic(name), part, 0)])
        while (message := consumer.poll(10)) is not None and message.error() is None:
            if not any(header == "c" for header, _ in message.headers() or []):
                found.append((message.offset(), decode(message.value())))
        consumer.close()
        return found

    def told(self) -> dict[str, dict[str, Any]]:
        """Return the writer's report per topic; empty while it does not respond."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.settings.history_port}/topics", timeout=5
            ) as answer:
                return history_by_topic(json.load(answer))
        except OSError:
            return {}

    def objects(self, name: str = "") -> set[str]:
        root = own_prefix(self.settings)
        prefix = f"{root}history/{self.topic(name)}/" if name else f"{root}history/"
        keys = object_keys(s3.client(self.settings), self.settings.s3_bucket, prefix)
        return {key.removeprefix(root) for key in keys}

    async def history(
        self, name: str, part: int
    ) -> tuple[tuple[HistoryFile, ...], list[tuple[int, pl.DataFrame]]]:
        """Return the files of a dataset's partition and their content by message."""
        return await self.history_of(self.topic(name), part)

    async def history_of(
        self, topic: TopicName, part: int
    ) -> tuple[tuple[HistoryFile, ...], list[tuple[int, pl.DataFrame]]]:
        """Return the files of a topic's partition and their content by message."""
        files = await self.files.files(topic, PartitionIndex(part))
        client, found = s3.client(self.settings), []
        for file in files:
            body = s3.get(
                client, self.settings.s3_bucket, own_prefix(self.settings) + file.object_key
            )
            assert body is not None, f"{file.object_key} is missing"
            assert len(body) == file.size_bytes
            frame = parquet.decode_file(body)
            assert frame.height == file.row_count
            assert (
                frame.is_empty()
                or frame[parquet.OFFSET]
                .is_between(file.first_offset, file.next_offset, closed="left")
                .all()
            )
            for (offset,), rows in frame.group_by(parquet.OFFSET, maintain_order=True):
                found.append((offset, rows.drop(parquet.OFFSET, parquet.GROUP)))
        return files, sorted(found, key=lambda each: each[0])


@asynccontextmanager
async def writer(world: World) -> AsyncIterator[asyncio.subprocess.Process]:
    """The history writer as a process that ends with the test."""
    log = Path(world.settings.data_dir) / f"writer-{uuid.uuid4().hex[:6]}.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fennel_core.apps.history"),
            env=world.environment(),
            stdout=out,
            stderr=out,
        )
    try:
        yield process
    except BaseException:
        print(log.read_text()[-6000:])
        raise
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(20):
                    await process.wait()
            except TimeoutError:
                process.kill()


def expected(rows: list[Row], schema: Schema, at: datetime) -> list[tuple[Any, ...]]:
    """Return the naive content at a time: added rows less retracted ones; of a keyed dataset the
    last version of each key.
    """
    left: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row["at"] <= at:
            version = (
                row["at"],
                row["__pos"],
                row["__tombstone"],
                *(row[name] for name in schema.names),
            )
            left[version] = left.get(version, 0) + row["__sign"]
    versions = sorted(((v, n) for v, n in left.items() if n), key=lambda each: each[0][:2])
    assert all(count == 1 for _, count in versions)
    if not schema.keyed:
        return sorted(version[3:] for version, _ in versions)
    last = {version[3 : 3 + len(schema.keys)]: version for version, _ in versions}
    return sorted((version[3:] for version in last.values() if not version[2]), key=str)
