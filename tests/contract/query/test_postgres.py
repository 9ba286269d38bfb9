"""Reads of the read path from a real Postgres, and its notifications of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.connections.api_errors import DatabaseUnavailable, RoleInsufficient
from fennel_core.connections.postgres import Pool, pool
from fennel_core.connections.roles import Access, Role
from fennel_core.executors.errors import ExecutorUnavailable
from fennel_core.executors.report import ExecutorReport
from fennel_core.operators.spec import TableSpec
from fennel_core.query.errors import ReleaseMismatch, UnknownBranch
from fennel_core.query.notifications import NotificationListener
from fennel_core.query.owners import Owners, Parked
from fennel_core.query.postgres import PostgresReader
from fennel_core.query.status import StatusReport
from fennel_core.query.view import BranchKey, ServingVersion, Views
from fennel_core.query.view_refresh import ViewRefresher
from fennel_core.vocab.ids import BranchName, JobId, TopicName, WorkspaceId
from fennel_core.wire.gen import services_pb2
from tests.support.featuresets import USERS
from tests.support.polling import eventually

W = WorkspaceId("w")
MAIN: BranchKey = (W, BranchName("main"))
SOON_S = 5.0


def request_bytes(message: str) -> bytes:
    return services_pb2.SyncRequest(message=message).SerializeToString()


def job(name: str) -> Job:
    return Job(
        JobId(name),
        W,
        (TopicName("t"),),
        (),
        TableSpec(USERS.schema),
        TopicName("r"),
        TopicName("d"),
        2,
        f"title of {name}",
    )


class Database:
    """The platform's rows, written by hand."""

    def __init__(self, opened: Pool, dsn: str) -> None:
        self.pool, self.dsn = opened, dsn

    async def do(self, statement: str, *values: Any) -> None:
        async with self.pool.connection() as connection:
            await connection.execute(statement, values)

    async def commit(self, id_: str, branch: str = "main") -> None:
        catalog = stored_names.dumps(Catalog(W, (), (), (), 4))
        await self.do(
            "INSERT INTO commit (id, workspace, branch, state, digest, request, "
            "options, merged, catalog)"
            " VALUES (%s, 'w', %s, 'live', %s, %s, '{}', %s, %s)",
            *(id_, branch, id_, request_bytes("as sent"), request_bytes(id_), catalog),
        )
        await self.do(
            "UPDATE branch SET serving = %s WHERE workspace = 'w' AND name = %s", id_, branch
        )

    async def slot(self, name: str, lease_s: int = 10) -> None:
        await self.do(
            "INSERT INTO slot (id, name, engine, address, lease_until) VALUES (%s, 'e-0', 'e', "
            "%s, now() + %s * interval '1 s')",
            name,
            f"/{name}",
            lease_s,
        )

    async def job(self, name: str) -> None:
        await self.do(
            "INSERT INTO job (id, workspace, spec) VALUES (%s, 'w', %s)",
            name,
            stored_names.dumps(job(name)),
        )
        await self.do(
            "INSERT INTO job_partition (job_id, part) VALUES (%s, 0), (%s, 1)", name, name
        )

    async def own(self, name: str, part: int, slot: str, lease_s: int = 10) -> None:
        await self.do(
            "UPDATE job_partition SET slot_id = %s, lease_until = now() + %s * "
            "interval '1 s' WHERE job_id = %s AND part = %s",
            *(slot, lease_s, name, part),
        )


class Absent:
    """Executors that do not respond."""

    async def report(self) -> ExecutorReport:
        raise ExecutorUnavailable("no executor host listens", "executors")


@pytest_asyncio.fixture
async def db(database: str) -> AsyncIterator[Database]:
    async with pool(database, name="test", size=3) as opened:
        made = Database(opened, database)
        await made.do("INSERT INTO workspace (name) VALUES ('w')")
        await made.do("INSERT INTO branch (workspace, name) VALUES ('w', 'main')")
        yield made


async def test_a_branch_serves_the_commit_it_points_at(db: Database) -> None:
    reads = PostgresReader(db.pool)
    assert await reads.read_serving(MAIN, None) is None
    await db.commit("c1")
    serving = await reads.read_serving(MAIN, None)
    assert isinstance(serving, ServingVersion)
    assert (serving.commit, serving.request.message, serving.catalog.partitions) == ("c1", "c1", 4)
    assert await reads.read_serving(MAIN, serving.commit) == "c1", (
        "a known version is not read again"
    )


