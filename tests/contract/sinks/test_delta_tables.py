"""Tables of Delta Lake as sinks, in a real S3; read by their protocol, not by their writer."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pydantic import SecretStr

from fennel_core.connections import s3
from fennel_core.connections.errors import (
    ConnectionsError,
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.external_delta import ExternalDelta, ExternalTableUnusable
from fennel_core.connections.external_s3 import ExternalBucket
from fennel_core.connections.http_addresses import AllowedHosts
from fennel_core.definition.sink_check import AddedSink, sink_problems
from fennel_core.settings.model import Settings
from fennel_core.sinks import delta
from fennel_core.sinks.changes import events_of
from fennel_core.sinks.delta import DeltaSinkLog, DeltaSinkSession
from fennel_core.sinks.delta_rows import DeltaForm
from fennel_core.sinks.errors import SinkTableChanged, SinkTableGone, SinkTableTaken
from fennel_core.sinks.positions import SinkPosition, SinkRewind
from fennel_core.sinks.store import MemoryPositionCopy
from fennel_core.sinks.writer import NO_ERASURES, KeyErasures, SinkWriter
from fennel_core.vocab import dtypes as d
from fennel_core.vocab.dtypes import Field
from fennel_core.vocab.ids import DatasetName, TopicName, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import S3, Incremental, Login, S3Table, Sink
from tests.support.compiler_inputs import schema
from tests.support.delta_log import read_log, read_rows
from tests.support.s3 import S3Server, bucket_settings, object_keys
from tests.support.sink_world import USERS, MemoryTopic, frame, located

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SEED = 91


@dataclass
class Lake:
    """A bucket of a user's own, and a table in it."""

    client: S3Client
    place: ExternalDelta
    of: Schema = USERS

    def log(self, name: str = "shop.sink.a.1") -> DeltaSinkLog:
        return DeltaSinkLog(
            self.place, self.of, "installation", TopicName(name), TopicName("shop.topic.a.1")
        )

    def writer(
        self, topic: MemoryTopic, log: Any = None, copy: MemoryPositionCopy | None = None
    ) -> SinkWriter[Any]:
        kept = MemoryPositionCopy() if copy is None else copy
        return SinkWriter(
            "lake/users", self.of, DeltaForm(self.of), log or self.log(), kept, topic.open
        )

    def delete(self) -> None:
        """Delete the table, as a user would."""
        for each in s3.list_objects(self.client, self.place.bucket.bucket, self.place.path):
            self.client.delete_object(Bucket=self.place.bucket.bucket, Key=each.key)

    def version(self) -> int:
        return DeltaTable(self.place.uri, storage_options=self.place.options()).version()

    def rows(self) -> list[dict[str, Any]]:
        return read_rows(self.client, self.place.bucket.bucket, self.place.path)

    def shown(self) -> list[tuple[Any, ...]]:
        rows = sorted(self.rows(), key=lambda row: row["_event"])
        return [(row["user"], row["_op"], row["age"]) for row in rows]


@pytest.fixture
def lake(s3_server: S3Server) -> Lake:
    settings = bucket_settings(s3_server)
    client = s3.client(settings)
    s3.ensure_bucket(client, settings.s3_bucket)
    access = (settings.s3_endpoint, settings.s3_region, settings.s3_access_key)
    bucket = ExternalBucket("lake", settings.s3_bucket, *access, settings.s3_secret_key)
    return Lake(client, ExternalDelta(bucket, f"tables/{uuid.uuid4().hex}"))


class Lossy(DeltaSinkLog):
    """Sessions whose responses are lost at random, after the commit took effect."""

    chance: random.Random

    def open(self, *, first: bool = True) -> DeltaSinkSession:
        session = super().open(first=first)
        write = session._write

        def lossy(*args: Any) -> None:
            write(*args)
            if self.chance.random() < 0.3:
                raise TransactionOutcomeUnknown("the response was lost")

        session._write = lossy  # type: ignore[method-assign]  # one fault
        return session


