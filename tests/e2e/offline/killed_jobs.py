"""Jobs of offline queries killed with -9 at random moments: the result is complete, and once.

`make offline-faults KILLS=10 SEED=1`. Each request is killed twice, in any of its processes, and
run again, as Airflow and the definition server do. Real Postgres, S3 and Spark, without a platform.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import psutil
import pytest

from fennel_core.connections import installation, s3, workspaces
from fennel_core.connections.postgres import pool
from fennel_core.offline.request_files import request_folder
from fennel_core.offline.request_postgres import PostgresRequests
from fennel_core.offline.request_row import MAX_CLAIMS, NewRequest, RequestDefinition
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.s3_places import S3Source, S3Target
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import BranchName, WorkspaceId
from tests.e2e.offline import world
from tests.support.s3 import S3Server, bucket_settings, object_keys

pytestmark = pytest.mark.timeout(3600)
ROOT = Path(__file__).parents[3]
KILLS, SEED = int(os.environ.get("KILLS", "10")), int(os.environ.get("SEED", "1"))
SHOP, USER = WorkspaceId("shop"), "user-bucket"
ASKED = RequestDefinition(
    *(("F.k",), tuple(world.OUTPUTS), "at", "faults", 0, "", None, None),
    source=S3Source(USER, "in/", "parquet", {"F.k": "k"}),
    target=S3Target(USER, "out"),
)


@dataclass(frozen=True)
class Jobs:
    """Starts runs with the settings of this test."""

    settings: Settings
    noted: Path

    def start(self, id_: str) -> subprocess.Popen[bytes]:
        given = {
            "FENNEL_POSTGRES_DSN": self.settings.postgres_dsn.get_secret_value(),
            "FENNEL_S3_ENDPOINT": self.settings.s3_endpoint,
            "FENNEL_S3_ACCESS_KEY": self.settings.s3_access_key,
            "FENNEL_S3_SECRET_KEY": self.settings.s3_secret_key.get_secret_value(),
            "FENNEL_S3_BUCKET": self.settings.s3_bucket,
            "FENNEL_DATA_DIR": str(self.settings.data_dir),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "SPARK_MASTER": "local[2,2]",
        }
        command = [sys.executable, "-m", "tests.e2e.offline.job", id_, str(self.noted)]
        return subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
            command, cwd=ROOT, env=os.environ | given, start_new_session=True
        )


@pytest.fixture
def jobs(database: str, s3_server: S3Server, tmp_path: Path) -> Jobs:
    settings = bucket_settings(
        s3_server, postgres_dsn=database, s3_bucket="platform-bucket", data_dir=tmp_path
    )
    noted = tmp_path / "files.json"
    noted.write_text(json.dumps(world.write(settings, USER)))
    return Jobs(settings, noted)


def kill(process: subprocess.Popen[bytes], draw: random.Random) -> str:
    """Kill one process of a job, or all of them, and return which."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    if draw.random() < 0.3:
        os.killpg(process.pid, signal.SIGKILL)
        return "all"
    victim = draw.choice(family)
    with suppress(psutil.NoSuchProcess):
        name = victim.name()
        victim.kill()
        return name
    return "one that had ended"


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a job, and leave no process of it."""
    process.wait(timeout=300)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def test_a_killed_job_leaves_a_result_that_is_complete_and_once(jobs: Jobs) -> None:
    draw, killed = random.Random(SEED), 0  # noqa: S311  # not for secrets
    wanted = world.expected()
    async with pool(
        jobs.settings.postgres_dsn.get_secret_value(), name="faults", size=2
    ) as connections:
        await workspaces.create(connections, SHOP)
        store = PostgresRequests(connections)
        root = installation.key_prefix(
            jobs.settings.s3_prefix, await installation.installation_of(connections)
        )
        longest = 0.0
        while killed < KILLS or not longest:
            id_ = uuid.uuid4().hex
            await store.add(NewRequest(id_, SHOP, BranchName("main"), "faults", ASKED), 1)
            for attempt in range(MAX_CLAIMS):
                begun = time.monotonic()
                process = jobs.start(id_)
                if longest and attempt + 1 < MAX_CLAIMS:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=draw.uniform(0.2, 1.0) * longest)
                    if process.poll() is None:
                        print(
                            f"killed after {time.monotonic() - begun:.1f} s: {kill(process, draw)}"
                        )
                        killed += 1
                end(process)
                row = await store.read(id_)
                assert row is not None
                if row.state is RequestState.DONE:
                    break
            assert row.state is RequestState.DONE, row.failure
            longest = longest or time.monotonic() - begun
            check(jobs, f"{root}{request_folder(SHOP, id_)}", f"out/{id_}/", wanted)


def check(jobs: Jobs, folder: str, published: str, wanted: list[tuple[object, ...]]) -> None:
    """Assert that the user has every row once and in order, and that nothing else is left."""
    client = s3.client(jobs.settings)
    keys = object_keys(client, USER, published)
    assert f"{published}_SUCCESS" in keys
    parts = [key for key in keys if "/part-" in key]
    frames = [pl.read_parquet(io.BytesIO(s3.get(client, USER, key) or b"")) for key in parts]
    assert pl.concat(frames).select(world.OUTPUTS).rows() == wanted
    left = object_keys(client, jobs.settings.s3_bucket, folder)
    assert len(left) == len(parts), f"only the files of the result are left, but {left}"
