"""Compare what sources and sinks have made with a recompute; imports nothing of the platform.

    python -m tests.chaos.connector_audit < PLACES

`PLACES`: a JSON object, see `Places`. The rows that were written are Parquet files. Checked are
every key of the aggregate, by lookups; the topic of the sink, as a reader of committed messages
sees it; and the Delta table of the other sink, as `deltalake` reads it. Prints one line per
difference, and what was compared; exits with 1 if there is any difference, or nothing to compare.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable

from tests.chaos.audit import AT_ONCE, SHOWN, look_up

ROW: Final = ("oid", "uid", "amount", "tier", "at")
VERSION: Final = ("part", "ts", "position")
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is. `rows`: the folder of the Parquet files that were written."""

    url: str
    token: str
    rows: str
    bootstrap: str
    topic: str
    partitions: int
    table: str
    storage: dict[str, str]


def joined(folder: Path) -> pl.DataFrame:
    """Return each order with the tier that its customer had at its time."""
    orders = pl.read_parquet(folder / "orders.parquet").sort("at")
    customers = pl.read_parquet(folder / "customers.parquet").sort("at")
    found = orders.join_asof(customers, on="at", by="uid", check_sortedness=False)
    return found.drop_nulls("tier").select(ROW).sort("oid")


def messages(places: Places) -> Iterator[dict[str, Any]]:
    """Yield every committed message of the topic, partition by partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": places.bootstrap,
            "group.id": "audit",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    for part in range(places.partitions):
        consumer.assign([TopicPartition(places.topic, part, OFFSET_BEGINNING)])
        while (message := consumer.poll(TIMEOUT_S)) is not None:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
            assert error is None, error
            yield json.loads(message.value())
        else:
            raise AssertionError(f"partition {part} could not be read to its end")
    consumer.close()


def topic_events(places: Places) -> pl.DataFrame:
    """Return the events of the topic, in one form with those of the table."""
    found = []
    for value in messages(places):
        source, row = value["source"], value["after"] or dict.fromkeys(ROW)
        gone = source["withdrawn"] or {"ts_us": None, "position": None}
        found.append(
            {
                "part": source["partition"],
                "offset": source["offset"],
                "op": value["op"],
                "ts": source["ts_us"],
                "position": source["position"],
                "withdrawn_ts": gone["ts_us"],
                "withdrawn_position": gone["position"],
                "retraction": source["retraction"],
                **{name: row[name] for name in ROW},
            }
        )
    return pl.DataFrame(found, infer_schema_length=None).with_columns(
        pl.col("at").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC")
    )


def table_events(places: Places) -> tuple[pl.DataFrame, list[str]]:
    """Return the events of the table, and what is wrong with their numbers."""
    table = DeltaTable(places.table, storage_options=places.storage).to_pyarrow_table()
    raw = pl.DataFrame(pl.from_arrow(table)).sort("_event")
    numbers = raw["_event"]
    wrong = []
    if numbers.is_duplicated().any():
        wrong.append(f"table: {numbers.is_duplicated().sum()} rows have the number of another")
    if (numbers.diff().drop_nulls() > 1).any():
        wrong.append("table: numbers of events are missing")
    gone = pl.col("op") == "d"
    return raw.select(
        *ROW,
        part="_partition",
        offset="_offset",
        op="_op",
        ts=pl.col("_ts").dt.epoch("us"),
        position="_position",
        withdrawn_ts=pl.col("_withdrawn_ts").dt.epoch("us"),
        withdrawn_position="_withdrawn_position",
        retraction="_retraction",
    ).with_columns(pl.when(~gone).then(name).alias(name) for name in ROW), wrong


def audited(name: str, events: pl.DataFrame, expected: pl.DataFrame) -> Iterator[str]:
    """Yield how the events of a sink differ from the rows that it has to say."""
    twice = events.is_duplicated()  # an event has the place of its message
    if twice.any():
        yield f"{name}: {twice.sum()} events are there more than once: {events.filter(twice)[0]}"
    added = events.filter(~pl.col("retraction") & (pl.col("op") != "d"))
    removed = events.filter(pl.col("withdrawn_ts").is_not_null()).select(
        "part", ts="withdrawn_ts", position="withdrawn_position", count=-1
    )
    counts = (
        pl.concat([added.select(*VERSION, count=1), removed], how="vertical_relaxed")
        .group_by(VERSION)
        .agg(pl.col("count").sum())
    )
    wrong = counts.filter(~pl.col("count").is_in([0, 1]))
    if wrong.height:
        yield f"{name}: {wrong.height} versions are added or withdrawn too often: {wrong[0]}"
    # Corrections of a row keep its version: the last one that was added counts.
    last = added.with_row_index("order").sort("offset", "order").unique(VERSION, keep="last")
    valid = last.join(counts.filter(count=1), on=VERSION, how="inner").select(ROW).sort("oid")
    yield from different(name, valid, expected)
    kinds = dict(events["op"].value_counts().sort("op").rows())
    print(f"{name}: {events.height} events {kinds} say {valid.height} rows")


def different(name: str, found: pl.DataFrame, expected: pl.DataFrame) -> Iterator[str]:
    found = found.cast(dict(expected.schema))
    if found.equals(expected):
        return
    repeated = found.filter(pl.col(expected.columns[0]).is_duplicated())
    missing = expected.join(found, on=expected.columns, how="anti", nulls_equal=True)
    more = found.join(expected, on=expected.columns, how="anti", nulls_equal=True)
    yield (
        f"{name}: {found.height} rows, expected {expected.height}; {repeated.height} repeated, "
        f"{missing.height} missing, {more.height} that should not be"
    )
    for text, some in (("repeated", repeated), ("missing", missing), ("more", more)):
        for row in some.head(SHOWN // 4).to_dicts():
            yield f"{name}: {text} {row}"


def looked_up(places: Places, expected: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the aggregate."""
    uids, found = expected["uid"].to_list(), []
    for start in range(0, len(uids), AT_ONCE):
        some = uids[start : start + AT_ONCE]
        rows = look_up(places.url, places.token, "Spending", "uid", some)
        found += [
            {name: None if row is None else row[name] for name in expected.columns} | {"uid": uid}
            for uid, row in zip(some, rows, strict=True)
        ]
    return pl.DataFrame(found, schema=expected.schema)


def main() -> int:
    places = Places(**json.load(sys.stdin))
    expected = joined(Path(places.rows))
    spending = (
        expected.group_by("uid")
        .agg(orders=pl.len(), spent=pl.col("amount").sum(), tiers=pl.col("tier").sum())
        .select(pl.all().cast(pl.Int64))
        .sort("uid")
    )
    differences = list(different("lookups", looked_up(places, spending), spending))
    differences += audited("topic", topic_events(places), expected)
    events, wrong = table_events(places)
    differences += [*wrong, *audited("table", events, expected)]
    for line in differences:
        print(line)
    print(
        f"compared: {spending.height} keys, {expected.height} rows; differences: {len(differences)}"
    )
    return 1 if differences or not expected.height else 0


if __name__ == "__main__":
    sys.exit(main())