def test_each_change_is_there_once_whatever_writers_do(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "CHECKPOINT_COMMITS", 3)
    chance = random.Random(SEED)  # noqa: S311  # a seeded choice of faults
    messages = [
        [frame([(2 * n + part, n, n, n, 1)]) for n in range(12)]
        + [frame([(2 * n + part, n, n, n, -1), (2 * n + part, 99, n, n, 1)]) for n in range(3)]
        for part in range(2)
    ]
    topic = MemoryTopic(messages, lambda: chance.randint(1, 3))

    def writer() -> SinkWriter[Any]:
        log = Lossy(*_arguments(lake))
        log.chance = chance
        return lake.writer(topic, log)

    writers, idle, failed = [writer() for _ in range(3)], 0, 0
    while idle < 3:
        own = chance.randrange(len(writers))
        try:
            idle = idle + 1 if writers[own].step(NO_ERASURES).idle else 0
        except ConnectionsError:
            failed += 1
            if chance.random() < 0.5:
                writers[own] = writer()
    assert failed > 2, "responses were lost and writers fenced"
    found = sorted(lake.shown())
    want = [(2 * n + part, "c", n) for n in range(12) for part in range(2)]
    want += [(2 * n + part, "u", 99) for n in range(3) for part in range(2)]
    assert found == sorted(want)
    events = sorted(row["_event"] for row in lake.rows())
    assert events == list(range(len(want))), "each event has its number"
    bucket, path = lake.place.bucket.bucket, lake.place.path
    transactions = read_log(lake.client, bucket, path).transactions
    assert f"{path}/_delta_log/_last_checkpoint" in object_keys(lake.client, bucket, path)
    end = {name.rpartition("/")[2]: value for name, value in transactions.items()}
    assert (end["0"], end["1"], end["events"]) == (15, 15, len(want))


def _arguments(lake: Lake) -> tuple[Any, ...]:
    return (
        lake.place,
        lake.of,
        "installation",
        TopicName("shop.sink.a.1"),
        TopicName("shop.topic.a.1"),
    )


@pytest.mark.parametrize("kind", ["position", "keys"])
def test_a_session_that_is_overtaken_in_a_commit_writes_nothing_more(lake: Lake, kind: str) -> None:
    frozen, form = lake.log().open(), DeltaForm(USERS)
    versions = located([(0, 0, frame([(1, 10, 5, 1, 1)]))])
    rows = form.changes(versions, events_of(versions, USERS), 0)
    (key,) = key_bytes(frame([(9, 0, 0, 0, 1)]), ["user"])
    refresh = frozen._table.update_incremental

    def late() -> None:
        other = lake.log().open()
        other.commit(rows, SinkPosition(other.origin, {0: 1}, 1, 1))
        refresh()

    frozen._table.update_incremental = late  # type: ignore[method-assign]  # it freezes there
    batch = None if kind == "position" else form.deletes([key])
    frozen.commit(batch, SinkPosition(frozen.origin, {}, 1, 0))
    for again in (rows, None, form.deletes([key])):
        frozen._over = False
        with pytest.raises(TransactionAborted, match="another session has taken the sink over"):
            frozen.commit(again, SinkPosition(frozen.origin, {0: 1}, 1, 1))
    assert lake.shown() == [(1, "c", 10)]


def test_a_change_says_which_version_it_is_about(lake: Lake) -> None:
    one = frame([(1, 10, 5, 1, 1)])
    later = frame([(1, 10, 5, 1, -1), (1, None, 6, 2, 1), (2, 20, 7, 3, 1)])
    gone = frame([(2, 20, 7, 3, -1)])
    lake.writer(MemoryTopic([[one, later, gone]], lambda: 3)).step(NO_ERASURES)
    names = [name for name in lake.rows()[0] if name.startswith("_")]
    rows = sorted(lake.rows(), key=lambda row: row["_event"])
    at = {n: datetime.fromtimestamp(n / 1_000_000, UTC) for n in (5, 6, 7)}
    positions = {n: n.to_bytes(4, "big").hex() for n in (1, 2, 3)}
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("c", at[5], positions[1], None, None, False, 0, 0, 0),
        ("d", at[6], positions[2], at[5], positions[1], False, 0, 1, 1),
        ("c", at[7], positions[3], None, None, False, 0, 1, 2),
        ("d", at[7], positions[3], at[7], positions[3], True, 0, 2, 3),
    ]
    assert [(row["user"], row["age"]) for row in rows] == [(1, 10), (1, 10), (2, 20), (2, 20)]


