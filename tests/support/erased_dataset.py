"""A branch with one source dataset, some keys of which are erased, in a real Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.connections import erasures
from fennel_core.connections.postgres import Pool
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.vocab.ids import DatasetName, TopicName, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from tests.support import ingest_world
from tests.support.history_world import TOPIC

WORKSPACE: Final = WorkspaceId("w")
DATASET: Final = DatasetName("Users")
RAW: Final = ingest_world.binding().raw_topic
SCHEMA: Final = Schema((Field("k", Int()),), (), "at")


CLICKS: Final = TopicName("w.topic.clicks.3")
KEYLESS: Final = Schema((), (Field("k", Int()),), "at")
ACCOUNTS: Final = TopicName("w.topic.accounts.4")
HISTORY_US: Final = 86_400_000_000


async def commit_dataset(
    connections: Pool, partitions: int, *, is_source: bool = True, clicks: bool = False
) -> None:
    """Store a branch with the dataset, whose topic is `history_world.TOPIC`.

    `clicks`: and with one without a key on the topic `CLICKS`, and one with a key on `ACCOUNTS`,
    which keep their rows for a day.
    """
    source = replace(ingest_world.binding(), topic=TOPIC, schema=SCHEMA)
    view = DatasetView(DATASET, 1, SCHEMA, TOPIC, None, True, True, ("k",), is_source)
    other = DatasetView(
        DatasetName("Clicks"), 1, KEYLESS, CLICKS, None, True, True, (), True, HISTORY_US
    )
    accounts = DatasetView(
        DatasetName("Accounts"), 1, SCHEMA, ACCOUNTS, None, True, True, ("k",), True, HISTORY_US
    )
    datasets = (view, other, accounts) if clicks else (view,)
    catalog = replace(ingest_world.catalog(source), datasets=datasets)
    async with connections.connection() as connection:
        await connection.execute(
            "INSERT INTO workspace (name, partitions) VALUES ('w', %s)", (partitions,)
        )
        await connection.execute(
            "INSERT INTO commit (id, workspace, branch, state, digest, options, catalog, "
            "finished_at) VALUES ('c', 'w', 'main', '', '', '{}', %s, now())",
            (stored_names.dumps(catalog),),
        )
        await connection.execute(
            "INSERT INTO branch (workspace, name, target, serving) VALUES ('w', 'main', 'c', 'c')"
        )
        for number, topic in enumerate((TOPIC, CLICKS, ACCOUNTS)[: len(datasets)], 1):
            await connection.execute(
                "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title, "
                "blueprint) VALUES (%s, 'w', 'topic', %s, %s, 'live', '', '')",
                (topic, topic.split(".")[2], number),
            )


def longer_version(times: int) -> Catalog:
    """Return a version with the dataset of `CLICKS` alone, which keeps its rows so much longer."""
    view = DatasetView(
        DatasetName("Clicks"), 1, KEYLESS, CLICKS, None, True, True, (), True, times * HISTORY_US
    )
    source = replace(ingest_world.binding(), topic=CLICKS, schema=KEYLESS)
    return replace(ingest_world.catalog(source), datasets=(view,))


async def accept(connections: Pool, seconds_ago: int = 0) -> None:
    """Record that the workspace accepted rows last so many seconds ago."""
    async with connections.connection() as connection:
        await connection.execute(
            "INSERT INTO ingest_clock (workspace, hlc, rows_at) "
            "VALUES ('w', 0, now() - make_interval(secs => %s)) "
            "ON CONFLICT (workspace) DO UPDATE SET rows_at = excluded.rows_at",
            (seconds_ago,),
        )


async def erase(connections: Pool, keys: Sequence[int]) -> None:
    """Erase keys of the dataset."""
    frame = pl.DataFrame({"k": keys}, schema={"k": pl.Int64})
    await erasures.add(connections, WORKSPACE, DATASET, ("k",), key_bytes(frame, ("k",)))
