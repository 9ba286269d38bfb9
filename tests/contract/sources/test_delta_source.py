"""Delta tables on a real S3 as a source: rows, places, what is refused at the commit."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from fennel_core.connections import s3
from fennel_core.connections.delta_log import FEED, LogUnreadable
from fennel_core.connections.external_delta import ExternalDelta, ExternalTableUnusable
from fennel_core.connections.external_s3 import opened
from fennel_core.definition.delta_check import AddedDelta, delta_problems
from fennel_core.settings.model import Settings
from fennel_core.sources import delta_tables
from fennel_core.sources.delta_changes import DeltaChanges, DeltaCursor
from fennel_core.sources.delta_tables import delta_store
from fennel_core.sources.errors import TableVersionsGone
from fennel_core.sources.file_trial import newest_file_rows
from fennel_core.vocab.ids import BranchName
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import S3, Cdc, Login, PlainSecret, S3Table
from tests.support.delta_source import SCHEMA
from tests.support.ingest_world import KEYED, KEYLESS, WORKSPACE, binding, catalog, source
from tests.support.s3 import S3Server, bucket_settings, s3_server

__all__ = ["s3_server"]
AT = "2026-01-01T00:00:00Z"


def users(*names: str, **columns: list) -> pa.Table:
    made = {
        "user": list(names),
        "age": pa.array([len(name) for name in names], pa.int32()),
        "at": pa.array([AT] * len(names)).cast(pa.timestamp("us", "UTC")),
    }
    return pa.table(made | columns)


class Lake:
    """A bucket of a user with one table."""

    def __init__(self, server: S3Server) -> None:
        secret = server.s3_secret_key.get_secret_value()
        keys = Login(PlainSecret(server.s3_access_key), PlainSecret(secret))
        name = f"lake-{uuid.uuid4().hex[:8]}"
        self.settings = Settings(s3_endpoint=server.s3_endpoint)
        db = S3("lake", None, keys)
        self.table = S3Table(db, name, "in/users/", "", "delta", "", (), False, None)
        bucket = opened(db, name, bucket_settings(server), lambda _: "")
        s3.ensure_bucket(bucket.client(), name)
        self.place = ExternalDelta(bucket, "in/users")

    def write(self, rows: pa.Table, feed: bool = True, **options: object) -> None:
        write_deltalake(
            self.place.uri,
            rows,
            storage_options=self.place.options(),
            configuration={FEED: "true"} if feed else None,
            **options,
        )

    def opened(self) -> DeltaTable:
        return DeltaTable(self.place.uri, storage_options=self.place.options())

    def read(self, cursor: DeltaCursor | None) -> tuple[list[tuple], DeltaCursor]:
        table_id, found = self.place.head().shape.table_id, []
        for piece in DeltaChanges(delta_store(self.place), table_id, ("user",), cursor).pieces():
            cursor = piece.cursor
            for part in piece.parts:
                rows = part.rows.to_pylist()
                found += [(row["_change_type"], row["user"]) for row in rows]
        assert cursor is not None
        return sorted(found), cursor

    async def problems(self, schema: Schema = KEYED, **changes: object) -> list[str]:
        table = replace(self.table, **changes)
        added = AddedDelta(source(table=table, cdc=Cdc.NATIVE), table, schema)
        found = await delta_problems([added], {}, WORKSPACE, None, self.settings)
        return [f"{each.code}: {each.text}" for each in found]


@pytest.fixture
def lake(s3_server: S3Server) -> Lake:
    return Lake(s3_server)


def test_rows_and_changes_are_read_from_the_bucket(lake: Lake) -> None:
    lake.write(users("a", "b c/d", "e", town=["x/y", "z %", None]), partition_by=["town"])
    rows, cursor = lake.read(None)
    assert rows == [("read", "a"), ("read", "b c/d"), ("read", "e")]
    lake.write(users("f", town=["x/y"]), mode="append")
    lake.opened().delete("user = 'a'")
    lake.opened().optimize.compact()
    lake.opened().create_checkpoint()
    lake.opened().update(predicate="user = 'e'", updates={"age": "7"})
    rows, cursor = lake.read(cursor)
    assert rows == [("delete", "a"), ("insert", "f"), ("update_postimage", "e")]
    lake.write(users("e", town=["new"]), mode="overwrite")
    assert lake.read(cursor)[0] == [("delete", "b c/d"), ("delete", "f"), ("insert", "e")]


def test_objects_that_are_gone_are_reported(lake: Lake) -> None:
    lake.write(users("a"))
    _, cursor = lake.read(None)
    lake.write(users("b"), mode="append")
    lake.write(users("c"), mode="append")
    lake.opened().create_checkpoint()
    client, bucket = lake.place.bucket.client(), lake.place.bucket.bucket
    log = f"in/users/_delta_log/{1:020}.json"
    kept = client.get_object(Bucket=bucket, Key=log)["Body"].read()
    client.delete_object(Bucket=bucket, Key=log)
    with pytest.raises(TableVersionsGone, match="versions 1 to 2"):
        lake.read(cursor)
    client.put_object(Bucket=bucket, Key=log, Body=kept)
    added = lake.opened().file_uris()
    for uri in added:
        client.delete_object(Bucket=bucket, Key=uri.removeprefix(f"s3://{bucket}/"))
    with pytest.raises(TableVersionsGone, match="was deleted, as by VACUUM"):
        lake.read(cursor)


def test_a_commit_that_does_not_fit_into_memory_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write(users("a"))
    _, cursor = lake.read(None)
    lake.write(users("b"), mode="append")
    monkeypatch.setattr(delta_tables, "COMMIT_BYTES", 100)
    with pytest.raises(ExternalTableUnusable, match=rf"{1:020}.json` has more than"):
        lake.read(cursor)


async def test_a_table_is_checked_at_the_commit(lake: Lake) -> None:
    assert ["source-unreachable" in text for text in await lake.problems()] == [True]
    assert "does not exist" in (await lake.problems())[0]
    with pytest.raises(ExternalTableUnusable, match="does not exist"):
        lake.place.head()
    lake.write(SCHEMA.empty_table(), feed=False)
    (feedless,) = await lake.problems()
    assert feedless.startswith("source-table-unfit: ")
    assert "has no change data feed" in feedless
    assert await lake.problems(replace(KEYLESS, values=KEYLESS.values[:1])) == []
    lake.opened().alter.set_table_properties({FEED: "true"})
    assert await lake.problems() == []
    (lacking,) = await lake.problems(KEYLESS)
    assert "has no column `amount`" in lacking
    (other,) = await lake.problems(bucket="no-such-bucket-1")
    assert "does not exist" in other
    (own,) = await lake.problems(bucket=lake.settings.s3_bucket)
    assert "bucket of the platform itself" in own
    keyless = S3("lake", None, Login(None, None))
    (unnamed,) = await lake.problems(db=keyless)
    assert "FENNEL_SOURCE_SHARED_BUCKETS" in unnamed


async def test_branches_agree_on_the_keys_of_a_table(lake: Lake) -> None:
    lake.write(SCHEMA.empty_table())
    of = source(table=lake.table, cdc=Cdc.NATIVE)
    theirs = catalog(binding(KEYLESS, of=of))
    added = AddedDelta(of, replace(lake.table, prefix="/in/users"), KEYED)
    (problem,) = await delta_problems(
        [added], {BranchName("dev"): theirs}, WORKSPACE, None, lake.settings
    )
    assert problem.code == "connector-redefined"
    assert "by the key columns `user`, and in branch `dev` by no keys" in problem.text


def test_rows_are_shown(lake: Lake) -> None:
    lake.write(users("a", "b"))
    rows = newest_file_rows(lake.settings, lake.table, lambda _: "", 1)
    assert [(each.key, each.number) for each in rows] == [("in/users", 0)]
    shown = rows[0].row
    assert isinstance(shown, dict)
    assert (shown["user"], shown["_change_type"]) == ("a", "read")


def test_what_cannot_be_read_of_a_log_names_the_table(lake: Lake) -> None:
    with (
        pytest.raises(ExternalTableUnusable, match=r"Delta table `s3://.*` cannot be opened: it"),
        lake.place.checked("cannot be opened"),
    ):
        raise LogUnreadable("it has no actions")