async def test_a_branch_that_is_not_there_is_refused(db: Database) -> None:
    with pytest.raises(UnknownBranch):
        await PostgresReader(db.pool).read_serving((W, BranchName("dev")), None)
    with pytest.raises(UnknownBranch):
        await PostgresReader(db.pool).read_serving((WorkspaceId("other"), BranchName("main")), None)


async def test_the_last_owner_counts_after_its_lease_and_parked_partitions_have_their_error(
    db: Database,
) -> None:
    await db.slot("alive")
    await db.slot("dead", lease_s=-1)
    for name in ("a", "b", "c"):
        await db.job(name)
    await db.own("a", 0, "alive")
    await db.own("a", 1, "dead")
    await db.own("b", 0, "alive", lease_s=-1)
    await db.do(
        "UPDATE job_partition SET status = 'parked', error = 'boom' WHERE job_id = 'c' AND part = 1"
    )
    ownership = await PostgresReader(db.pool).read_owners()
    assert ownership.addresses == {
        ("a", 0): "/alive",
        ("a", 1): "/dead",
        ("b", 0): "/alive",
    }
    assert all(JobId(name) in ownership.jobs for name in "abc")
    assert JobId("d") not in ownership.jobs
    assert ownership.parked == {("c", 1): Parked("boom")}
    some = await PostgresReader(db.pool).read_owners([JobId("b"), JobId("d")])
    assert (some.addresses, some.parked) == ({("b", 0): "/alive"}, {})
    assert [JobId(name) in some.jobs for name in "abd"] == [False, True, False]


async def test_specs_of_jobs_are_read_by_name(db: Database) -> None:
    await db.job("a")
    assert await PostgresReader(db.pool).read_jobs([JobId("a"), JobId("gone")]) == {"a": job("a")}


async def test_the_status_of_a_workspace_is_its_own(db: Database) -> None:
    await db.do("INSERT INTO workspace (name) VALUES ('other')")
    await db.slot("alive")
    await db.job("a")
    await db.own("a", 1, "alive")
    reads = PostgresReader(db.pool)
    assert [(p.job, p.title, p.part, p.slot, p.status) for p in await reads.read_partitions(W)] == [
        ("a", "a", 0, None, "idle"),
        ("a", "a", 1, "alive", "idle"),
    ]
    assert await reads.read_partitions(WorkspaceId("other")) == []
    await db.do("UPDATE job SET desired = 'pause'")
    assert {p.status for p in await reads.read_partitions(W)} == {"paused"}, "its job is retained"
    assert len(await reads.read_partitions(None)) == 2
    assert [(s.id, s.lease_ms > 0) for s in await reads.read_slots()] == [("alive", True)]


async def test_data_of_another_release_is_reported(db: Database) -> None:
    await db.commit("c1")
    await db.do("UPDATE commit SET catalog = %s", b'["blueprints.spec.Catalog",{"unheard_of":1}]')
    with pytest.raises(
        ReleaseMismatch, match="the catalog of commit `c1` was written by another release"
    ):
        await PostgresReader(db.pool).read_serving(MAIN, None)
    await db.job("a")
    await db.do("UPDATE job SET spec = %s", b'["no.such.Class",{}]')
    with pytest.raises(ReleaseMismatch):
        await PostgresReader(db.pool).read_jobs([JobId("a")])


async def test_the_status_report_shows_a_token_its_own_workspace_and_the_administrator_all(
    db: Database,
) -> None:
    await db.slot("alive")
    await db.job("a")
    await db.own("a", 1, "alive")
    await db.do(
        "UPDATE job_partition SET status = 'parked', lag = 7, error = 'boom' WHERE part = 1"
    )

    async def access_of(header: str | None) -> Access:
        if header == "admin":
            return Access(None, Role.OPERATOR, "admin")
        role = Role.LOG if header == "a door" else Role.QUERY
        return Access(WorkspaceId(str(header)), role, "token")

    reads = PostgresReader(db.pool)
    report = StatusReport(reads, Views(reads), Absent(), access_of)
    with pytest.raises(RoleInsufficient):
        await report.report("a door")
    for header, count in (("w", 2), ("other", 0), ("admin", 2)):
        assert len(json.loads(await report.report(header))["job_partitions"]) == count
    shown = json.loads(await report.report("w"))
    assert [(s["slot"], s["alive"]) for s in shown["slots"]] == [("alive", True)]
    last = shown["job_partitions"][-1]
    assert {name: last[name] for name in ("id", "part", "slot", "status", "lag", "error")} == {
        "id": "a",
        "part": 1,
        "slot": "alive",
        "status": "parked",
        "lag": 7,
        "error": "boom",
    }


