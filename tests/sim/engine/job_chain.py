"""The jobs of the simulated slots, their input rows, and a naive recompute of their outputs.

events ─ clean (Map, as user code in half of the runs) ─ cleaned ─┐
users ──────────────────────────────────────────────────── join ─ joined ─┬ totals (windows,
emitted) ─ totals
  └ table (lookups)                                                       └ served (lookups)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final
from zlib import crc32

import msgspec
import polars as pl

from fennel_core.blueprints.spec import Job, Output
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.outputs import split_by_partition
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.operators import spec
from fennel_core.operators.build import as_watermark_step, build
from fennel_core.operators.rows import frame_columns
from fennel_core.operators.spec import StepSpec
from fennel_core.operators.step import Outcome
from fennel_core.vocab.dtypes import Field, Int, Optional, Str
from fennel_core.vocab.ids import JobId, Micros, TopicName, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import FORMAT_HEADER, encode_frame
from fennel_core.wire import operators as wire

MOST_PARTITIONS: Final = 4
WINDOW_US: Final = 10_000_000
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS, USERS, CLEANED, JOINED, TOTALS, DEAD = (
    TopicName(n) for n in ("events", "users", "cleaned", "joined", "totals", "dead")
)
EVENT = Schema((), (Field("uid", Str()), Field("amount", Int())), "at")
USER = Schema((Field("uid", Str()),), (Field("city", Optional(Str())),), "at")
MET = Schema((), (*EVENT.values, Field("city", Optional(Str()))), "at")
SUMS = (Field("count", Int()), Field("amount", Int()))
SERVED = Schema((Field("city", Optional(Str())),), SUMS, "at")
META_TYPES = {"__pos": pl.Binary(), "__sign": pl.Int8(), "__tombstone": pl.Boolean()}
UIDS, CITIES = [f"u{n}" for n in range(6)], ["rome", "oslo", "lima"]
Row = dict[str, Any]


def _sums(window: wire.Window) -> tuple[wire.Spec, ...]:
    return wire.Count("count", window, None, False, False, False), wire.Sum(
        "amount", window, "amount"
    )


TOTALS_STEP = spec.AggregateSpec(
    MET, ("city",), _sums(wire.Tumbling(WINDOW_US, 0)), None, False, SERVED
)


def _job(name: str, step: StepSpec, inputs: tuple[TopicName, ...], *outputs: Output) -> Job:
    return Job(
        JobId(name),
        WorkspaceId("w"),
        inputs,
        outputs,
        step,
        TopicName(f"{name}-replaylog"),
        DEAD,
        MOST_PARTITIONS,
        name,
    )


CLEAN = _job("clean", spec.MapSpec((EVENT,), ((),), EVENT), (EVENTS,), Output(CLEANED, ("uid",)))
JOIN = _job(
    "join",
    spec.JoinSpec(EVENT, USER, ("uid",), ("city",), False, None, 0, MET),
    (CLEANED, USERS),
    Output(JOINED, ("city",), watermark=True),
)
TOTAL = _job("totals", TOTALS_STEP, (JOINED,), Output(TOTALS, ("city",), watermark=True))
SERVE = _job(
    "served",
    spec.AggregateSpec(MET, ("city",), _sums(wire.Forever()), None, True, SERVED),
    (JOINED,),
)
TABLE = _job("table", spec.TableSpec(USER), (USERS,))


def jobs(partitions: int) -> tuple[Job, ...]:
    return tuple(replace(job, partitions=partitions) for job in (CLEAN, JOIN, TOTAL, SERVE, TABLE))


def micros(second: float) -> Micros:
    return Micros(int((EPOCH + timedelta(seconds=second)).timestamp() * 1_000_000))


def frame(schema: Schema, rows: Sequence[Row]) -> pl.DataFrame:
    """Return rows as a batch of signed versions; times in microseconds."""
    columns = {**frame_columns(schema), **META_TYPES}
    plain = {n: pl.Int64() if isinstance(t, pl.Datetime) else t for n, t in columns.items()}
    made = [[{"__sign": 1, "__tombstone": False, **row}[name] for name in columns] for row in rows]
    return pl.DataFrame(made, schema=plain, orient="row").cast(columns)  # type: ignore[arg-type]  # a mapping of names is accepted


@dataclass
class RowSource:
    """Rows as ingest writes them, from a seed; `events` and `users` are the accepted ones."""

    random: random.Random
    partitions: int
    events: list[Row] = field(default_factory=list)
    users: list[Row] = field(default_factory=list)
    sent: list[Row] = field(default_factory=list)
    """Users that may be accepted later, or never."""
    _stamped: int = 0

    def batch(self, second: float) -> tuple[list[Row], list[Row], list[OutgoingRecord]]:
        """Return some events and users around `second`, often late, and their records."""
        events = [
            {
                "uid": self.random.choice(UIDS),
                "amount": self.random.randrange(1, 100),
                **self._place(second),
            }
            for _ in range(self.random.randrange(4))
        ]
        users = [self._user(second) for _ in range(self.random.randrange(3))]
        self.sent += users
        spread = [(self.random.randrange(self.partitions), event) for event in events]
        sent = [
            _message(EVENTS, p, frame(EVENT, [e for q, e in spread if q == p]))
            for p in sorted({p for p, _ in spread})
        ]
        if users:
            sent += [
                _message(USERS, p, part)
                for p, part in split_by_partition(frame(USER, users), ("uid",), self.partitions, 0)
            ]
        return events, users, sent

    def accepted(self, events: list[Row], users: list[Row]) -> None:
        self.events += events
        self.users += users

    def _user(self, second: float) -> Row:
        deleted = self.random.random() < 0.15
        return {
            "uid": self.random.choice(UIDS),
            "city": None if deleted else self.random.choice(CITIES),
            "__tombstone": deleted,
            **self._place(second),
        }

    def _place(self, second: float) -> Row:
        self._stamped += 1
        late = self.random.choice([0, 0, 1, 15])
        position = stamp(Hlc(self._stamped), 0, 1)[0].as_py()
        return {"at": micros(int(second) - late * self.random.random()), "__pos": position}


def _message(topic: TopicName, part: int, batch: pl.DataFrame) -> OutgoingRecord:
    return OutgoingRecord(topic, part, encode_frame(batch), (FORMAT_HEADER,))


# --- expected outputs -----------------------------------------------------------------------------


def _newest(users: Sequence[Row], uid: str, at: int) -> Row | None:
    versions = [u for u in users if u["uid"] == uid and u["at"] <= at]
    newest = max(versions, key=lambda u: (u["at"], u["__pos"]), default=None)
    return None if newest is None or newest["__tombstone"] else newest


def joined(feed: RowSource) -> list[Row]:
    met = [(event, _newest(feed.users, event["uid"], event["at"])) for event in feed.events]
    return [{**event, "city": None if user is None else user["city"]} for event, user in met]


def integral(frames: Sequence[pl.DataFrame], schema: Schema) -> Counter[tuple[Any, ...]]:
    """Return the sum of signs per version, without those that are zero."""
    left: Counter[tuple[Any, ...]] = Counter()
    for one in frames:
        times = one.with_columns(pl.col(schema.timestamp).to_physical()).select(
            *schema.names, "__pos", "__tombstone", "__sign"
        )
        for *row, sign in times.rows():
            left[tuple(row)] += sign
    return Counter({row: count for row, count in left.items() if count != 0})


def expected_integrals(feed: RowSource) -> Mapping[TopicName, Counter[tuple[Any, ...]]]:
    """Return the integral of every output topic, and of the dead letters.

    `totals` is computed in one pass over the naive join, partition by partition.
    """
    met = joined(feed)
    one_pass: list[pl.DataFrame] = []
    if met:
        top = max(row["at"] for row in met)
        for _, part in split_by_partition(frame(MET, met), ("city",), feed.partitions, 0):
            one_pass += [e.frame for e in _single_pass(part, Micros(top))]
    return {
        CLEANED: integral([frame(EVENT, feed.events)], EVENT),
        JOINED: integral([frame(MET, met)], MET),
        TOTALS: integral(one_pass, SERVED),
        DEAD: integral([frame(EVENT, [e for e in feed.events if is_dead(e["__pos"])])], EVENT),
    }


def is_dead(position: bytes) -> bool:
    """Return whether an event is a dead letter, too."""
    return crc32(position) % 5 == 0


def _single_pass(part: pl.DataFrame, top: Micros) -> Iterator[Any]:
    step, state = build(TOTALS_STEP), MemoryHangar()
    advances = as_watermark_step(step)
    assert advances is not None, "tumbling windows close by event time"
    first: Outcome = step.apply(state, 0, part)
    yield from first.emits
    state.write(WriteBatch(first.puts, first.deletes))
    yield from advances.advance(state, top).emits


@cache
def keys_of(job: JobId) -> list[tuple[Any, bytes]]:
    """Return (name, key bytes) of every key that can be looked up."""
    names, column = {SERVE.id: ([*CITIES, None], "city"), TABLE.id: (UIDS, "uid")}.get(
        job, ([], "")
    )
    return (
        list(zip(names, key_bytes(pl.DataFrame({column: names}), [column]), strict=True))
        if names
        else []
    )


def row_of(job: JobId, name: Any, at: int, rows: Sequence[Row]) -> list[Any] | None:
    """Return the row that a lookup over `rows` must find.

    `rows`: users for the table, joined events for the aggregate.
    """
    if job == TABLE.id:
        user = _newest(rows, name, at)
        return None if user is None else [user["at"], user["city"]]
    there = [row for row in rows if row["city"] == name and row["at"] <= at]
    return (
        [max(r["at"] for r in there), len(there), sum(r["amount"] for r in there)]
        if there
        else None
    )


def lookups(
    feed: RowSource, seconds: Sequence[float]
) -> Iterator[tuple[JobId, bytes, Micros, Any]]:
    """Yield (job, key, as of, row or None) for every key at every time."""
    met = joined(feed)
    for at in map(micros, seconds):
        for job, rows in ((SERVE.id, met), (TABLE.id, feed.users)):
            for name, key in keys_of(job):
                yield job, key, at, row_of(job, name, at, rows)


def decoded(row: bytes | None) -> Any:
    return None if row is None else msgspec.msgpack.decode(row)
