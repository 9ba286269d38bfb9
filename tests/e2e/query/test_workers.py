"""The query server with two workers and a helper over a real Postgres."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp

from tests.support.polling import eventually
from tests.support.ports import free_port

STARTS_WITHIN_S = 60
PORTS = ("FENNEL_QUERY_PORT", "FENNEL_DEFINITION_PORT", "FENNEL_INGEST_PORT")


async def test_workers_and_the_helper_are_ready_and_stop_on_a_signal(
    database: str, tmp_path: Path
) -> None:
    ours = {name: str(free_port()) for name in PORTS} | {
        "FENNEL_POSTGRES_DSN": database,
        "FENNEL_DATA_DIR": str(tmp_path),
        "FENNEL_QUERY_WORKERS": "2",
        "FENNEL_DEV_TOKENS": "true",
    }
    url = f"http://127.0.0.1:{ours['FENNEL_QUERY_PORT']}"
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fennel_core.apps.query", env={**os.environ, **ours}
    )
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    try:
        async with aiohttp.ClientSession() as client:

            async def ready() -> bool:
                assert parent.returncode is None, "the query server ended before it was ready"
                try:
                    async with client.get(f"{url}/readyz") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False  # it does not listen yet

            await eventually(ready, within_s=STARTS_WITHIN_S, interval_s=0.1)
            workers = children.read_text().split()
            assert len(workers) == 3
            async with client.get(
                f"http://127.0.0.1:{int(ours['FENNEL_QUERY_PORT']) + 5}/metrics"
            ) as response:
                assert "fennel_query_view_age_seconds" in await response.text()
            async with client.get(f"{url}/api/v1/unknown") as response:
                assert response.status in {401, 503}
        parent.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(parent.wait(), STARTS_WITHIN_S) == 0
        assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []
    finally:
        if parent.returncode is None:
            parent.kill()
            await parent.wait()
