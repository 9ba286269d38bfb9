"""The story of `examples/delivery` while parts of the platform are killed: every feature is right.

`make story-test` runs it, in some minutes; CI does not. History from a Delta table and new orders
from a topic enter one dataset, and are joined with a table of Postgres; the features of each
customer equal a recompute, online and offline.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from examples.delivery.systems import CUSTOMERS, LIVE, Rows, Systems, rows_of
from fennel_core.apps.local import processes
from fennel_core.apps.local.file_layout import ROOT
from fennel_core.settings.model import Settings
from tests.support.own_platform import OwnPlatform

pytestmark = pytest.mark.timeout(1800)
ORDERS: Final = 20_000
TOKEN: Final = "dev-delivery"  # noqa: S105  # of a platform that only this test reaches
KILLED: Final = ("sources", "engine", "query", "kafka", "sources", "engine", "postgres", "kafka")
EVERY_S: Final = 8.0
WEEK_MOVES_S: Final = 1500.0


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[OwnPlatform]:
    platform = OwnPlatform(tmp_path / "data")
    try:
        platform.run("up")
        yield platform
    finally:
        platform.run("down")


@pytest.fixture
def settings(platform: OwnPlatform, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for line in (platform.data / "env").read_text().splitlines():
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value)
    return Settings()


def killer(platform: OwnPlatform, over: threading.Event, seed: int) -> Callable[[], None]:
    """Return what kills one part after the other, with its children, until it is over."""
    draw = random.Random(seed)  # noqa: S311  # for a test

    def kill() -> None:
        for name in KILLED:
            if over.wait(draw.uniform(0.5, 1.5) * EVERY_S):
                return
            record = processes.read_record(platform.data / "pids" / name)
            if record is not None and processes.is_alive(record):
                os.killpg(record.pid, signal.SIGKILL)
                sys.stdout.write(f"{name} killed\n")

    return kill


def story(settings: Settings, kills: threading.Thread, over: threading.Event) -> list[Any]:
    """Run the story with the real client; return its events. Parts are killed while it waits."""
    python = settings.executor_python.absolute()
    words = (settings.query_url, TOKEN, str(ORDERS))
    events = []
    with subprocess.Popen(  # noqa: S603  # a program of this project, and no shell
        [str(python), "-m", "examples.delivery.story", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for line in running.stdout:
            events.append(json.loads(line))
            if len(events) == 1:
                kills.start()
            if "wait" in events[-1].get("step", ""):
                over.set()
        complaint = running.stderr.read()
    over.set()
    assert running.returncode == 0, f"{events[-3:]}\n{complaint[-3000:]}"
    return events


def recomputed(rows: Rows, now: datetime) -> pl.DataFrame:
    """Return the features of the customers, from all rows at once."""
    joined = rows.orders.sort("at").join_asof(
        rows.restaurants.sort("updated_at"),
        left_on="at",
        right_on="updated_at",
        by="restaurant_id",
    )
    newest = joined.group_by("customer_id", "cuisine").agg(pl.col("at").max())
    cuisines = newest.sort("at", descending=True).group_by("customer_id", maintain_order=True)
    week = pl.col("at") > pl.lit(now).cast(pl.Datetime("us", "UTC")) - pl.duration(days=7)
    return (
        joined.group_by("customer_id")
        .agg(
            orders=pl.len().cast(pl.Int64),
            orders_7d=week.sum().cast(pl.Int64),
            spent=pl.col("amount").sum(),
            average=pl.col("amount").mean(),
        )
        .join(cuisines.agg(pl.col("cuisine").head(3).alias("cuisines")), on="customer_id")
        .with_columns(curious=pl.col("cuisines").list.len() > 1)
        .sort("customer_id")
    )


def test_features_are_those_of_a_recompute_whatever_is_killed(
    platform: OwnPlatform, settings: Settings
) -> None:
    rows, systems = rows_of(ORDERS, datetime.now(UTC)), Systems(settings)
    systems.make()
    systems.insert(rows.restaurants)
    live = int(ORDERS * LIVE)
    history, new = rows.orders[:-live], rows.orders[-live:]
    systems.fill_lake(history[: history.height // 2])
    systems.store_connectors(TOKEN)
    over = threading.Event()
    kills = threading.Thread(target=killer(platform, over, seed=1))

    def write() -> None:
        """Append to the lake and the topic while they are read."""
        for part in new.iter_slices(live // 20):
            systems.send(part)
            time.sleep(1)  # so that rows come while parts are killed
        systems.fill_lake(history[history.height // 2 :])

    writes = threading.Thread(target=write)
    writes.start()
    try:
        events = story(settings, kills, over)
    finally:
        writes.join()
    (features,) = [each["features"] for each in events if "features" in each]
    assert [each for each in events if "equal" in each], "online is offline"
    found = pl.DataFrame(features).sort("customer_id")
    expected = recomputed(rows, datetime.now(UTC))
    assert expected.height == CUSTOMERS
    assert found["orders"].sum() == ORDERS
    # The window moves while the story runs: an order of seven days ago may have left it.
    late = (found["orders_7d"] - expected["orders_7d"]).abs().sum()
    assert late <= ORDERS * WEEK_MOVES_S / (60 * 86_400) + 1, late
    for name in ("customer_id", "orders", "cuisines", "curious"):
        assert found[name].to_list() == expected[name].to_list(), name
    for name in ("spent", "average"):
        assert ((found[name] - expected[name]).abs() < 1e-6).all(), name
