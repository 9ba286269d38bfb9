"""Changes of a dataset in a Delta table of a user's bucket: from history on, each once."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fennel_core.apps.local import processes, status_requests
from fennel_core.connections import s3
from fennel_core.settings.model import Settings
from tests.support.adults import ADULTS
from tests.support.delta_log import read_rows
from tests.support.executors import commit_of
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(300)]
LAKE = "test-lake"


def written(folder: Path, bucket: str, path: str | None) -> str:
    table = f'lake.bucket("{bucket}", path="{path}", format="delta")'
    sink = "" if path is None else f'@sink({table}, how="incremental", every="1s")'
    file = folder / "adults.py"
    text = ADULTS.format(
        imports="S3, Webhook, sink, source",
        connector='lake = S3(name="lake")\n',
        key="key=True, erase_key=True",
        sink=sink,
    )
    file.write_text(text)
    return str(file)


def people(first: int, count: int) -> dict[str, list[Any]]:
    numbers = range(first, first + count)
    return {
        "name": [f"p{n}" for n in numbers],
        "age": [20 + n % 20 for n in numbers],
        "at": [f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z" for n in numbers],
    }


@pytest.mark.long
async def test_changes_are_rows_of_a_table_once_from_history_on_across_a_kill(
    make: Callable[[], Awaitable[Api]], settings: Settings, tmp_path: Path
) -> None:
    api, client, path = await make(), s3.client(settings), f"adults/{uuid.uuid4().hex[:8]}"
    s3.ensure_bucket(client, LAKE)

    def found() -> Counter[tuple[str, str, int]]:
        rows = read_rows(client, LAKE, path)
        return Counter((row["_op"], row["name"], row["age"]) for row in rows)

    def expected(names: int) -> Counter[tuple[str, str, int]]:
        return Counter(("c", f"p{n}", 20 + n % 20) for n in range(names))

    async def wait(want: Counter[tuple[str, str, int]]) -> None:
        async def equal() -> bool:
            return found() == want

        def missing() -> str:
            return f"{found() - want} {want - found()}; {status_requests.read(settings).sinks}"

        await eventually(equal, within_s=60, interval_s=0.3, what=missing)

    status, text = await api.call(
        "POST",
        "/commit?preview=true",
        await commit_of(written(tmp_path, settings.s3_bucket, path), folder=tmp_path),
        **INLINE,
    )
    assert (status, "bucket of the platform itself" in text) == (500, True), text
    plain = await commit_of(written(tmp_path, LAKE, None), folder=tmp_path)
    await api.good("POST", "/commit", plain, **INLINE)
    await api.log(**people(0, 60))
    await api.settled(within_s=60)
    definitions = await commit_of(written(tmp_path, LAKE, path), folder=tmp_path)
    answer = json.dumps(await api.good("POST", "/commit", definitions, **INLINE))
    assert "rows from history that it starts with" in answer
    await wait(expected(60))
    await api.log(**people(60, 60))
    record = processes.read_record(settings.data_dir / "pids" / "sources")
    assert record is not None
    for pid in processes.session_members(record):
        os.kill(pid, signal.SIGKILL)
    await api.log(**people(120, 60))
    await wait(expected(180))
    keys = {"erase_keys": [{"name": "p5"}]}
    await api.good("POST", "/dataset/Adult/erase", keys)
    await wait(expected(180) - Counter([("c", "p5", 25)]))
    (own,) = [s for s in status_requests.read(settings).sinks or () if s["sink"].endswith(path)]
    assert (own["reason"], own["dataset"], own["sink"]) == (None, "Adult", f"lake/{LAKE}/{path}")
