"""Datasets as DataFrames over real history, topics and Spark equal a naive recompute."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from fennel_core.connections import erasures
from fennel_core.history.errors import ReadFailed
from fennel_core.vocab.ids import DatasetName
from tests.e2e.history.rolling import answers, read, roll_all
from tests.e2e.history.world import (
    BEGIN,
    KEYED,
    KEYLESS,
    PARTITIONS,
    TOKEN,
    WORKSPACE,
    World,
    expected,
)

pytestmark = [pytest.mark.platform, pytest.mark.timeout(1800)]


def as_rows(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Return rows as JSON has them: times as text without their zone, which Spark omits."""
    plain = [
        [str(v.replace(tzinfo=None)) if isinstance(v, datetime) else v for v in row] for row in rows
    ]
    return sorted(plain, key=str)


async def rolled(world: World, rows: int) -> None:
    """Topics whose rows are in history except for the last ones."""
    await asyncio.to_thread(world.write, rows)
    assert await roll_all(world) >= 2 * PARTITIONS
    await asyncio.to_thread(world.write, rows // 3)


async def test_a_dataset_as_of_any_time_is_the_recompute_over_history_and_tail(
    world: World,
) -> None:
    await rolled(world, 6_000)
    for name, schema in (("Homes", KEYED), ("Events", KEYLESS)):
        for seconds in (-1, 0, 300, 998, 5_000):
            at = BEGIN + timedelta(seconds=seconds)
            asked = {"dataset": name, "token": TOKEN, "as_of": at.isoformat()}
            found = await read(world, asked | {"partition_rows": "500"})
            assert sorted(found, key=str) == sorted(expected(world.rows[name], schema, at), key=str)
    gone = next(row["user"] for row in reversed(world.rows["Homes"]) if row["__sign"] > 0)
    before = await read(world, {"dataset": "Homes", "workspace": WORKSPACE})
    await erasures.add(
        world.pool, WORKSPACE, DatasetName("Homes"), ["user"], [msgspec.msgpack.encode([gone])]
    )
    after = await read(world, {"dataset": "Homes", "workspace": WORKSPACE})
    assert sorted(row for row in before if row[0] != gone) == sorted(after)


@pytest.mark.long
async def test_spark_reads_a_dataset_by_name_and_reports_errors(world: World) -> None:
    await rolled(world, 1_000)
    past = BEGIN + timedelta(seconds=300)
    homes = {"dataset": "Homes", "token": TOKEN}
    some = next(row["user"] for row in world.rows["Homes"])
    now, then, one, changes, refused = await answers(
        world,
        homes,
        {**homes, "as_of": past.isoformat()},
        {**homes, "where": f"user = {some}", "columns": "at,user"},
        {**homes, "mode": "changelog", "columns": "user,__sign"},
        {**homes, "dataset": "House"},
    )
    for found, at in ((now, datetime.now(UTC)), (then, past)):
        assert "rows" in found, found["error"][-3000:]
        assert sorted(found["rows"], key=str) == as_rows(expected(world.rows["Homes"], KEYED, at))
    assert now["parts"] == PARTITIONS
    content = expected(world.rows["Homes"], KEYED, datetime.now(UTC))
    assert one["rows"] == [row[::-2] for row in as_rows(content) if row[0] == some]
    assert one["parts"] == 1, "only the partition of the key is read"
    signed = [[row["user"], row["__sign"]] for row in world.rows["Homes"]]
    assert sorted(changes["rows"]) == sorted(signed)
    assert now["columns"] == [["user", "bigint"], ["city", "string"], ["at", "timestamp"]]
    assert (
        "unknown dataset `House` in branch `main`; valid datasets: `Events`, `Homes`, `Total`"
        in refused["error"]
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dataset": "House"}, "valid datasets: `Events`, `Homes`, `Total`"),
        ({"dataset": ""}, '.option("dataset", "<name>")'),
        ({"dataset": "Total"}, "is a terminal aggregate"),
        ({"branch": "dev"}, "valid branches: `main`"),
        ({"token": "guessed"}, "unknown token"),
        ({"token": ""}, '.option("token", "<your token>")'),
        ({"token": "", "workspace": "nobody"}, "unknown workspace `nobody`"),
        ({"workspace": "other"}, "the token is for workspace `shop`, not `other`"),
        ({"mode": "newest"}, "unknown mode `newest`; valid modes: as_of, latest, changelog"),
        ({"mode": "latest", "as_of": "2026-05-01"}, "`as_of` has no effect in mode `latest`"),
        ({"columns": "user,home"}, "unknown column `home`; valid columns: `at`, `city`, `user`"),
        ({"columns": "user,user"}, "not a list of different names"),
        ({"partition_rows": "0"}, "partition_rows `0` is not a number of rows"),
        ({"as_of": "yesterday"}, 'use a form like "2026-05-01T12:00:00Z"'),
        (
            {"asof": "2026"},
            "unknown option `asof`; valid options: dataset, url, token, workspace, branch, "
            "mode, as_of, columns, partition_rows, env_file",
        ),
    ],
)
async def test_a_read_that_cannot_be_done_names_the_fix(
    world: World, changed: dict[str, str], said: str
) -> None:
    with pytest.raises(ReadFailed) as refused:
        await read(world, {"dataset": "Homes", "token": TOKEN} | changed)
    assert said in str(refused.value)
    assert str(refused.value).endswith("]"), "the message ends with a stable code"
