"""A bench for real slots with two jobs: one copies a source, the other makes a table of it."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job, Output
from fennel_core.connections import postgres
from fennel_core.connections.frames import Channel, RemoteError
from fennel_core.connections.kafka import client_config
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.kafka.broker import KafkaBroker
from fennel_core.engine.slot import run_slot
from fennel_core.operators import spec
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import EngineId, JobId, TopicName, WorkspaceId
from fennel_core.vocab.keys import key_bytes, partition_of
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode, encode, with_meta
from tests.support.polling import eventually

SCHEMA = Schema((Field("user", Int()),), (Field("city", Str()),), "at")
PARTITIONS = 4
AT = datetime(2026, 1, 1, tzinfo=UTC)
NOW_US = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1e6)


@dataclass
class Bench:
    settings: Settings
    broker: KafkaBroker
    pool: Any
    jobs: tuple[Job, Job]
    hlc: int = 0

    async def write(self, users: list[int], city: str) -> dict[int, dict[str, int]]:
        """Upsert `city` for users; return the end offsets per partition of the source topic."""
        source = self.jobs[0].inputs[0]
        self.hlc += 1
        rows = pa.table(
            {
                "user": users,
                "city": pa.array([city] * len(users), pa.large_string()),
                "at": pa.array([AT] * len(users), pa.timestamp("us", "UTC")),
            }
        )
        versions = with_meta(rows, stamp(Hlc(self.hlc), 0, len(users)))
        keys = key_bytes(decode(encode(versions)), ["user"])
        outgoing = [
            OutgoingRecord(source, partition_of(key, PARTITIONS), encode(versions.slice(row, 1)))
            for row, key in enumerate(keys)
        ]
        written = await self.producer.commit(outgoing)
        return {part: {source: offset} for (_, part), offset in written.items()}

    async def owners(self, job: Job) -> dict[int, tuple[str, str]]:
        """Return slot address and status per owned partition of a job."""
        query = (
            "SELECT part, s.address, status FROM job_partition p JOIN slot s ON s.id = "
            "p.slot_id WHERE job_id = %s"
        )
        async with self.pool.connection() as connection:
            return {
                row[0]: (row[1], row[2])
                for row in await (await connection.execute(query, (job.id,))).fetchall()
            }

    async def owned(self, job: Job, *, slots: int) -> dict[int, str]:
        """Wait until every partition runs, spread over `slots` slots."""

        async def spread() -> dict[int, str] | None:
            found = await self.owners(job)
            addresses = {
                part: address for part, (address, status) in found.items() if status == "running"
            }
            complete = len(addresses) == PARTITIONS and len(set(addresses.values())) == slots
            return addresses if complete else None

        addresses: dict[int, str] = await eventually(spread, within_s=30, interval_s=0.05)
        return addresses


def jobs(run: str) -> tuple[Job, Job]:
    names = {
        name: TopicName(f"test-{run}.{name}")
        for name in ("source", "copy", "log-map", "log-table", "dead")
    }
    copy = spec.MapSpec((SCHEMA,), ((),), SCHEMA)
    common = {
        "workspace": WorkspaceId("w"),
        "dead_letters": names["dead"],
        "partitions": PARTITIONS,
    }
    mapped = Job(
        id=JobId(f"test-{run}.map"),
        inputs=(names["source"],),
        outputs=(Output(names["copy"], ("user",)),),
        step=copy,
        replaylog=names["log-map"],
        title="copy",
        **common,
    )
    table = Job(
        id=JobId(f"test-{run}.table"),
        inputs=(names["copy"],),
        outputs=(),
        step=spec.TableSpec(SCHEMA),
        replaylog=names["log-table"],
        title="index",
        **common,
    )
    return mapped, table


@pytest.fixture
async def bench(infra: None, database: str, tmp_path: Path) -> AsyncIterator[Bench]:
    run = uuid.uuid4().hex[:8]
    pair = jobs(run)
    sockets = Path("/tmp") / f"fc-{run}"  # noqa: S108  # a path of the machine of the test. Unix socket paths are short
    settings = Settings().model_copy(
        update={
            "postgres_dsn": SecretStr(database),
            "data_dir": tmp_path,
            "s3_prefix": f"test-{run}/",
            "run_dir": sockets,
            "lease_ms": 1500,
            "supervisor_poll_ms": 300,
        }
    )
    topics = sorted(
        {
            *pair[0].inputs,
            pair[0].outputs[0].topic,
            pair[0].replaylog,
            pair[1].replaylog,
            pair[0].dead_letters,
        }
    )
    admin = AdminClient(client_config(settings))
    for created in admin.create_topics(
        [NewTopic(topic, PARTITIONS, 1) for topic in topics]
    ).values():
        created.result(10)
    broker = KafkaBroker(settings)
    async with postgres.pool(database, name="test", size=2) as pool:
        async with pool.connection() as connection:
            for job in pair:
                await connection.execute(
                    "INSERT INTO job (id, workspace, spec) VALUES (%s, 'w', %s)",
                    (job.id, stored_names.dumps(job)),
                )
                await connection.execute(
                    "INSERT INTO job_partition (job_id, part) SELECT %s, p FROM "
                    "generate_series(0, 3) p",
                    (job.id,),
                )
        made = Bench(settings, broker, pool, pair)
        made.producer = await broker.producer(f"test-{run}")
        yield made
    await broker.close()
    admin.delete_topics(topics)


@asynccontextmanager
async def slot(bench: Bench, number: int) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(run_slot(bench.settings, EngineId("e"), number))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def city_of(bench: Bench, user: int, part: int, address: str) -> str | None:
    """Return the city; None if there is none or the slot refuses.

    On a busy machine a runner may be starting again after a time-out.
    """
    channel = await Channel.open(address)
    try:
        found = await channel.call(
            "lookup", {"items": [[bench.jobs[1].id, part, [key(user)], NOW_US]]}
        )
        ((row,),) = found["rows"]
        return None if row is None else msgspec.msgpack.decode(row)[1]
    except RemoteError as refused:
        if refused.remote_code != RefusalCode.NOT_OWNER:
            raise
        return None
    finally:
        await channel.close()


def key(user: int) -> bytes:
    return msgspec.msgpack.encode([user])


async def visible(
    bench: Bench, targets: dict[int, dict[str, int]], owners: dict[int, str], job: Job
) -> None:
    for part, wanted in targets.items():
        channel = await Channel.open(owners[part])
        assert (
            await channel.call("wait", {"items": [[job.id, part, wanted]], "timeout_ms": 10_000})
            == []
        )
        await channel.close()


async def read_everywhere(
    bench: Bench, users: list[int], owners: dict[int, str], expected: str
) -> None:
    """Wait until the slots serve the expected city of every user."""

    async def served(user: int) -> bool:
        part = partition_of(key(user), PARTITIONS)
        return await city_of(bench, user, part, owners[part]) == expected

    async with asyncio.timeout(15):
        for user in users:
            await eventually(
                partial(served, user), within_s=15, what=f"user {user} is in {expected}"
            )


USERS = list(range(20))


async def snapshots(bench: Bench, expected: str) -> dict[tuple[str, int], str]:
    """Take a snapshot of every partition on the one slot; return the keys of the manifests."""
    address = (await bench.owned(bench.jobs[0], slots=1))[0]
    channel = await Channel.open(address)
    try:
        answers = await channel.call(
            "snapshot",
            {"items": [[job.id, part] for job in bench.jobs for part in range(PARTITIONS)]},
        )
    finally:
        await channel.close()
    assert Counter(code for _, _, code, _, _ in answers) == {expected: 2 * PARTITIONS}, answers
    return {(job, part): key for job, part, _, key, _ in answers}


async def written(bench: Bench, users: list[int], city: str) -> None:
    """Upsert rows and wait until the table serves them."""
    targets = await bench.write(users, city)
    await visible(bench, targets, await bench.owned(bench.jobs[0], slots=1), bench.jobs[0])
    await read_everywhere(bench, users, await bench.owned(bench.jobs[1], slots=1), city)
