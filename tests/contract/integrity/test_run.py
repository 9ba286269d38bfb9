"""The whole check: catalogs and findings in Postgres, files on S3, the tail of a topic, and a slot
behind its socket.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from pydantic import SecretStr

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView, Job
from fennel_core.connections import erasures, frames, s3
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.postgres import pool
from fennel_core.engine.service import SlotService
from fennel_core.engine.supervisor import HostedPartition
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.history import parquet, topic_slices
from fennel_core.history.erasing import TopicErasures, remove_erased
from fennel_core.history.file_slices import TopicRecord
from fennel_core.history.kafka import LogBounds
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.integrity import findings, topic_history
from fennel_core.integrity.errors import IntegrityDiffers, IntegrityNotChecked
from fennel_core.integrity.run import check_integrity
from fennel_core.operators.build import build
from fennel_core.operators.spec import AggregateSpec
from fennel_core.operators.step import OperatorStep
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import (
    DatasetName,
    Epoch,
    JobId,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN, encode_frame
from fennel_core.wire import operators as wire
from tests.support.cluster import FakeSupervisor
from tests.support.installation import own_prefix
from tests.support.s3 import S3Server

EVENTS = Schema((), (Field("k", Str()), Field("v", Int())), "t")
TOTALS = Schema((Field("k", Str()),), (Field("sum", Int()),), "t")
TOPIC, JOB = TopicName("w.topic.a.1"), JobId("w.job.a.1")
SPEC = AggregateSpec(EVENTS, ("k",), (wire.Sum("sum", wire.Forever(), "v"),), None, True, TOTALS)
IN_HISTORY, APPLIED, WRITTEN = 30, 40, 45
PARTITION = (TOPIC, PartitionIndex(0))


def record(offset: int) -> pl.DataFrame:
    """Return the one row of the record at an offset."""
    return pl.DataFrame(
        {
            "k": [f"key-{offset % 5}"],
            "v": [offset],
            "t": pl.Series([offset * 1000], dtype=pl.Datetime("us", "UTC")),
            POS: [offset.to_bytes(14, "big")],
            SIGN: pl.Series([1], dtype=pl.Int8),
            IS_TOMBSTONE: [False],
        }
    )


class WrittenTopic:
    """`history.kafka.TopicReader` of the topic, whose first records were deleted."""

    def __init__(self, _settings: Settings) -> None:
        """Need no settings."""

    def bounds(self, topics: Collection[TopicName]) -> dict[TopicPartition, LogBounds]:
        assert topics == [TOPIC]
        return {PARTITION: LogBounds(Offset(IN_HISTORY - 10), Offset(WRITTEN))}

    def tail(self, partition: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
        assert partition == PARTITION
        assert first >= IN_HISTORY or first == end, "the rest is read from history"
        for offset in range(first, end):
            yield TopicRecord(partition, Offset(offset), encode_frame(record(offset)))


@dataclass
class AppliedJob:
    """The attributes of a runner that the slot's service uses."""

    step: OperatorStep
    hangar: MemoryHangar
    job: Any
    part: int = 0
    status: str = "running"
    progress: Any = field(default=None)

    def view(self) -> Any:
        return nullcontext(self.hangar)


@dataclass(frozen=True)
class Offsets:
    offsets: dict[str, int]


@contextmanager
def slot_serving(runner: AppliedJob, address: Path) -> Iterator[None]:
    """Serve the lookups of a job from a thread, as a slot does from its process."""
    supervisor: Any = FakeSupervisor(
        {(JOB, PartitionIndex(0)): HostedPartition(Epoch(1), runner=runner)}
    )  # type: ignore[arg-type]  # what the service uses of a runner
    unused: Any = None
    ready, ended = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        server = await frames.serve(str(address), SlotService(supervisor, unused, unused))
        ready.set()
        await ended.wait()
        server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def commit(settings: Settings, address: Path) -> None:
    """Store the version that the branch serves, its job and the slot that owns it."""
    view = DatasetView(
        *(DatasetName("Totals"), 1, TOTALS, None, JOB),
        *(True, False, (), False),
    )
    catalog = Catalog(WorkspaceId("w"), (view,), (), (JOB,), 1)
    other = TopicName("other")
    job = Job(JOB, WorkspaceId("w"), (TOPIC,), (), SPEC, other, other, 1, "Totals.sum: aggregate")
    with psycopg.connect(settings.postgres_dsn.get_secret_value()) as connection:
        connection.execute("INSERT INTO workspace (name, partitions) VALUES ('w', 1)")
        connection.execute(
            "INSERT INTO commit (id, workspace, branch, state, digest, request, options, "
            "problems, catalog) VALUES ('c1', 'w', 'main', 'finished', '', '', '{}', '[]', %s)",
            (stored_names.dumps(catalog),),
        )
        connection.execute(
            "INSERT INTO branch (workspace, name, target, serving) VALUES ('w', 'main', 'c1', 'c1')"
        )
        connection.execute(
            "INSERT INTO job (id, workspace, spec) VALUES (%s, 'w', %s)",
            (JOB, stored_names.dumps(job)),
        )
        connection.execute(
            "INSERT INTO slot (id, name, engine, address, lease_until) "
            "VALUES ('s', 's', 'e', %s, now() + interval '1 hour')",
            (str(address),),
        )
        connection.execute(
            "INSERT INTO job_partition (job_id, part, epoch, slot_id) VALUES (%s, 0, 1, 's')",
            (JOB,),
        )


