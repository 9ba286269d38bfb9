"""Measure how long a job partition with large state is unavailable after `kill -9`.

On a running, otherwise idle platform, with its settings in the environment (`fennel-core env --all`
and the names of its secrets), this registers a job partition over a topic of its own: one keyed
dataset of `--gigabytes`, with a snapshot on S3 and a tail of later records. Then its slot or engine
is killed several times:

  local      the local state survives
  wiped      the local state is moved away at the moment of the kill, and is restored from S3
  engine     the engine's process is killed (Spark, its JVM and every slot) and restarted by the
             watchdog; the local state survives

Caught up means that an owner reports everything logged before the kill as applied. Phases as the
registry shows them: `new slot` (one is registered: a Python process has started and imported the
platform), `claimed` (the partition has an owner; another slot may be faster than the new one). The
lower bound of `wiped` is boto3 alone: the same objects downloaded to the same disk, four at a time.
Targets for 1 GB: 4 s local, 15 s wiped.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job
from fennel_core.connections import postgres, s3
from fennel_core.connections.frames import Channel, RemoteError
from fennel_core.connections.installation import installation_objects, installation_of
from fennel_core.connections.kafka import client_config
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.kafka.broker import KafkaBroker
from fennel_core.operators import spec
from fennel_core.settings.model import Settings
from fennel_core.snapshots.manifest import SnapshotManifest, decode_manifest
from fennel_core.snapshots.transfer import PREFIX
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import JobId, TopicName, WorkspaceId
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import encode, with_meta

SCHEMA = Schema((Field("user", Int()),), (Field("text", Str()),), "at")
VALUE_BYTES = 4096
ROWS_A_MESSAGE = 150
MESSAGES_A_TRANSACTION = 8
TAIL_MESSAGES = 20
"""Logged after the snapshot: what `wiped` replays."""
AT = datetime(2026, 1, 1, tzinfo=UTC)
TARGETS_S = {"local": 4.0, "wiped": 15.0}
OWNER = """
    SELECT s.id, s.address, p.epoch, p.status FROM job_partition p JOIN slot s ON s.id = p.slot_id
    WHERE p.job_id = %s AND s.lease_until > now()
"""
SLOTS = "SELECT id FROM slot WHERE lease_until > now()"


@dataclass(frozen=True)
class Measured:
    """Seconds since the kill."""

    case: str
    slot_s: float
    claimed_s: float
    caught_up_s: float


class World:
    """A job partition of its own on the running platform."""

    def __init__(
        self, settings: Settings, broker: KafkaBroker, pool: Any, job: Job, state: Path
    ) -> None:
        self.settings, self.broker, self.pool, self.job = settings, broker, pool, job
        self.hlc = 0
        self.end = 0
        self.folder = state / job.id

    async def log(self, producer: Any, messages: int) -> None:
        """Log rows of new users, whose values do not compress."""
        for first in range(0, messages, MESSAGES_A_TRANSACTION):
            wanted = range(first, min(first + MESSAGES_A_TRANSACTION, messages))
            written = await producer.commit(
                [await asyncio.to_thread(self._message) for _ in wanted]
            )
            self.end = written[(self.job.inputs[0], 0)]

    def _message(self) -> OutgoingRecord:
        self.hlc += 1
        users = range(self.hlc * ROWS_A_MESSAGE, (self.hlc + 1) * ROWS_A_MESSAGE)
        texts = [base64.b64encode(os.urandom(VALUE_BYTES * 3 // 4)).decode() for _ in users]
        times = pa.array([AT] * ROWS_A_MESSAGE, pa.timestamp("us", "UTC"))
        rows = pa.table(
            {"user": list(users), "text": pa.array(texts, pa.large_string()), "at": times}
        )
        return OutgoingRecord(
            self.job.inputs[0], 0, encode(with_meta(rows, stamp(Hlc(self.hlc), 0, ROWS_A_MESSAGE)))
        )

    async def owner(self) -> tuple[str, str, int, str] | None:
        async with self.pool.connection() as connection:
            row = await (await connection.execute(OWNER, (self.job.id,))).fetchone()
        return None if row is None else tuple(row)

    async def slots(self) -> set[str]:
        async with self.pool.connection() as connection:
            return {str(row[0]) for row in await (await connection.execute(SLOTS)).fetchall()}

    async def ask(self, op: str, argument: object) -> Any:
        """Return the owner's response, or None while the partition has no owner."""
        owner = await self.owner()
        if owner is None:
            return None
        try:
            channel = await Channel.open(owner[1])
            try:
                return await channel.call(op, argument)
            finally:
                await channel.close()
        except (OSError, RemoteError):
            return None

    async def caught_up(self) -> bool:
        wanted = {"items": [[self.job.id, 0, {self.job.inputs[0]: self.end}]], "timeout_ms": 5_000}
        return await self.ask("wait", wanted) == []

    async def until_caught_up(self) -> None:
        while not await self.caught_up():  # the registry and the slot can only be asked
            await asyncio.sleep(0.02)

    async def away(self, case: str, kill: Callable[[], None]) -> Measured:
        """Kill, and watch what becomes of the partition."""
        before, owner = await self.slots(), await self.owner()
        assert owner is not None
        began = time.monotonic()
        kill()
        slot_s = claimed_s = None
        while True:
            now, fresh = await self.owner(), await self.slots() - before
            if fresh and slot_s is None:
                slot_s = time.monotonic() - began
            if now is not None and now[2] > owner[2] and claimed_s is None:
                claimed_s = time.monotonic() - began
            if claimed_s is not None and await self.caught_up():
                return Measured(case, slot_s or claimed_s, claimed_s, time.monotonic() - began)
            await asyncio.sleep(0.02)

    async def pid(self) -> int:
        """Of the slot's process: its id ends with pid and start."""
        owner = await self.owner()
        assert owner is not None
        return int(owner[0].rsplit("-", 2)[1])


