"""Erasures on their way from Postgres into reads."""

from __future__ import annotations

import asyncio

import msgspec

from fennel_core.blueprints.spec import DatasetView
from fennel_core.connections import erasures, postgres
from fennel_core.query.erasures import Erasures
from fennel_core.query.program import ServedDataset
from fennel_core.query.view import View
from fennel_core.vocab.dtypes import Field, Str
from fennel_core.vocab.ids import MAIN_BRANCH, DatasetName, JobId, WorkspaceId
from fennel_core.vocab.schema import Schema
from tests.support.polling import eventually

WORKSPACE, USERS, JOB = WorkspaceId("w"), DatasetName("Users"), JobId("w.job.users.1")
ANN, BOB = msgspec.msgpack.encode(["ann"]), msgspec.msgpack.encode(["bob"])
VIEW = DatasetView(
    USERS, 1, Schema((Field("user", Str()),), (), "at"), None, JOB, True, True, ("user",), True
)


class OneView:
    def known(self) -> dict:
        return {
            (WORKSPACE, MAIN_BRANCH): View(None, None, None, {USERS: ServedDataset(VIEW, 4, ())})
        }  # type: ignore[arg-type]  # only its tables are read


async def test_an_erasure_hides_rows_once_read_and_elsewhere_after_a_notification(
    database: str,
) -> None:
    async with postgres.pool(database, name="test") as pool:
        async with pool.connection() as connection:
            await connection.execute("INSERT INTO workspace (name) VALUES (%s)", (WORKSPACE,))
        here, there = Erasures(pool, OneView()), Erasures(pool, OneView())  # type: ignore[arg-type]  # has the one method
        following = asyncio.create_task(there.follow(database))
        assert here.hidden(JOB, [ANN, BOB]) == []
        for erased, expected in ((ANN, [0]), (ANN, [0]), (BOB, [0, 1])):
            await erasures.add(pool, WORKSPACE, USERS, ["user"], [erased])
            await here.reload()
            assert here.hidden(JOB, [ANN, BOB]) == expected
            await eventually(lambda wanted=expected: there.hidden(JOB, [ANN, BOB]) == wanted)
        following.cancel()
        assert set(await erasures.read(pool, WorkspaceId("v"))) == set()


async def test_an_erasure_that_cannot_be_read_leaves_what_was_known(database: str) -> None:
    pool = postgres.pool("postgresql://nobody@127.0.0.1:1/nothing", name="test")
    pool.timeout = 0.2
    await pool.open(wait=False)
    known = Erasures(pool, OneView())  # type: ignore[arg-type]  # has the one method
    await known.try_reload()
    assert known.hidden(JOB, [ANN]) == []
    await pool.close()