def test_rows_of_erased_keys_leave_the_table_and_do_not_come_back(lake: Lake) -> None:
    topic = MemoryTopic([[frame([(n, 10 * n, 5, n, 1)]) for n in (1, 2, 3)]], lambda: 9)
    writer = lake.writer(topic)
    writer.step(NO_ERASURES)
    topic.partitions = [[*topic.partitions[0], frame([(1, 11, 6, 4, 1), (3, 31, 6, 5, 1)])]]
    keys = key_bytes(frame([(1, 0, 0, 0, 1), (7, 0, 0, 0, 1)]), ["user"])
    erased = KeyErasures(4, [(4, ("user",), keys[0])])
    writer.step(erased)
    writer.step(erased)
    assert lake.shown() == [(2, "c", 20), (3, "c", 30), (3, "c", 31)]
    # A key without rows moves the position all the same.
    writer.step(KeyErasures(5, [*erased.keys, (5, ("user",), keys[1])]))
    position = lake.log().open().position
    assert position is not None
    assert (position.erased, position.next) == (5, {0: 4})
    bucket, path = lake.place.bucket.bucket, lake.place.path
    assert read_log(lake.client, bucket, path).deleted, "a reader of change data sees the deletes"


def test_many_rows_of_an_erased_key_leave_in_several_commits(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "DELETED_AT_ONCE", 2)
    topic = MemoryTopic([[frame([(n % 2, n, n, n, 1)]) for n in range(10)]], lambda: 10)
    lake.writer(topic).step(NO_ERASURES)
    before = lake.version()
    (key,) = key_bytes(frame([(1, 0, 0, 0, 1)]), ["user"])
    erased = KeyErasures(4, [(4, ("user",), key)])
    # A session that begins with it: all of the commits are its own.
    lake.writer(topic).step(erased)
    assert lake.shown() == [(0, "c", n) for n in range(0, 10, 2)]
    assert lake.version() == before + 3
    position = lake.log().open().position
    assert position is not None
    assert position.erased == 4


def test_keys_of_every_type_are_erased(lake: Lake) -> None:
    keys = (Field("A", d.Str()), Field("b", d.Int()), Field("c", d.Decimal(2)))
    lake.of = Schema(keys, (Field("v", d.Int()),), "at")
    rows: dict[str, list[Any]] = {
        "A": ["it's", 'a "b"', "c"],
        "b": [1, 2, 3],
        "c": [Decimal("1.25"), Decimal("2.00"), Decimal("3.50")],
        "v": [1, 2, 3],
        "at": [datetime(2026, 1, 1, tzinfo=UTC)] * 3,
    }
    versions = _versions(lake.of, rows)
    log = lake.log().open()
    form = DeltaForm(lake.of)
    batch = form.changes(versions, events_of(versions, lake.of), 0)
    log.commit(batch, SinkPosition(log.origin, {0: 1}, 0, 3))
    erased = key_bytes(versions[:2], ["A", "b", "c"])
    log.commit(form.deletes(erased), SinkPosition(log.origin, {0: 1}, 2, 5))
    assert [row["A"] for row in lake.rows()] == ["c"]


def _versions(of: Schema, rows: dict[str, list[Any]]) -> pl.DataFrame:
    table = pa.Table.from_pydict(rows, of.arrow())
    converted = pl.from_arrow(table)
    assert isinstance(converted, pl.DataFrame)
    meta = {
        "__pos": pl.Series([n.to_bytes(4, "big") for n in range(len(table))]),
        "__sign": pl.Series([1] * len(table), dtype=pl.Int8),
        "__tombstone": pl.Series([False] * len(table)),
    }
    nothing = [pl.lit(0, pl.Int64).alias("__part"), pl.lit(0, pl.Int64).alias("__offset")]
    return converted.with_columns(**meta).with_columns(nothing)


def test_values_of_every_type_are_columns(lake: Lake) -> None:
    pair = d.Struct("Pair", (Field("x", d.Int()), Field("y", d.Optional(d.Str()))))
    fields = {
        "i": (d.Int(), [1, -2]),
        "f": (d.Float(), [0.5, None]),
        "s": (d.Str(), ["a", "ü"]),
        "b": (d.Bool(), [True, None]),
        "raw": (d.Bytes(), [b"\x00", b""]),
        "day": (d.Date(), [date(2026, 1, 2), None]),
        "money": (d.Decimal(2), [Decimal("1.25"), Decimal("-3.00")]),
        "vector": (d.Embedding(2), [[1.0, 2.0], [3.0, 4.0]]),
        "list": (d.List(d.Int()), [[1, 2], []]),
        "map": (d.Map(d.Int()), [[{"key": "k", "value": 1}], []]),
        "pair": (pair, [{"x": 1, "y": None}, {"x": 2, "y": "z"}]),
        "option": (d.Optional(d.OneOf(d.Str(), ("p", "q"))), ["p", None]),
    }
    lake.of = Schema((), tuple(Field(n, dtype) for n, (dtype, _) in fields.items()), "at")
    at = [datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)]
    given = {name: values for name, (_, values) in fields.items()} | {"at": at}
    versions = _versions(lake.of, given)
    session = lake.log().open()
    batch = DeltaForm(lake.of).changes(versions, events_of(versions, lake.of), 0)
    session.commit(batch, SinkPosition(session.origin, {0: 1}, 0, 2))
    found = sorted(lake.rows(), key=lambda row: row["_event"])
    assert {name: [row[name] for row in found] for name in given} == given