@asynccontextmanager
async def world(settings: Settings) -> AsyncIterator[World]:
    """The job partition; afterwards nothing of it is left."""
    run = uuid.uuid4().hex[:8]
    source, replaylog, dead = (
        TopicName(f"bench-recovery-{run}.{name}") for name in ("source", "log", "dead")
    )
    identity = JobId(f"bench-recovery-{run}.table")
    job = Job(
        identity,
        WorkspaceId("bench"),
        (source,),
        (),
        spec.TableSpec(SCHEMA),
        replaylog,
        dead,
        1,
        "Bench: table",
    )
    admin = AdminClient(client_config(settings))
    for created in admin.create_topics(
        [NewTopic(topic, 1, 1) for topic in (source, replaylog, dead)]
    ).values():
        created.result(30)
    broker = KafkaBroker(settings)
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="bench", size=2
    ) as pool:
        try:
            async with pool.connection() as connection:
                await connection.execute(
                    "INSERT INTO job (id, workspace, spec) VALUES (%s, 'bench', %s)",
                    (identity, stored_names.dumps(job)),
                )
                await connection.execute(
                    "INSERT INTO job_partition (job_id, part) VALUES (%s, 0)", (identity,)
                )
                await connection.execute("SELECT pg_notify('registry', '')")
            state = settings.state_dir / await installation_of(pool)
            yield World(settings, broker, pool, job, state)
        finally:
            async with pool.connection() as connection:
                await connection.execute("DELETE FROM job WHERE id = %s", (identity,))
                await connection.execute("DELETE FROM snapshot WHERE job_id = %s", (identity,))
            objects = installation_objects(settings, pool)
            await objects.delete(
                [each.key for each in await objects.list_objects(f"{PREFIX}/{identity}/")]
            )
            await broker.close()
            admin.delete_topics([source, replaylog, dead])


def floor_s(settings: Settings, root: str, manifest: SnapshotManifest, target: Path) -> float:
    """boto3 alone: the snapshot's objects to the same disk, four at a time."""
    client = s3.client(settings)
    target.mkdir(parents=True)
    began = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        jobs = [
            threads.submit(
                client.download_file,
                settings.s3_bucket,
                root + each.object,
                str(target / each.name),
            )
            for each in manifest.files
        ]
        for each in jobs:
            each.result()
    took = time.monotonic() - began
    shutil.rmtree(target)
    return took


