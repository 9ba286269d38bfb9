"""The program that merges history, with real Spark, S3 and Postgres."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from pathlib import Path

import polars as pl

from fennel_core.connections import s3
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.postgres import pool
from fennel_core.history import parquet
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.roll import object_key
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName
from tests.support.history_world import LAYOUT, TOPIC, batch
from tests.support.s3 import S3Server

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "fennel_core" / "apps" / "spark_jobs" / "history_maintenance.py"
PARTITIONS = 2
FILES = 12
OTHER = TopicName("w.topic.broken.2")


def environment(server: S3Server, dsn: str, data: Path, bucket: str) -> dict[str, str]:
    return {
        "FENNEL_POSTGRES_DSN": dsn,
        "FENNEL_S3_ENDPOINT": server.s3_endpoint,
        "FENNEL_S3_REGION": server.s3_region,
        "FENNEL_S3_ACCESS_KEY": server.s3_access_key,
        "FENNEL_S3_SECRET_KEY": server.s3_secret_key.get_secret_value(),
        "FENNEL_S3_BUCKET": bucket,
        "FENNEL_DATA_DIR": str(data),
    }


async def maintained(variables: dict[str, str]) -> None:
    """Run the program as Airflow's operator does; it fails, because one merge is refused."""
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        str(tools / "spark-submit"),
        *("--master", "local[1]", "--conf", "spark.log.level=WARN", str(PROGRAM)),
        env={**os.environ, **variables, "PYTHONPATH": str(ROOT), "PATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 1, out.decode()[-4000:]
    assert "1 merges were refused, 2 were made" in out.decode()


async def test_the_program_merges_small_files_and_every_row_stays(
    s3_server: S3Server, database: str, tmp_path: Path
) -> None:
    bucket = f"test-{uuid.uuid4().hex[:8]}"
    variables = environment(s3_server, database, tmp_path, bucket)
    settings = Settings.model_validate(
        {name.removeprefix("FENNEL_").lower(): value for name, value in variables.items()}
    )
    s3.ensure_bucket(s3.client(settings), bucket)
    async with pool(database, name="test", size=2) as connections:
        files = PostgresHistoryFiles(connections)
        objects = installation_objects(settings, connections)
        written: dict[int, pl.DataFrame] = {}
        for part in range(PARTITIONS):
            frames = []
            for n in range(FILES):
                frame = parquet.file_frame([(Offset(n), batch(100 * n, 20))], LAYOUT.keys)
                body = parquet.encode_file(frame)
                key = object_key(TOPIC, PartitionIndex(part), Offset(n), uuid.uuid4().hex)
                await objects.put(key, body)
                place = (TOPIC, PartitionIndex(part), Offset(n), Offset(n + 1))
                times = Micros(100 * n), Micros(100 * n + 19)
                assert await files.add(HistoryFile(*place, key, 20, len(body), *times))
                frames.append(frame)
            written[part] = pl.concat(frames)
        for n in range(3):
            place = (OTHER, PartitionIndex(0), Offset(n), Offset(n + 1))
            lost = HistoryFile(*place, f"history/{OTHER}/0/{n}", 1, 10, Micros(0), Micros(0))
            assert await files.add(lost)
        await maintained(variables)
        for part in range(PARTITIONS):
            (merged,) = await files.files(TOPIC, PartitionIndex(part))
            assert (merged.first_offset, merged.next_offset, merged.row_count) == (0, 12, 240)
            assert (merged.min_ts, merged.max_ts) == (0, 1119)
            body = await objects.get(merged.object_key)
            assert body is not None
            rows = parquet.decode_file(body)
            assert rows.equals(
                written[part].sort(parquet.GROUP, parquet.OFFSET, maintain_order=True)
            )
        assert len(await files.files(OTHER, PartitionIndex(0))) == 3, "one refusal stops no other"
        assert len(await files.retired()) == PARTITIONS * FILES
        totals = (await files.totals())[TOPIC]
        assert (totals.files, totals.rows) == (2, 480)
