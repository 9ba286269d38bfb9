"""User code of an offline query in executors of its task: values, failures, secrets, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import polars as pl
import psutil
import pyarrow as pa
import pytest
import pytest_asyncio
from pydantic import SecretStr

from fennel_core.connections import audit_events, secrets, workspaces
from fennel_core.connections.postgres import Pool, pool
from fennel_core.executors.calls import ExtractCall
from fennel_core.executors.errors import UserCodeFailed
from fennel_core.executors.protocol import TS
from fennel_core.offline.task_tools import PlatformTools
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.pycode import PyCode
from tests.support.executors import CLIENT_PYTHON

SHOP = WorkspaceId("shop")
VERSION = "main@c1"
IMPORTS = "import pandas as pd\nfrom fennel.lib import secrets\n"


def call(body: str) -> ExtractCall:
    given, out = Field("F.given", Int()), Field("F.out", Int())
    text = f"def run(ts, given):\n    {body}\n"
    return ExtractCall(PyCode("run", "", "", text, IMPORTS, (), ()), "F", "e", (given,), (out,), ())


def rows(*values: int) -> pa.Table:
    times = pa.array([0] * len(values), pa.timestamp("us", "UTC"))
    return pa.table({TS: times, "F.given": pa.array(values, pa.int64())})


@pytest_asyncio.fixture
async def opened(database: str) -> AsyncIterator[Pool]:
    async with pool(database, name="test", size=2) as made:
        await workspaces.create(made, SHOP)
        yield made


@pytest_asyncio.fixture
async def tools(opened: Pool, database: str, tmp_path: Path) -> PlatformTools:
    secrets.make_key_file(tmp_path / "key")
    sealer = secrets.Sealer.from_file(tmp_path / "key")
    await secrets.put(opened, sealer, SHOP, "step", "3")
    settings = Settings(
        postgres_dsn=SecretStr(database),
        secrets_key_file=tmp_path / "key",
        executor_python=CLIENT_PYTHON,
        data_dir=tmp_path,
        run_dir=tmp_path,
    )
    return PlatformTools(settings, SHOP, VERSION)


def run(tools: PlatformTools, *calls: tuple[ExtractCall, pa.Table]) -> list[pl.DataFrame]:
    with tools.open({}) as opened_tools:
        return [opened_tools.extractors.run(*each, None) for each in calls]


async def test_user_code_reads_its_secret_and_the_use_is_audited_once(
    opened: Pool, tools: PlatformTools
) -> None:
    add = call("return pd.Series(given + int(secrets.get('step')), name='F.out')")
    # The sandbox has an event loop of its own, so it runs on another thread than the test's.
    found = await _on_thread(tools, (add, rows(1, 2)), (add, rows(5)))
    assert [frame["F.out"].to_list() for frame in found] == [[4, 5], [8]]
    events = await audit_events.read(opened, None)
    assert [(e.actor, e.action, e.subject) for e in events] == [
        (f"user code of {VERSION}", "use-secret", "secret step")
    ]


async def test_code_that_raises_is_a_failure_with_its_line(tools: PlatformTools) -> None:
    with pytest.raises(UserCodeFailed, match="not this one"):
        await _on_thread(tools, (call("raise ValueError('not this one')"), rows(1)))


async def test_executors_start_with_the_first_call_and_end_with_the_task(
    tools: PlatformTools,
) -> None:
    def hosts() -> list[psutil.Process]:
        found = []
        for each in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended since, or is a zombie
                found += [each] if "fennel_core.executors.host" in each.cmdline() else []
        return found

    before = hosts()  # those that other tests share

    def started() -> list[psutil.Process]:
        return [each for each in hosts() if each not in before]

    def work() -> list[psutil.Process]:
        with tools.open({}) as opened_tools:
            assert started() == []
            opened_tools.extractors.run(
                call("return pd.Series(given, name='F.out')"), rows(1), None
            )
            return started()

    running = await asyncio.to_thread(work)
    assert running
    assert not psutil.wait_procs(running, timeout=15)[1], "they have ended"


async def _on_thread(
    tools: PlatformTools, *calls: tuple[ExtractCall, pa.Table]
) -> list[pl.DataFrame]:
    return await asyncio.to_thread(run, tools, *calls)