def engine_pid() -> int:
    status = json.loads(
        subprocess.run(
            ["fennel-core", "status", "--json"],  # noqa: S607  # found on the PATH, as by its users
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    )
    return next(int(row["pid"]) for row in status["services"] if row["service"] == "engine")


async def measured(
    world: World, repeats: int, engine: bool
) -> tuple[dict[str, Any], list[Measured]]:
    settings, found = world.settings, []
    for case in [name for _ in range(repeats) for name in ("local", "wiped")]:
        pid, trash = await world.pid(), settings.state_dir.parent / f"trash-{uuid.uuid4().hex}"

        def kill(case: str = case, pid: int = pid, trash: Path = trash) -> None:
            os.kill(pid, signal.SIGKILL)
            if case == "wiped":
                world.folder.rename(trash)

        found.append(await world.away(case, kill))
        shutil.rmtree(trash, ignore_errors=True)
        print(f"  {found[-1]}", flush=True)
        await asyncio.sleep(5)
    if engine:
        driver = engine_pid()
        found.append(await world.away("engine", lambda: os.kill(driver, signal.SIGKILL)))
        print(f"  {found[-1]}", flush=True)
    objects = installation_objects(settings, world.pool)
    root, body = await objects.root(), await objects.get(await manifest_key(world))
    assert body is not None
    manifest = decode_manifest(body)
    floors = [
        await asyncio.to_thread(
            floor_s, settings, root, manifest, settings.state_dir.parent / "floor"
        )
        for _ in range(2)
    ]
    facts = {
        "snapshot_bytes": sum(each.size_bytes for each in manifest.files),
        "files": len(manifest.files),
        "boto3_s": min(floors),
    }
    return facts, found


async def manifest_key(world: World) -> str:
    async with world.pool.connection() as connection:
        query = "SELECT manifest FROM snapshot WHERE job_id = %s ORDER BY number DESC LIMIT 1"
        row = await (await connection.execute(query, (world.job.id,))).fetchone()
    return str(row[0])


async def run(gigabytes: float, repeats: int, engine: bool) -> dict[str, Any]:
    settings = Settings()
    async with world(settings) as made:
        producer = await made.broker.producer(made.job.id)
        began = time.monotonic()
        await made.log(producer, max(1, round(gigabytes * 1e9 / (VALUE_BYTES * ROWS_A_MESSAGE))))
        await made.until_caught_up()
        built_s = time.monotonic() - began
        began = time.monotonic()
        answer = await made.ask("snapshot", {"items": [[made.job.id, 0]]})
        assert answer is not None, "the partition has no owner"
        assert answer[0][2] == "taken", answer
        snapshot_s = time.monotonic() - began
        print(
            f"built in {built_s:.0f} s, snapshot of {answer[0][4]} bytes in {snapshot_s:.1f} s",
            flush=True,
        )
        await made.log(producer, TAIL_MESSAGES)
        await made.until_caught_up()
        facts, found = await measured(made, repeats, engine)
    return {
        **facts,
        "built_s": built_s,
        "snapshot_s": snapshot_s,
        "load": os.getloadavg()[0],
        "runs": [asdict(each) for each in found],
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        (
            f"{'case':<8}{'new slot':>10}{'claimed':>10}{'caught up':>11}{'target':>8}   "
            "seconds since the kill (medians)"
        )
    ]
    for case in dict.fromkeys(each["case"] for each in result["runs"]):
        runs = [each for each in result["runs"] if each["case"] == case]
        slot, claimed, up = (
            median(each[name] for each in runs) for name in ("slot_s", "claimed_s", "caught_up_s")
        )
        lines.append(
            f"{case:<8}{slot:>10.2f}{claimed:>10.2f}{up:>11.2f}{TARGETS_S.get(case, '–'):>8}"
        )
    wiped = median(each["caught_up_s"] for each in result["runs"] if each["case"] == "wiped")
    lines.append(
        f"boto3 alone: {result['boto3_s']:.2f} s for "
        f"{result['snapshot_bytes'] / 1e9:.2f} GB; wiped takes "
        f"{wiped / result['boto3_s']:.1f}x"
    )
    return "\n".join([*lines, f"load of the machine at the end: {result['load']:.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engine", action="store_true", help="also kill the whole engine once")
    parser.add_argument("--json", type=Path, help="write the figures here")
    chosen = parser.parse_args()
    result = asyncio.run(run(chosen.gigabytes, chosen.repeats, chosen.engine))
    print(table(result))
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