async def archive(settings: Settings, client: Any, prefix: str) -> None:
    """Write the first records to history, as two files."""
    dsn = settings.postgres_dsn.get_secret_value()
    async with pool(dsn, name="test", size=1) as connections:
        for first, after in ((0, 20), (20, IN_HISTORY)):
            messages = [(Offset(n), encode_frame(record(n))) for n in range(first, after)]
            body = parquet.encode_file(parquet.file_frame(messages, ("k",)))
            s3.put_new(client, settings.s3_bucket, f"{prefix}file-{first}", body)
            file = HistoryFile(
                *(*PARTITION, Offset(first), Offset(after), f"file-{first}", after - first),
                *(len(body), Micros(first * 1000), Micros((after - 1) * 1000)),
            )
            assert await PostgresHistoryFiles(connections).add(file)


async def erase(
    settings: Settings, client: Any, prefix: str, columns: tuple[str, ...], value: object
) -> None:
    """Erase a key of the dataset, and remove its rows from the first file."""
    frame = pl.DataFrame({columns[0]: [value]})
    dsn = settings.postgres_dsn.get_secret_value()
    async with pool(dsn, name="test", size=1) as connections:
        keys = key_bytes(frame, columns)
        await erasures.add(connections, WorkspaceId("w"), DatasetName("Totals"), columns, keys)
        files = PostgresHistoryFiles(connections)
        first = (await files.files(*PARTITION))[0]
        erased = TopicErasures(DatasetName("Totals"), (ErasedKeys(columns, frozenset(keys)),), 1)
        made = remove_erased(
            first,
            erased,
            lambda key: s3.get(client, settings.s3_bucket, prefix + key),
            lambda key, body: s3.put_new(client, settings.s3_bucket, prefix + key, body),
        )
        assert isinstance(made, HistoryFile)
        deadline = await files.now() + timedelta(hours=1)
        assert await files.replace([first], made, deadline, timedelta(hours=1))


@pytest.fixture
def settings(database: str, s3_server: S3Server, tmp_path: Path) -> Settings:
    return Settings(
        postgres_dsn=SecretStr(database),
        s3_endpoint=s3_server.s3_endpoint,
        s3_region=s3_server.s3_region,
        s3_access_key=s3_server.s3_access_key,
        s3_secret_key=s3_server.s3_secret_key,
        s3_bucket=f"test-{uuid.uuid4().hex[:8]}",
    )


def test_a_state_with_another_value_fails_the_check_until_it_is_right_again(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (topic_slices, topic_history):
        monkeypatch.setattr(module, "TopicReader", WrittenTopic)
    address = tmp_path / "slot.sock"
    commit(settings, address)
    client = s3.client(settings)
    s3.ensure_bucket(client, settings.s3_bucket)
    asyncio.run(archive(settings, client, own_prefix(settings)))
    step, state = build(SPEC), MemoryHangar()
    for offset in range(APPLIED):
        outcome = step.apply(state, 0, record(offset))
        state.write(WriteBatch(outcome.puts, outcome.deletes))
    entries = state.scan(b"", b"\xff" * 8)
    job = type("Named", (), {"id": JOB})
    runner = AppliedJob(step, state, job, progress=Offsets({TOPIC: APPLIED}))
    lines: list[str] = []

    def failed() -> list[findings.FailedIntegrityCheck]:
        async def read() -> list[findings.FailedIntegrityCheck]:
            dsn = settings.postgres_dsn.get_secret_value()
            async with pool(dsn, name="test", size=1) as connections:
                return await findings.failed_checks(connections)

        return asyncio.run(read())

    with slot_serving(runner, address):
        check_integrity(settings, lines.append, keys=5, seed=7)
        assert lines[0] == "jobs to check: 1 of 1, 5 keys of each, seed 7"
        assert f"agrees: 5 keys compared with {APPLIED} rows of history" in lines[1]

        # The state of one key has lost an event.
        other = MemoryHangar()
        for offset in (n for n in range(APPLIED) if n != 33):
            outcome = step.apply(other, 0, record(offset))
            other.write(WriteBatch(outcome.puts, outcome.deletes))
        runner.hangar = other
        with pytest.raises(IntegrityDiffers, match=r"seed 7: Totals of w .*key \['key-3'\] as of"):
            check_integrity(settings, lines.append, keys=5, seed=7)
        (alarm,) = failed()
        assert alarm.dataset == "Totals"
        assert any("recomputed" in line for line in lines)

        # Another sample does not end the alarm, because the key is in it, too.
        with pytest.raises(IntegrityDiffers, match="key-3"):
            check_integrity(settings, lines.append, keys=1, seed=8, dataset="Totals")
        restored = MemoryHangar(dict(entries))
        runner.hangar = restored
        check_integrity(settings, lines.append, keys=1, seed=9)
        assert failed() == []

        # The state keeps what the rows of an erased key did; they are gone from history.
        asyncio.run(erase(settings, client, own_prefix(settings), ("k",), "key-1"))
        check_integrity(settings, lines.append, keys=5, seed=7)
        assert f"agrees: 4 keys compared with {APPLIED * 4 // 5} rows of history" in lines[-1]

        # Rows that were erased by another column may have been of any group.
        asyncio.run(erase(settings, client, own_prefix(settings), ("v",), 12))
        check_integrity(settings, lines.append, keys=5, seed=7)
        assert "skipped: 0 keys compared" in lines[-1]
        assert "5 rows of erased keys were removed from its history" in lines[-1]

    with pytest.raises(IntegrityNotChecked, match="did not respond"):
        check_integrity(settings, lines.append, keys=5, seed=7)
