"""History that is written in the test's process, and reads by a Spark program beside it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from fennel_core.connections import s3
from fennel_core.dataframes.datasource import FennelReader, open_log, open_read, schema_of
from fennel_core.dataframes.query_log import QueryLogReader, parse_log_options, read_schema
from fennel_core.dataframes.read_request import parse_options
from fennel_core.history.backlog import Backlog, RollRule
from fennel_core.history.kafka import TopicReader
from fennel_core.history.roll import RollPlan, TopicLayout, roll
from fennel_core.history.topics import HistoryTopics
from fennel_core.history.writer import BatchPublisher, HistoryWriter
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import TopicName, TopicPartition
from tests.e2e.history.reads import MARK
from tests.e2e.history.world import World
from tests.support.installation import own_prefix


class Hand:
    """Write history in this process: these tests are about reading."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def roll(
        self,
        due: Mapping[TopicPartition, Backlog],
        layouts: Mapping[TopicName, TopicLayout],
        publisher: BatchPublisher,
    ) -> None:
        ends = {place: backlog.end for place, backlog in due.items()}
        plan = RollPlan(await publisher.history_ends(list(ends)), ends, layouts, file_bytes=20_000)
        log, client = TopicReader(self._world.settings), s3.client(self._world.settings)

        root = own_prefix(self._world.settings)

        def put(key: str, body: bytes) -> None:
            assert s3.put_new(client, self._world.settings.s3_bucket, root + key, body)

        messages = (
            message
            for place, each in due.items()
            for message in log.tail(place, each.start, each.end)
        )
        await publisher.publish(
            await asyncio.to_thread(lambda: list(roll(messages, plan, put))), ends
        )


async def read(world: World, options: dict[str, str]) -> list[tuple[Any, ...]]:
    """Read as Spark does, without Spark: plan, then every partition on its own."""

    def settings() -> Settings:
        return world.settings

    def work() -> list[tuple[Any, ...]]:
        now = datetime.now(UTC)
        if "query_log" in options:
            wanted = parse_log_options(options, now)
            log = open_log(wanted, settings)
            schema = read_schema(log, wanted.selection)
            return _rows_of(QueryLogReader(log, wanted.selection, schema))
        want = parse_options(options, now)
        opened = open_read(want, settings)
        return _rows_of(FennelReader(opened, schema_of(opened.plan), want.part_rows))

    return await asyncio.to_thread(work)


def _rows_of(reader: FennelReader | QueryLogReader) -> list[tuple[Any, ...]]:
    tables = [
        pa.Table.from_batches([batch])
        for part in reader.partitions()
        for batch in reader.read(part)
    ]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


async def answers(world: World, *wanted: dict[str, str]) -> list[dict[str, Any]]:
    """Return what the program `reads` prints for each of `wanted`."""
    program = (sys.executable, "-m", "tests.e2e.history.reads")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *program, env=world.environment(), stdin=pipe, stdout=pipe, stderr=pipe
    )
    out, errors = await process.communicate(json.dumps(wanted).encode())
    assert process.returncode == 0, errors.decode()[-4000:]
    found: list[dict[str, Any]] = json.loads(
        next(line for line in out.decode().splitlines() if line.startswith(MARK))[len(MARK) :]
    )
    return found


async def roll_all(world: World) -> int:
    """Bring everything that is on the topics into history; return the number of new files."""
    writer = HistoryWriter(
        world.files,
        HistoryTopics(world.pool),
        TopicReader(world.settings).bounds,
        Hand(world),
        RollRule(1, 0),
        lambda: 0.0,
    )
    return (await writer.run_pass()).files
