"""Datasets as DataFrames over real history, topics and Spark equal a naive recompute."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from fennel_core.connections import erasures, s3
from fennel_core.history.backlog import Backlog, RollRule
from fennel_core.history.datasource import FennelReader, ReadFailed, parse_options, spark_schema
from fennel_core.history.kafka import TopicReader
from fennel_core.history.roll import RollPlan, TopicLayout, roll
from fennel_core.history.topics import HistoryTopics
from fennel_core.history.writer import BatchPublisher, HistoryWriter
from fennel_core.vocab.ids import DatasetName, TopicName, TopicPartition
from tests.e2e.history.reads import MARK
from tests.e2e.history.world import (
    BEGIN,
    KEYED,
    KEYLESS,
    PARTITIONS,
    TOKEN,
    WORKSPACE,
    World,
    expected,
)
from tests.support.installation import own_prefix

pytestmark = [pytest.mark.platform, pytest.mark.timeout(1800)]


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


async def answers(world: World, *wanted: dict[str, str]) -> list[dict[str, Any]]:
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


def as_rows(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Return rows as JSON has them: times as text without their zone, which Spark omits."""
    plain = [
        [str(v.replace(tzinfo=None)) if isinstance(v, datetime) else v for v in row] for row in rows
    ]
    return sorted(plain, key=str)


async def read(world: World, options: dict[str, str]) -> list[tuple[Any, ...]]:
    """Read as Spark does, without Spark: plan, then every partition on its own."""

    def work() -> list[tuple[Any, ...]]:
        want = parse_options(options, datetime.now(UTC))
        reader = FennelReader(
            world.settings, want, spark_schema(KEYED if want.dataset == "Homes" else KEYLESS)
        )
        tables = [
            pa.Table.from_batches([batch])
            for part in reader.partitions()
            for batch in reader.read(part)
        ]
        return [tuple(row.values()) for table in tables for row in table.to_pylist()]

    return await asyncio.to_thread(work)


async def rolled(world: World, rows: int) -> None:
    """Topics whose rows are in history except for the last ones."""
    await asyncio.to_thread(world.write, rows)
    writer = HistoryWriter(
        world.files,
        HistoryTopics(world.pool),
        TopicReader(world.settings).bounds,
        Hand(world),
        RollRule(1, 0),
        lambda: 0.0,
    )
    assert (await writer.run_pass()).files >= 2 * PARTITIONS
    await asyncio.to_thread(world.write, rows // 3)


async def test_a_dataset_as_of_any_time_is_the_recompute_over_history_and_tail(
    world: World,
) -> None:
    await rolled(world, 6_000)
    for name, schema in (("Homes", KEYED), ("Events", KEYLESS)):
        for seconds in (-1, 0, 300, 998, 5_000):
            at = BEGIN + timedelta(seconds=seconds)
            found = await read(world, {"dataset": name, "token": TOKEN, "as_of": at.isoformat()})
            assert sorted(found, key=str) == sorted(expected(world.rows[name], schema, at), key=str)
    gone = next(row["user"] for row in reversed(world.rows["Homes"]) if row["__sign"] > 0)
    before = await read(world, {"dataset": "Homes", "workspace": WORKSPACE})
    await erasures.add(
        world.pool, WORKSPACE, DatasetName("Homes"), ["user"], [msgspec.msgpack.encode([gone])]
    )
    after = await read(world, {"dataset": "Homes", "workspace": WORKSPACE})
    assert sorted(row for row in before if row[0] != gone) == sorted(after)


async def test_spark_reads_a_dataset_by_name_and_reports_errors(world: World) -> None:
    await rolled(world, 1_000)
    past = BEGIN + timedelta(seconds=300)
    homes = {"dataset": "Homes", "token": TOKEN}
    now, then, refused = await answers(
        world, homes, {**homes, "as_of": past.isoformat()}, {**homes, "dataset": "House"}
    )
    for found, at in ((now, datetime.now(UTC)), (then, past)):
        assert "rows" in found, found["error"][-3000:]
        assert sorted(found["rows"], key=str) == as_rows(expected(world.rows["Homes"], KEYED, at))
    assert now["parts"] == PARTITIONS
    assert now["columns"] == [["user", "bigint"], ["city", "string"], ["at", "timestamp"]]
    assert (
        "unknown dataset `House` in branch `main`; valid datasets: `Events`, `Homes`, `Total`"
        in refused["error"]
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dataset": "House"}, "valid datasets: `Events`, `Homes`, `Total`"),
        ({"dataset": ""}, '.option("dataset", "<name>")'),
        ({"dataset": "Total"}, "is a terminal aggregate"),
        ({"branch": "dev"}, "valid branches: `main`"),
        ({"token": "guessed"}, "unknown token"),
        ({"token": ""}, '.option("token", "<your token>")'),
        ({"token": "", "workspace": "nobody"}, "unknown workspace `nobody`"),
        ({"workspace": "other"}, "the token is for workspace `shop`, not `other`"),
        ({"as_of": "yesterday"}, 'use a form like "2026-05-01T12:00:00Z"'),
        (
            {"asof": "2026"},
            "unknown option `asof`; valid options: dataset, token, workspace, branch, "
            "as_of, env_file",
        ),
    ],
)
async def test_a_read_that_cannot_be_done_names_the_fix(
    world: World, changed: dict[str, str], said: str
) -> None:
    with pytest.raises(ReadFailed) as refused:
        await read(world, {"dataset": "Homes", "token": TOKEN} | changed)
    assert said in str(refused.value)
    assert str(refused.value).endswith("]"), "the message ends with a stable code"
