"""Marks of absent items, in memory and in Postgres, and the decision to delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.connections.garbage import (
    DeletionLimit,
    DeletionRefused,
    GarbageMarks,
    MemoryGarbageMarks,
    PostgresGarbageMarks,
    due_for_deletion,
)
from fennel_core.connections.postgres import pool

HOUR = timedelta(hours=1)
NO_LIMIT = DeletionLimit(0, 100)


@pytest.fixture(params=["memory", "postgres"])
async def marks(request: pytest.FixtureRequest) -> AsyncIterator[GarbageMarks]:
    if request.param == "memory":
        yield MemoryGarbageMarks(lambda: datetime.now(UTC))
        return
    async with pool(request.getfixturevalue("database"), name="test", size=1) as opened:
        yield PostgresGarbageMarks(opened)


async def test_an_item_is_absent_since_it_was_first_missing_until_it_returns(
    marks: GarbageMarks,
) -> None:
    assert await marks.mark("job", ["a", "b"]) == {"a": timedelta(0), "b": timedelta(0)}
    second = await marks.mark("job", ["a"])
    assert second["a"] > timedelta(0)
    assert set(second) == {"a"}
    third = await marks.mark("job", ["a", "b"])
    assert third["a"] > second["a"]
    assert third["b"] == timedelta(0), "its time starts again"


async def test_kinds_do_not_affect_each_other(marks: GarbageMarks) -> None:
    await marks.mark("job", ["a"])
    assert await marks.mark("topic", []) == {}
    assert (await marks.mark("job", ["a"]))["a"] > timedelta(0)


@pytest.mark.parametrize("cause", ["delete", "destroy", "delete the workspace"])
async def test_what_the_database_deletes_is_remembered_as_deleted(
    database: str, cause: str
) -> None:
    async with pool(database, name="test", size=1) as opened:
        marks = PostgresGarbageMarks(opened)
        async with opened.connection() as connection:
            await connection.execute("INSERT INTO workspace (name) VALUES ('gone')")
            for kind in ("job", "topic", "raw", "querylog", "replaylog"):
                await connection.execute(
                    "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title, "
                    "blueprint) VALUES (%s, 'gone', %s, 'i', 1, 'live', '', '')",
                    (f"gone.{kind}", kind),
                )
        await marks.mark("snapshot-job", ["gone.job", "other"])
        assert not await marks.deleted("snapshot-job")
        async with opened.connection() as connection:
            match cause:
                case "delete":
                    await connection.execute("DELETE FROM asset")
                case "destroy":
                    await connection.execute("UPDATE asset SET state = 'deleted'")
                case _:
                    await connection.execute("DELETE FROM workspace WHERE name = 'gone'")
        await marks.mark("history-topic", ["gone.topic"])
        assert await marks.deleted("snapshot-job") == {"gone.job"}
        assert set(await marks.mark("snapshot-job", ["gone.job", "other"])) == {"gone.job", "other"}
        assert await marks.deleted("snapshot-job") == {"gone.job"}
        assert await marks.deleted("history-topic") == {"gone.topic", "gone.raw", "gone.querylog"}
        assert await marks.mark("history-topic", []) == {}, "nothing of it is stored"


async def test_deleted_items_of_which_nothing_is_stored_are_forgotten_after_a_day(
    database: str,
) -> None:
    async with pool(database, name="test", size=1) as opened:
        marks = PostgresGarbageMarks(opened)
        async with opened.connection() as connection:
            await connection.execute(
                "INSERT INTO garbage (kind, name, seen_at, deleted) VALUES "
                "('job', 'new', now(), true), ('job', 'old', now() - interval '25 h', true), "
                "('job', 'kept', now() - interval '25 h', true)"
            )
        await marks.mark("job", ["kept"])
        assert await marks.deleted("job") == {"new", "kept"}


def test_nothing_is_due_within_the_grace_period() -> None:
    absent = {"a": HOUR, "b": HOUR + timedelta(seconds=1), "c": timedelta(0)}
    assert due_for_deletion("job", absent, 3, HOUR, NO_LIMIT) == ["b"]


@given(
    due=st.integers(0, 60),
    others=st.integers(0, 200),
    items=st.integers(0, 50),
    percent=st.integers(0, 100),
)
def test_a_run_deletes_at_most_the_larger_of_number_and_share_or_nothing(
    due: int, others: int, items: int, percent: int
) -> None:
    absent = {str(number): 2 * HOUR for number in range(due)}
    allowed = max(items, percent * (due + others) / 100)
    limit = DeletionLimit(items, percent)
    if due > allowed:
        with pytest.raises(DeletionRefused, match=f"{due} of {due + others} items of kind `job`"):
            due_for_deletion("job", absent, due + others, HOUR, limit)
    else:
        assert len(due_for_deletion("job", absent, due + others, HOUR, limit)) == due
    gone = sorted(absent)
    assert due_for_deletion("job", absent, due + others, HOUR, limit, gone) == gone


def test_items_that_the_database_has_deleted_wait_for_the_grace_period_and_take_no_share() -> None:
    absent = {"a": 2 * HOUR, "b": 2 * HOUR, "new": timedelta(0), "unknown": 2 * HOUR}
    limit, deleted = DeletionLimit(1, 0), {"a", "b", "new"}
    assert due_for_deletion("job", absent, 9, HOUR, limit, deleted) == ["a", "b", "unknown"]
    with pytest.raises(DeletionRefused, match="1 of 9 items"):
        due_for_deletion("job", absent, 9, HOUR, DeletionLimit(0, 0), deleted)
