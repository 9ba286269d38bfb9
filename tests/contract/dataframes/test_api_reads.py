"""A reader with a token, and without keys of the stores, has the rows of one with them."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
import uvicorn
from click.testing import CliRunner, Result

from fennel_core.apps.cli import main
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView, Job
from fennel_core.connections import erasures
from fennel_core.connections.object_store import MemoryObjectStore
from fennel_core.connections.postgres import Pool, pool
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.dataframes import planning, read_service
from fennel_core.dataframes.api_messages import decode_page
from fennel_core.dataframes.api_versions import ApiVersions, ReadApi
from fennel_core.dataframes.datasource import open_log
from fennel_core.dataframes.part_rows import VersionStore, rows_of_part
from fennel_core.dataframes.parts import TopicInput, parts_of
from fennel_core.dataframes.planning import ReadPlan, read_of
from fennel_core.dataframes.query_log import QueryLogReader, parse_log_options, read_schema
from fennel_core.dataframes.read_request import parse_options
from fennel_core.dataframes.read_service import DataframeReads, ReadStores
from fennel_core.dataframes.routes import router
from fennel_core.definition.commit_service import CommitService
from fennel_core.definition.server import application
from fennel_core.definition.server_state import ServerState
from fennel_core.history import parquet
from fennel_core.history.conditions import Conditions
from fennel_core.history.errors import ReadFailed
from fennel_core.history.file_slices import TopicRecord
from fennel_core.history.roll import TopicLayout
from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.settings.model import Settings
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab import query_log_blocks
from fennel_core.vocab.ids import (
    DatasetName,
    JobId,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.query_log_blocks import LogBlock
from tests.laws.dataframes.page_source import ORDER_ROWS, ORDERS, SPEND, USER_ROWS, USERS
from tests.laws.dataframes.stores import MemoryVersions, topic_of
from tests.support.histories import History
from tests.support.polling import eventually
from tests.support.ports import free_port

SHOP = WorkspaceId("shop")
USER_TOPIC, ORDER_TOPIC = TopicName("shop.topic.user.1"), TopicName("shop.topic.orders.1")
LOG_TOPIC = TopicName("shop.querylog.log.1")
JOB = JobId("shop.job.spend.1")
NOW = datetime(2026, 3, 5, tzinfo=UTC)


@dataclass
class MemoryTopics:
    """The stores of a server, in memory. Objects and topics have the names of this workspace."""

    files: MemoryObjectStore
    inputs: dict[TopicName, TopicInput]
    versions: dict[TopicName, MemoryVersions]

    async def add(self, topic: TopicName, history: History, *layout: Any) -> None:
        store, made = topic_of(history, *layout, [1, 1])
        for key, body in store.objects.items():
            await self.files.put(f"history/{topic}/0/{key}", body)
        slices = tuple(self._renamed(topic, each) for each in made.slices)
        self.inputs[topic] = replace(made, slices=slices)
        self.versions[topic] = store

    def _renamed(self, topic: TopicName, part: TopicSlice) -> TopicSlice:
        files = tuple(
            replace(file, object_key=f"history/{topic}/0/{file.object_key}", size_bytes=size)
            for file in part.files
            if (size := len(self.files.contents[f"history/{topic}/0/{file.object_key}"]))
        )
        return replace(part, partition=(topic, part.partition[1]), files=files)

    def direct(self, topic: TopicName) -> MemoryVersions:
        """Return the versions of a topic as a reader with keys has them."""
        messages = self.versions[topic].messages.items()
        return MemoryVersions(
            self.files.contents, {(topic, part): found for (_, part), found in messages}
        )

    async def slices_of(self, topic: TopicName) -> tuple[TopicSlice, ...]:
        return self.inputs[topic].slices

    def tail(self, part: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
        messages = self.direct(part[0]).messages[part]
        for offset in range(first, end):
            yield TopicRecord(part, Offset(offset), messages[offset])

    def log_end(self, part: TopicPartition) -> Offset | None:
        found = {each.partition: each.end for each in self.inputs[part[0]].slices}
        return found.get(part)


async def make_catalog(connections: Pool) -> None:
    """Add a branch that serves a keyed dataset, one without keys, and a terminal aggregate."""
    views = (
        DatasetView(DatasetName("User"), 1, USERS, USER_TOPIC, None, True, True, (), True),
        DatasetView(DatasetName("Spend"), 1, SPEND.output, None, JOB, True, True, (), False),
    )
    job = Job(JOB, SHOP, (ORDER_TOPIC,), (), SPEND, TopicName("r"), TopicName("d"), 2, "")
    catalog = stored_names.dumps(Catalog(SHOP, views, (), (JOB,), 2))
    async with connections.connection() as connection, connection.transaction():
        for name in ("shop", "other"):
            await connection.execute("INSERT INTO workspace (name) VALUES (%s)", (name,))
        for token, workspace, role in (
            ("reader", "shop", "query"),
            ("door", "shop", "log"),
            ("stranger", "other", "query"),
        ):
            await connection.execute(
                "INSERT INTO token (digest, workspace, role)"
                " VALUES (sha256(%s::text::bytea), %s, %s)",
                (token, workspace, role),
            )
        await connection.execute(
            "INSERT INTO commit (id, workspace, branch, state, digest, request, options, catalog)"
            " VALUES ('c1', 'shop', 'main', 'finished', '', '', '{}', %s)",
            (catalog,),
        )
        await connection.execute(
            "INSERT INTO branch (workspace, name, target, serving)"
            " VALUES ('shop', 'main', 'c1', 'c1')"
        )
        for topic in (USER_TOPIC, ORDER_TOPIC):
            await connection.execute(
                "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title,"
                " blueprint) VALUES (%s, 'shop', 'topic', %s, 1, 'live', '', '')",
                (topic, topic),
            )
        await connection.execute(
            "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title,"
            " blueprint) VALUES (%s, 'shop', 'job', %s, 1, 'live', '', '')",
            (JOB, JOB),
        )
        await connection.execute(
            "INSERT INTO job (id, workspace, spec) VALUES (%s, 'shop', %s)",
            (JOB, stored_names.dumps(job)),
        )


@pytest.fixture
async def connections(database: str) -> AsyncIterator[Pool]:
    async with pool(database, name="test", size=3) as opened:
        await make_catalog(opened)
        yield opened


@pytest.fixture
async def topics() -> MemoryTopics:
    made = MemoryTopics(MemoryObjectStore(lambda: NOW), {}, {})
    await made.add(USER_TOPIC, USER_ROWS, USERS, USERS.key_names)
    await made.add(ORDER_TOPIC, ORDER_ROWS, ORDERS, SPEND.keys)
    return made


@pytest.fixture
async def url(connections: Pool, topics: MemoryTopics) -> AsyncIterator[str]:
    """The address of a server with these stores."""
    commits = cast(CommitService, None)  # no route of these tests uses it
    limits = WorkspaceLimits(1000, 0.0)
    state = ServerState(Settings(), connections, commits, commits, None, lambda: None, limits)
    app = application(state, HealthEndpoint("test", {}), (router,))
    stores = ReadStores(topics.files, topics.slices_of, topics.tail, topics.log_end)
    app.state.dataframe_reads = reads = DataframeReads(connections, stores)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started, what="the server listens")
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await running
    reads.close()


def rows(plan: ReadPlan, versions: VersionStore) -> list[str]:
    """Return the rows of a read, in order."""
    frames = (
        frame
        for part in parts_of(plan.read, (), plan.topic)
        for frame in rows_of_part(versions, plan.read, part)
    )
    return sorted(str(row) for frame in frames for row in frame.rows())


async def over_api(url: str, options: Mapping[str, str]) -> list[str]:
    """Read as the data source does, in a thread: the API is served by this loop."""
    request = parse_options({"url": url, "token": "reader", **(options or {})}, NOW)
    assert request.url is not None
    assert request.token is not None
    api = ReadApi(request.url, request.token)

    def work() -> list[str]:
        return rows(api.plan(request), ApiVersions(api))

    return await asyncio.to_thread(work)


READS: list[dict[str, str]] = [
    {"dataset": "User"},
    {"dataset": "User", "as_of": "2026-02-15T00:00:00Z", "columns": "country"},
    {"dataset": "User", "mode": "latest"},
    {"dataset": "User", "mode": "changelog"},
    {"dataset": "Spend"},
]


async def test_a_token_reads_what_the_stores_have(
    url: str, topics: MemoryTopics, connections: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_service, "PAGE_BYTES", 1)
    for options in READS:
        topic, schema, aggregate = USER_TOPIC, USERS, None
        if options["dataset"] == "Spend":
            topic, schema, aggregate = ORDER_TOPIC, ORDERS, SPEND
        read = read_of(schema, aggregate, parse_options({"workspace": "w", **options}, NOW), ())
        expected = rows(ReadPlan(read, topics.inputs[topic], {}), topics.direct(topic))
        assert expected
        assert await over_api(url, options) == expected
    keys = key_bytes(pl.DataFrame({"user_id": [1]}), ("user_id",))
    await erasures.add(connections, SHOP, DatasetName("User"), ["user_id"], keys)
    assert await over_api(url, {"dataset": "User", "columns": "country"}) == ["('FR',)"]


async def test_the_command_exports_a_dataset_over_the_api(url: str, tmp_path: Path) -> None:
    def command(*words: str) -> Result:
        to = ["--to", str(tmp_path / "users"), "--format", "parquet", "--url", url]
        return CliRunner().invoke(main, ["export", *words, *to, "--token", "reader"])

    done = await asyncio.to_thread(command, "User", "--as-of", "2026-02-15", "--columns", "country")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Wrote 3 rows of User in ")
    found = [pl.read_parquet(path) for path in (tmp_path / "users").glob("*.parquet")]
    assert sorted(pl.concat(found)["country"]) == ["FR", "FR", "IT"]
    refused = await asyncio.to_thread(command, "User")
    assert (refused.exit_code, "is not empty; name a new folder" in refused.output) == (1, True)
    for words, said in (
        (("Usr",), "unknown dataset `Usr`"),
        (("User", "--workspace", "shop"), "--token has no effect beside --workspace"),
        (("User", "--mode", "newest"), "unknown mode `newest`"),
    ):
        assert said in (await asyncio.to_thread(command, *words)).output


FILE = f"history/{USER_TOPIC}/0/0-0"
REFUSED: list[tuple[str, str, dict[str, str | int], str]] = [
    ("door", "/file", {"key": FILE}, "has the role `log`"),
    ("stranger", "/file", {"key": FILE}, "not the content of a dataset of this workspace"),
    ("stranger", "/tail", {"topic": USER_TOPIC}, "not the content of a dataset of this workspace"),
    ("reader", "/tail", {"topic": JOB}, "not the content of a dataset of this workspace"),
    ("reader", "/file", {"key": f"{FILE}x"}, "history has no file"),
    ("reader", "/file", {"key": f"{FILE}/../../x"}, "history has no file"),
    ("reader", "/file", {"key": f"secrets/{USER_TOPIC}/0/x"}, "history has no file"),
    ("reader", "/file", {"key": FILE, "size": 1 << 30}, "ask for 1"),
    ("unissued", "/tail", {"topic": USER_TOPIC}, "unknown token"),
]


async def test_a_token_reads_the_content_of_its_workspace_only(url: str) -> None:
    for token, path, params, said in REFUSED:
        rest = {"size": 1} if path == "/file" else {"partition": 0, "end": 1}
        asked = {"first": 0, **rest, **params}
        with pytest.raises(ReadFailed, match=said):
            await asyncio.to_thread(ReadApi(url, token).call, "GET", path, asked)


async def test_a_tail_ends_with_the_log_whatever_end_is_asked_for(
    url: str, topics: MemoryTopics
) -> None:
    part = topics.inputs[USER_TOPIC].slices[0]
    api = ReadApi(url, "reader")
    asked = {"topic": USER_TOPIC, "partition": 0, "first": part.tail_first}

    def ends() -> list[int]:
        return [
            decode_page(api.call("GET", "/tail", {**asked, "end": end})).following
            for end in (part.end, 10**12)
        ]

    assert await asyncio.to_thread(ends) == [part.end] * 2
    with pytest.raises(ReadFailed, match="is not the content of a dataset"):
        await asyncio.to_thread(api.call, "GET", "/tail", {**asked, "partition": 99, "end": 1})
    # A log that was restored from a backup has fewer records than the plan of a read.
    planned = replace(part, files=(), end=Offset(part.end + 5))

    def read() -> list[pl.DataFrame]:
        return list(ApiVersions(api).batches(planned, ("user_id",), Conditions((), ())))

    with pytest.raises(ReadFailed, match=f"ends at {part.end} and ended at {part.end + 5}"):
        await asyncio.to_thread(read)


async def test_reads_of_one_workspace_hold_up_neither_others_nor_commits(
    connections: Pool, topics: MemoryTopics
) -> None:
    theirs = TopicName("other.topic.user.1")
    async with connections.connection() as connection:
        await connection.execute(
            "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title,"
            " blueprint) VALUES (%s, 'other', 'topic', 'x', 1, 'live', '', '')",
            (theirs,),
        )
    released = threading.Event()

    def tail(part: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
        if part[0] == USER_TOPIC:
            assert released.wait(30), "the test ends"
        yield TopicRecord(part, first, b"")

    stores = ReadStores(topics.files, topics.slices_of, tail, lambda _: Offset(1))
    reads, loop = DataframeReads(connections, stores), asyncio.get_running_loop()
    default = ThreadPoolExecutor(1)
    loop.set_default_executor(default)

    def page(workspace: str, topic: TopicName) -> asyncio.Task[bytes]:
        part = (topic, PartitionIndex(0))
        return asyncio.create_task(reads.tail(WorkspaceId(workspace), part, Offset(0), Offset(1)))

    blocked = [page("shop", USER_TOPIC) for _ in range(2 * read_service.READS_AT_ONCE)]
    try:
        async with asyncio.timeout(10):
            assert decode_page(await page("other", theirs)).records == [(0, b"")]
            await asyncio.to_thread(int)
        assert not any(each.done() for each in blocked)
    finally:
        released.set()
        await asyncio.gather(*blocked)
        reads.close()


async def test_definitions_are_decoded_beside_the_event_loop(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def decoded(definitions: bytes) -> dict[str, dict[str, str]]:
        threads.append(threading.get_ident())
        return {}

    monkeypatch.setattr(planning, "comments_of", decoded)
    assert await over_api(url, {"dataset": "User"})
    assert threads
    assert threading.get_ident() not in threads


def log_block(hour: int, *, erasable: int) -> LogBlock:
    """Return a block with the one row of a query at an hour, which looked up the key `erasable`."""
    subject = query_log_blocks.subject(DatasetName("User"), ("user_id",), user_key(erasable))
    frame = pl.DataFrame(
        {
            "request_id": [f"r{hour}"],
            "row": [0],
            "timestamp": [NOW + timedelta(hours=hour)],
            "__row_subjects": [[subject]],
            "__request_subjects": [[]],
        },
        schema=query_log_blocks.ROW_COLUMNS,
    ).with_columns(pl.Series("F.hour", [hour], dtype=pl.Int64))
    return query_log_blocks.block_of(
        frame, workflow="fraud", branch="main", commit="c1", sampling_rate=1.0
    )


def user_key(user: int) -> bytes:
    (key,) = key_bytes(pl.DataFrame({"user_id": [user]}), ("user_id",))
    return key


async def add_log(connections: Pool, topics: MemoryTopics) -> None:
    """Add a query log: the queries of hours 0 and 1 are in a file of history, 2 in the tail."""
    messages = [query_log_blocks.encode([log_block(hour, erasable=hour + 1)]) for hour in range(3)]
    key, part = f"history/{LOG_TOPIC}/0/0-0", PartitionIndex(0)
    body = parquet.encode_file(
        parquet.file_frame([(Offset(at), value) for at, value in enumerate(messages[:2])], ())
    )
    await topics.files.put(key, body)
    times = (Micros(int((NOW + timedelta(hours=n)).timestamp()) * 1_000_000) for n in range(2))
    file = HistoryFile(LOG_TOPIC, part, Offset(0), Offset(2), key, 2, len(body), *times)
    whole = TopicSlice((LOG_TOPIC, part), (file,), Offset(2), Offset(3), "")
    topics.inputs[LOG_TOPIC] = TopicInput((whole,), TopicLayout((), "last"))
    topics.versions[LOG_TOPIC] = MemoryVersions(messages={(LOG_TOPIC, part): messages})
    async with connections.connection() as connection:
        await connection.execute(
            "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title,"
            " blueprint) VALUES (%s, 'shop', 'querylog', 'q', 1, 'live', '', '')",
            (LOG_TOPIC,),
        )


def logged(url: str, options: Mapping[str, str] | None = None) -> list[tuple[str, int]]:
    """Return request ids and features of logged queries, as the data source reads them."""
    request = parse_log_options(
        {"query_log": "fraud", "url": url, "token": "reader", **(options or {})}, NOW
    )

    def no_settings() -> Settings:
        raise AssertionError("a reader with a token has no settings")

    opened = open_log(request, no_settings)
    planned = QueryLogReader(opened, request.selection, read_schema(opened, request.selection))
    # Spark sends the reader and its partitions to other processes.
    sent = pickle.dumps((planned, planned.partitions()))
    reader, parts = pickle.loads(sent)  # noqa: S301  # made here
    batches = (batch for part in parts for batch in reader.read(part))
    found = pl.concat(pl.DataFrame(pl.from_arrow(batch)) for batch in batches)
    return list(found.select("request_id", "F.hour").rows())


async def test_a_token_reads_logged_queries_of_its_workspace(
    url: str, topics: MemoryTopics, connections: Pool
) -> None:
    with pytest.raises(ReadFailed, match=r"has no query log yet.*\[read-query-log\]"):
        await asyncio.to_thread(logged, url)
    await add_log(connections, topics)
    assert await asyncio.to_thread(logged, url) == [("r0", 0), ("r1", 1), ("r2", 2)]
    late = (NOW + timedelta(hours=1)).isoformat()
    assert await asyncio.to_thread(logged, url, {"from": late}) == [("r1", 1), ("r2", 2)]
    await erasures.add(connections, SHOP, DatasetName("User"), ["user_id"], [user_key(2)])
    assert await asyncio.to_thread(logged, url) == [("r0", 0), ("r2", 2)]
    with pytest.raises(ReadFailed, match="workspace `other` has no query log yet"):
        await asyncio.to_thread(logged, url, {"token": "stranger"})
    asked: dict[str, str | int] = {"topic": LOG_TOPIC, "partition": 0, "first": 0, "end": 1}
    with pytest.raises(ReadFailed, match="not the content of a dataset of this workspace"):
        await asyncio.to_thread(ReadApi(url, "stranger").call, "GET", "/tail", asked)


UNREADABLE: list[tuple[dict[str, str], str]] = [
    ({"dataset": "Usr"}, "unknown dataset `Usr` in branch `main`; valid datasets: `Spend`, `User`"),
    ({"dataset": "User", "branch": "dev"}, "unknown branch `dev` of `shop`"),
    ({"dataset": "Spend", "mode": "changelog"}, "cannot be read in mode `changelog`"),
    ({"dataset": "User", "columns": "name"}, "unknown column `name`"),
    ({"dataset": "User", "workspace": "shop"}, "`workspace` has no effect beside `url`"),
    ({"dataset": "User", "token": ""}, "no token"),
]


async def test_a_read_that_cannot_be_done_names_the_fix(url: str) -> None:
    for options, said in UNREADABLE:
        with pytest.raises(ReadFailed, match=said):
            await over_api(url, options)


def test_an_api_that_does_not_respond_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fennel_core.dataframes.api_versions.time.sleep", lambda _: None)
    api = ReadApi(f"http://127.0.0.1:{free_port()}", "reader")
    with pytest.raises(ReadFailed, match="does not serve reads"):
        api.call("GET", "/file")
    assert "reader" not in repr(api)