def test_what_others_do_to_a_table_stops_no_sink(lake: Lake) -> None:
    topic = MemoryTopic([[frame([(n, n, 5, n, 1)]) for n in range(4)]], lambda: 1)
    writer = lake.writer(topic)
    writer.step(NO_ERASURES)
    writer.step(NO_ERASURES)
    other = DeltaTable(lake.place.uri, storage_options=lake.place.options())
    assert other.optimize.compact()["numFilesRemoved"] == 2
    writer.step(NO_ERASURES)
    other = DeltaTable(lake.place.uri, storage_options=lake.place.options())
    other.vacuum(0, enforce_retention_duration=False, dry_run=False)
    writer.step(NO_ERASURES)
    assert lake.shown() == [(n, "c", n) for n in range(4)]
    position = lake.log().open().position
    assert position is not None
    assert position.next == {0: 4}


def test_a_table_has_one_sink(lake: Lake) -> None:
    lake.log().open()
    with pytest.raises(SinkTableTaken, match=r"another sink, `installation/shop.sink.a.1/"):
        lake.log("shop.sink.b.1").open()
    other = replace(lake, place=replace(lake.place, path=f"{lake.place.path}-other"))
    write_deltalake(other.place.uri, pa.table({"user": [1]}), storage_options=other.place.options())
    with pytest.raises(SinkTableTaken, match="made by another program"):
        other.log().open()


def test_a_table_with_other_columns_is_named_with_them(lake: Lake) -> None:
    lake.log().open()
    lake.of = schema("user", "score")
    with pytest.raises(SinkTableChanged, match="or of other types: age, score;"):
        lake.log().open()


def test_a_table_that_was_made_again_has_another_origin(lake: Lake) -> None:
    first = lake.log().open().origin
    assert lake.log().open().origin == first
    lake.delete()
    assert lake.log().open().origin != first


def test_a_sink_that_cannot_go_on_leaves_no_commit_in_the_log(lake: Lake) -> None:
    class Broken(MemoryTopic):
        def open(self, following: Any) -> Any:
            raise SystemUnavailable("the platform's Kafka is away")

    topic, copy = MemoryTopic([[frame([(1, 10, 5, 1, 1)])]]), MemoryPositionCopy()
    lake.writer(topic, copy=copy).step(NO_ERASURES)
    written = lake.version()
    for _ in range(3):
        with pytest.raises(SystemUnavailable):
            lake.writer(Broken(topic.partitions), copy=copy).step(NO_ERASURES)
        assert lake.writer(topic, copy=copy).step(NO_ERASURES).idle
    assert lake.version() == written


def test_a_table_that_was_deleted_is_not_made_again_before_it_is_ordered(lake: Lake) -> None:
    topic, copy = MemoryTopic([[frame([(1, 10, 5, 1, 1)])]]), MemoryPositionCopy()
    lake.writer(topic, copy=copy).step(NO_ERASURES)
    lake.delete()
    partly = SinkRewind(1, {0: 0}, whole=False)
    for rewind in (None, partly):
        with pytest.raises(SinkTableGone, match="sink rewind NAME --to earliest"):
            lake.writer(topic, copy=copy).step(NO_ERASURES, rewind)
        names = object_keys(lake.client, lake.place.bucket.bucket, lake.place.path)
        assert not [name for name in names if "_delta_log" in name]
    whole = SinkRewind(2, {0: 0}, whole=True)
    lake.writer(topic, copy=copy).step(NO_ERASURES, whole)
    assert lake.shown() == [(1, "c", 10)]
    assert lake.writer(topic, copy=copy).step(NO_ERASURES, whole).idle