async def test_the_status_report_names_branches_whose_reads_have_not_moved(db: Database) -> None:
    async def access_of(header: str | None) -> Access:
        if header == "admin":
            return Access(None, Role.OPERATOR, "admin")
        return Access(WorkspaceId(str(header)), Role.QUERY, "token")

    reads = PostgresReader(db.pool)
    report = StatusReport(reads, Views(reads), Absent(), access_of)

    async def warming(header: str) -> object:
        return json.loads(await report.report(header))["warming"]

    await db.commit("c2")
    await db.commit("c1")
    await db.do("UPDATE branch SET target = 'c2'")
    moving = {"workspace": "w", "branch": "main", "serving": "c1", "target": "c2"}
    assert [await warming(h) for h in ("w", "other", "admin")] == [[moving], [], [moving]]
    await db.do("UPDATE branch SET serving = target")
    assert await warming("admin") == []


async def test_an_unreachable_database_is_reported() -> None:
    async with pool("postgresql://nobody@127.0.0.1:1/none", name="test", size=1) as opened:
        with pytest.raises(DatabaseUnavailable):
            await PostgresReader(opened).read_owners()


# --- notifications --------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def hearing(db: Database) -> AsyncIterator[tuple[Database, Views, Owners]]:
    reads = PostgresReader(db.pool)
    views, owners = Views(reads), Owners(reads)
    task = asyncio.create_task(NotificationListener(db.dsn, owners, ViewRefresher(views)).run())
    await eventually(lambda: owners.epoch > 0)
    yield db, views, owners
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_notification_updates_the_view_of_a_branch(
    hearing: tuple[Database, Views, Owners],
) -> None:
    db, views, _ = hearing
    assert (await views.get(MAIN)).commit is None
    await db.commit("c1")
    await eventually(lambda: views.known()[MAIN].commit == "c1")
    await db.do("DELETE FROM branch WHERE workspace = 'w'")
    await eventually(lambda: MAIN not in views.known())


async def test_a_notification_updates_the_owner_of_a_partition(
    hearing: tuple[Database, Views, Owners],
) -> None:
    db, _, owners = hearing
    await db.slot("alive")
    await db.job("a")
    await db.own("a", 0, "alive")
    await db.do("SELECT pg_notify('owners', '')")
    await eventually(lambda: owners.address((JobId("a"), 0)) == "/alive")


async def test_a_notification_with_names_reads_these_jobs_only(
    hearing: tuple[Database, Views, Owners],
) -> None:
    db, _, owners = hearing
    await db.slot("alive")
    for name in ("a", "b"):
        await db.job(name)
        await db.own(name, 0, "alive")
    await db.do("SELECT pg_notify('owners', 'a')")
    await eventually(lambda: owners.address((JobId("a"), 0)) == "/alive")
    assert owners.address((JobId("b"), 0)) is None
    await db.do("SELECT pg_notify('owners', 'b,gone')")
    await eventually(lambda: owners.address((JobId("b"), 0)) == "/alive")
    assert not owners.knows(JobId("gone"))


async def test_a_branch_that_cannot_be_read_does_not_stop_the_listener(
    hearing: tuple[Database, Views, Owners],
) -> None:
    db, views, _ = hearing
    await views.get(MAIN)
    await db.commit("c1")
    await eventually(lambda: views.known()[MAIN].commit == "c1")
    await db.do("UPDATE commit SET catalog = 'no catalog' WHERE id = 'c1'")
    await db.do("UPDATE branch SET serving = NULL WHERE workspace = 'w'")
    await eventually(lambda: views.known()[MAIN].commit is None)
    await db.do("UPDATE branch SET serving = 'c1' WHERE workspace = 'w'")
    await asyncio.sleep(0.1)  # time for the listener to fail on the broken catalog
    await db.commit("c2")
    await eventually(lambda: views.known()[MAIN].commit == "c2")


async def test_changes_missed_while_disconnected_are_read_after_reconnecting(
    hearing: tuple[Database, Views, Owners],
) -> None:
    db, views, _ = hearing
    await views.get(MAIN)
    async with db.pool.connection() as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
            "application_name = 'fennel-query-wakeups'"
        )
    await db.commit("c1")
    await eventually(lambda: views.known()[MAIN].commit == "c1")
