"""History that is written and read in the test's process, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from fennel_core.connections import s3
from fennel_core.connections.postgres import Pool
from fennel_core.dataframes.datasource import FennelReader, open_log, open_read, schema_of
from fennel_core.dataframes.query_log import QueryLogReader, parse_log_options, read_schema
from fennel_core.dataframes.read_request import parse_options
from fennel_core.history.backlog import Backlog, RollRule
from fennel_core.history.kafka import TopicReader
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.roll import RollPlan, TopicLayout, roll
from fennel_core.history.topics import HistoryTopics
from fennel_core.history.writer import BatchPublisher, HistoryWriter
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import TopicName, TopicPartition
from tests.support.installation import own_prefix


@dataclass(frozen=True)
class Hand:
    """Rolls in this process."""

    settings: Settings

    async def roll(
        self,
        due: Mapping[TopicPartition, Backlog],
        layouts: Mapping[TopicName, TopicLayout],
        publisher: BatchPublisher,
    ) -> None:
        ends = {place: backlog.end for place, backlog in due.items()}
        plan = RollPlan(await publisher.history_ends(list(ends)), ends, layouts, file_bytes=20_000)
        log, client = TopicReader(self.settings), s3.client(self.settings)
        root = own_prefix(self.settings)

        def put(key: str, body: bytes) -> None:
            assert s3.put_new(client, self.settings.s3_bucket, root + key, body)

        messages = (
            message
            for place, each in due.items()
            for message in log.tail(place, each.start, each.end)
        )
        await publisher.publish(
            await asyncio.to_thread(lambda: list(roll(messages, plan, put))), ends
        )


@dataclass(frozen=True)
class TopicsOf:
    """The topics whose names have a prefix."""

    topics: HistoryTopics
    prefix: str

    async def with_history(self) -> Mapping[TopicName, TopicLayout]:
        found = await self.topics.with_history()
        return {topic: each for topic, each in found.items() if topic.startswith(self.prefix)}

    async def alive(self) -> Sequence[TopicName]:
        return await self.topics.alive()


async def roll_topics(settings: Settings, pool: Pool, prefix: str = "") -> int:
    """Bring everything that is on the topics into history; return the number of new files."""
    writer = HistoryWriter(
        PostgresHistoryFiles(pool),
        TopicsOf(HistoryTopics(pool), prefix),
        TopicReader(settings).bounds,
        Hand(settings),
        RollRule(1, 0),
        lambda: 0.0,
    )
    return (await writer.run_pass()).files


def read_rows(settings: Settings, options: dict[str, str]) -> list[tuple[Any, ...]]:
    """Read as Spark does: plan, then every partition on its own."""
    now = datetime.now(UTC)
    if "query_log" in options:
        wanted = parse_log_options(options, now)
        log = open_log(wanted, lambda: settings)
        return _rows_of(QueryLogReader(log, wanted.selection, read_schema(log, wanted.selection)))
    want = parse_options(options, now)
    opened = open_read(want, lambda: settings)
    return _rows_of(FennelReader(opened, schema_of(opened.plan), want.part_rows))


def _rows_of(reader: FennelReader | QueryLogReader) -> list[tuple[Any, ...]]:
    tables = [
        pa.Table.from_batches([batch])
        for part in reader.partitions()
        for batch in reader.read(part)
    ]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]