def test_what_is_written_again_is_there_once(lake: Lake) -> None:
    chance = random.Random(SEED)  # noqa: S311  # a seeded choice of faults
    messages = [[frame([(2 * n + part, n, n, n, 1)]) for n in range(9)] for part in range(2)]
    topic, copy = MemoryTopic(messages, lambda: chance.randint(1, 4)), MemoryPositionCopy()
    want = sorted((2 * n + part, "c", n) for n in range(9) for part in range(2))
    rewind: SinkRewind | None = None

    def writer() -> SinkWriter[Any]:
        log = Lossy(*_arguments(lake))
        log.chance = chance
        return lake.writer(topic, log, copy)

    writers, idle, left, failed = [writer(), writer()], 0, 6, 0
    while idle < 3:
        if left and (idle == 2 or chance.random() < 0.1):
            left -= 1
            to = {0: chance.randrange(10), 1: chance.randrange(10)}
            whole = left == 3
            rewind = SinkRewind(6 - left, {0: 0, 1: 0} if whole else to, whole)
        try:
            idle = idle + 1 if chance.choice(writers).step(NO_ERASURES, rewind).idle else 0
        except ConnectionsError:
            failed += 1
    assert failed > 2, "responses were lost"
    position = lake.log().open().position
    assert position is not None
    assert (position.next, position.rewound) == ({0: 9, 1: 9}, 6)
    assert sorted(lake.shown()) == want
    events = [row["_event"] for row in lake.rows()]
    assert len(set(events)) == len(events), "each has a number of its own"


def test_erased_keys_do_not_come_back_with_a_rewind(lake: Lake) -> None:
    topic = MemoryTopic([[frame([(n, 10 * n, 5, n, 1)]) for n in (1, 2)]], lambda: 9)
    writer = lake.writer(topic)
    writer.step(NO_ERASURES)
    (key,) = key_bytes(frame([(1, 0, 0, 0, 1)]), ["user"])
    erased = KeyErasures(4, [(4, ("user",), key)])
    writer.step(erased)
    writer.step(erased, SinkRewind(1, {0: 0}, whole=True))
    assert lake.shown() == [(2, "c", 20)]


def test_what_cannot_be_reached_is_named(lake: Lake) -> None:
    bucket = lake.place.bucket
    for changed, text in (
        ({"s3_secret_key": SecretStr("wrong")}, "what its keys may do"),
        ({"bucket": "no-such-bucket"}, "check that the bucket exists"),
        ({"s3_endpoint": "http://127.0.0.1:1"}, "cannot be used"),
    ):
        wrong = replace(lake.place, bucket=replace(bucket, **changed))
        with pytest.raises(ExternalTableUnusable, match=text):
            replace(lake, place=wrong).log().open()


async def test_a_table_is_checked_before_anything_exists(lake: Lake) -> None:
    bucket, path = lake.place.bucket, lake.place.path
    settings = Settings.model_validate(
        {
            "s3_endpoint": bucket.s3_endpoint,
            "s3_access_key": bucket.s3_access_key,
            "s3_secret_key": bucket.s3_secret_key,
            "s3_bucket": "own",
            "sink_shared_buckets": (bucket.bucket, "own"),
        }
    )

    async def problems(of: Schema = USERS, **table: str) -> list[str]:
        db = S3("lake", None, Login(None, None))
        where = {"bucket": bucket.bucket, "prefix": path} | table
        to = S3Table(db, where["bucket"], where["prefix"], "", "delta", "", (), False, None)
        sink = Sink(
            DatasetName("Users"), 1, to, None, None, Incremental(), True, False, (), None, None
        )
        found = await sink_problems(
            [AddedSink(sink, of)], {}, WorkspaceId("shop"), None, AllowedHosts(), settings
        )
        return [f"{each.code}: {each.text}" for each in found]

    assert await problems() == []
    keys = [each.key for each in s3.list_objects(lake.client, bucket.bucket, path)]
    assert keys == [f"{path}/_fennel/conditional_put"], "nothing else is written"
    (text,) = await problems(bucket="own")
    assert text.startswith("connector-not-served")
    assert "the platform itself" in text
    (text,) = await problems(bucket="other")
    assert "FENNEL_SINK_SHARED_BUCKETS" in text
    lake.log().open()
    assert await problems() == []
    (text,) = await problems(schema("user", "score"))
    assert text.startswith("sink-unreachable")
    assert "age, score; give the sink another path" in text
    uri = f"s3://{bucket.bucket}/foreign"
    write_deltalake(uri, pa.table({"user": [1]}), storage_options=lake.place.options())
    (text,) = await problems(prefix="foreign/")
    assert "was made by another program" in text
    (text,) = await problems(prefix=f"{path}/below")
    assert f"below table `{path}`, whose VACUUM deletes" in text


class Careless:
    """A store that creates an object whether it exists or not."""

    def put_object(self, **_: object) -> None:
        """Nothing is refused."""


def test_a_store_that_ignores_the_condition_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExternalBucket, "client", lambda _: Careless())
    with pytest.raises(ExternalTableUnusable, match="two writers could lose changes"):
        lake.log().open()
