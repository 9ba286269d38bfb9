"""The ingest server as a process over real Postgres, Kafka and executors: responses and records."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.blueprints.spec import DatasetView, SourceBinding
from fennel_core.connections import postgres
from fennel_core.connections.kafka import (
    COMMIT_WITHIN_TRANSACTIONS,
    client_config,
    consumer_config,
)
from fennel_core.ingest.store import boot_s
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.keys import key_bytes, partition_of
from fennel_core.vocab.raw_batches import requests_of
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN, decode
from fennel_core.wire.connectors import EvalCode
from fennel_core.wire.pycode import PyCode
from tests.support.ingest_rows import open_workspace, point_branch
from tests.support.ingest_world import (
    KEYLESS,
    PARTITIONS,
    WORKSPACE,
    binding,
    body,
    catalog,
    source,
)
from tests.support.polling import eventually
from tests.support.ports import free_port

pytestmark = pytest.mark.platform
TOKEN = "a-token-of-the-test"  # noqa: S105  # a fixed value of a test
AT_MS = 1_700_000_000_000
LIMIT = 200_000
TRANSACTION_MS = 5_000
"""The smallest: a test waits until a request of a frozen server is too late."""


@dataclass
class Server:
    url: str
    settings: Settings
    pool: Any
    run: str
    process: asyncio.subprocess.Process
    topics: set[str] = field(default_factory=set)

    def bound(self, made: SourceBinding) -> SourceBinding:
        """Return the binding with new topics of this test."""
        own = replace(
            made,
            topic=TopicName(f"test-{self.run}.{made.topic}"),
            raw_topic=TopicName(f"test-{self.run}.{made.raw_topic}"),
            dead_letters=TopicName(f"test-{self.run}.{made.dead_letters}"),
        )
        new = {own.topic, own.raw_topic, own.dead_letters} - self.topics
        admin = AdminClient(client_config(self.settings))
        for made_topic in admin.create_topics([NewTopic(t, PARTITIONS, 1) for t in new]).values():
            made_topic.result(10)
        self.topics |= new
        return own

    async def commit(self, branch: str, *bindings: SourceBinding) -> None:
        await point_branch(self.pool, WORKSPACE, branch, uuid.uuid4().hex, catalog(*bindings))

    async def log(self, content: bytes, *, token: str = TOKEN) -> tuple[int, str]:
        return await self.post("log", content, token)

    async def post(self, path: str, content: bytes, token: str = TOKEN) -> tuple[int, str]:
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/api/v1/{path}", data=content, headers=sent) as answer,
        ):
            return answer.status, await answer.text()

    def read(self, topic: str) -> list[tuple[int, dict, bytes]]:
        """Return all committed messages as (partition, headers, value)."""
        consumer = Consumer(consumer_config(self.settings, fetch_wait_ms=1))
        found, ended = [], 0
        try:
            consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
            while ended < PARTITIONS:
                message = consumer.poll(10)
                assert message is not None, "the broker responds"
                if message.error() is not None:
                    ended += 1
                else:
                    found.append(
                        (message.partition(), dict(message.headers() or []), message.value())
                    )
        finally:
            consumer.close()
        return found

    def rows(self, topic: str) -> list[dict]:
        return [
            {**row, "__part": part}
            for part, _, value in self.read(topic)
            for row in decode(value).to_dicts()
        ]


@pytest.fixture
async def server(
    infra: None, database: str, executors_socket: Path, tmp_path: Path
) -> AsyncIterator[Server]:
    port = free_port()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "executors.sock").symlink_to(executors_socket)
    changes = {
        "FENNEL_POSTGRES_DSN": database,
        "FENNEL_INGEST_PORT": str(port),
        "FENNEL_RUN_DIR": str(tmp_path / "run"),
        "FENNEL_BODY_LIMIT_BYTES": str(LIMIT),
        "FENNEL_LOG_ROWS": "1000",
        "FENNEL_TRANSACTION_TIMEOUT_MS": str(TRANSACTION_MS),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fennel_core.apps.ingest", env={**os.environ, **changes}
    )
    try:
        async with postgres.pool(database, name="test") as pool, aiohttp.ClientSession() as session:
            await open_workspace(pool, WORKSPACE, TOKEN)

            async def ready() -> bool:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
                        return response.status == 200
                except aiohttp.ClientConnectionError:
                    return False  # it does not listen yet

            await eventually(ready, within_s=120, interval_s=0.05)
            made = Server(
                f"http://127.0.0.1:{port}", Settings(), pool, uuid.uuid4().hex[:8], process
            )
            yield made
            if made.topics:
                AdminClient(client_config(made.settings)).delete_topics(list(made.topics))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_row_is_on_its_topic_when_the_response_is_sent(server: Server) -> None:
    users = server.bound(binding())
    await server.commit("main", users)
    status, answer = await server.log(
        body(user=["ann", "bob"], age=[30, 40], at=[AT_MS, AT_MS], extra=[1, 2])
    )
    assert (status, answer) == (200, '{"rows":2}')
    rows = server.rows(users.topic)
    assert sorted((r["user"], r["age"], r[SIGN], r[IS_TOMBSTONE]) for r in rows) == [
        ("ann", 30, 1, False),
        ("bob", 40, 1, False),
    ]
    for _, _, value in server.read(users.topic):
        frame = decode(value)
        assert {partition_of(key, PARTITIONS) for key in key_bytes(frame, ["user"])} == {
            p for p, _, v in server.read(users.topic) if v == value
        }
    ((_, _, value),) = server.read(users.raw_topic)
    (raw,) = requests_of(decode(value))
    assert b"extra" in raw.body
    assert (raw.rows, raw.judged_for, raw.late) == (2, {users.topic}, {})
    assert raw.position == min(r[POS] for r in rows)


async def test_equal_definitions_are_written_once_and_different_ones_each(server: Server) -> None:
    shared, other = server.bound(binding()), server.bound(binding(KEYLESS, "Orders", "orders"))
    await server.commit("main", shared)
    await server.commit("clone", shared)
    await server.commit("dev", other)
    status, _ = await server.log(body(user=["ann"], age=[1], amount=[2.5], at=[AT_MS]))
    assert status == 200
    assert [r["age"] for r in server.rows(shared.topic)] == [1]
    assert [r["amount"] for r in server.rows(other.topic)] == [2.5]


async def test_a_commit_is_followed_by_the_very_next_request(server: Server) -> None:
    before, after = server.bound(binding(identity="v1")), server.bound(binding(identity="v2"))
    for made in (before, after):
        await server.commit("main", made)
        assert (await server.log(body(user=["ann"], age=[1], at=[AT_MS])))[0] == 200
    assert len(server.rows(before.topic)) == len(server.rows(after.topic)) == 1


async def test_a_wrong_value_refuses_the_whole_request_in_the_callers_branch(
    server: Server,
) -> None:
    users = server.bound(binding())
    await server.commit("main", users)
    status, text = await server.log(body(user=["ann", "bob"], age=[30, "x"], at=[AT_MS, AT_MS]))
    assert status == 500
    assert text.startswith("Schema validation failed during data insertion to `Users`")
    assert 'column `age` of type `int`: Unable to parse string "x" at position 1' in text
    assert server.rows(users.topic) == []


async def test_a_bad_value_is_dead_lettered_in_another_branch_only(
    server: Server,
) -> None:
    mine, other = server.bound(binding(KEYLESS, "Orders", "orders")), server.bound(binding())
    await server.commit("main", mine)
    await server.commit("dev", other)
    status, _ = await server.log(
        body(user=["ann", "bob"], age=[30, "x"], amount=[1, 2], at=[AT_MS, AT_MS])
    )
    assert status == 200
    assert [r["user"] for r in server.rows(other.topic)] == ["ann"]
    (dead,) = server.read(other.dead_letters)
    assert b"Unable to parse string" in dead[1]["reason"]
    assert (
        decode(dead[2]).to_dicts()[0]["row"]
        == '{"user":"bob","age":"x","amount":2,"at":1700000000000}'
    )


async def test_user_code_of_a_source_runs_before_the_response(server: Server) -> None:
    text = "def keep(df):\n    return df[df['age'] > limit]\n"
    code = PyCode("keep", "", "lambda df: df['age'] > limit", text, "limit = 18\n", (), ())
    adults = server.bound(binding(of=source(where=EvalCode(code, ()))))
    await server.commit("main", adults)
    assert (await server.log(body(user=["ann", "bob"], age=[30, 10], at=[AT_MS, AT_MS])))[0] == 200
    assert [r["user"] for r in server.rows(adults.topic)] == ["ann"]
    broken = replace(code, generated_code="def keep(df):\n    return 1 / 0\n")
    await server.commit(
        "main", server.bound(binding(identity="v2", of=source(where=EvalCode(broken, ()))))
    )
    status, answer = await server.log(body(user=["ann"], age=[30], at=[AT_MS]))
    assert (status, "division by zero" in answer) == (500, True)


async def test_refusals_name_the_problem(server: Server) -> None:
    await server.commit("main", server.bound(binding()))
    assert await server.log(body("nowhere", user=["ann"])) == (
        404,
        "Webhook endpoint hook_nowhere not found in any branch",
    )
    assert (await server.log(b"{not json"))[0] == 400
    assert (await server.log(body(user=["ann"], age=[])))[0] == 400
    assert (await server.log(body(user=["ann"]), token="wrong"))[0] == 401  # noqa: S106  # a fixed value of a test
    assert (await server.log(body(user=["ann"] * 1001)))[0] == 413
    assert (await server.log(b"x" * (LIMIT + 1)))[0] == 413


async def test_a_large_body_is_refused_before_it_is_sent(
    server: Server,
) -> None:
    await server.commit("main", server.bound(binding()))
    host, port = server.url.removeprefix("http://").split(":")

    async def announce(size: int) -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        head = [
            "POST /api/v1/log HTTP/1.1",
            f"Host: {host}:{port}",
            f"Authorization: Bearer {TOKEN}",
            f"Content-Length: {size}",
            "Expect: 100-continue",
        ]
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
        async with asyncio.timeout(1):
            answer = await reader.readline()
        writer.close()
        return answer

    assert await announce(100_000) == b"HTTP/1.1 100 Continue\r\n"
    assert b" 413 " in await announce(LIMIT + 1)


async def test_many_requests_at_once_are_all_written_once(server: Server) -> None:
    users = server.bound(binding())
    await server.commit("main", users)
    answers = await asyncio.gather(
        *(server.log(body(user=[f"u{n}"], age=[n], at=[AT_MS])) for n in range(60))
    )
    assert {status for status, _ in answers} == {200}
    rows = server.rows(users.topic)
    assert sorted(r["age"] for r in rows) == list(range(60))
    assert len({r[POS] for r in rows}) == 60


async def test_a_deleted_topic_is_reported_and_nothing_is_written(server: Server) -> None:
    users = server.bound(binding())
    lost = replace(
        server.bound(binding(KEYLESS, "Orders", "orders")),
        topic=TopicName(f"test-{server.run}.never.made"),
    )
    await server.commit("main", users, lost)
    status, text = await server.log(body(user=["ann"], age=[1], amount=[2.5], at=[AT_MS]))
    assert status == 503
    assert "nothing was logged" in text
    assert server.rows(users.topic) == []
    await server.commit("main", users)
    assert (await server.log(body(user=["ann"], age=[1], at=[AT_MS])))[0] == 200


async def test_an_erased_key_is_not_taken_by_the_next_request(server: Server) -> None:
    users = server.bound(binding())
    view = DatasetView(
        users.dataset, 1, users.schema, users.topic, None, True, True, ("user",), True
    )
    await point_branch(
        server.pool, WORKSPACE, "main", uuid.uuid4().hex, replace(catalog(users), datasets=(view,))
    )
    assert (await server.log(body(user=["ann"], age=[1], at=[AT_MS])))[0] == 200
    path = "dataset/Users/erase"
    assert await server.post(path, b'{"erase_keys": [{"user": "ann"}]}') == (200, '{"erased":1}')
    assert (await server.log(body(user=["ann", "bob"], age=[2, 3], at=[AT_MS, AT_MS])))[0] == 200
    assert sorted(r["age"] for r in server.rows(users.topic)) == [1, 3]
    assert (await server.post(path, b'{"erase_keys": [{"age": 1}]}'))[
        1
    ] == "Field: age not in a key field in dataset"
    assert (await server.post("dataset/Nobody/erase", b'{"erase_keys": []}'))[0] == 404


async def test_metrics_count_what_entered(server: Server) -> None:
    await server.commit("main", server.bound(binding()))
    await server.log(body(user=["ann", "bob"], age=[30, 40], at=[AT_MS, AT_MS]))
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as answer:
        text = await answer.text()
    assert (
        'fennel_source_dataset_counter{dataset_name="Users",format="json",'
        'metric="msgs_processed",source_name="hook_e"} '
        "2.0"
    ) in text
    assert 'fennel_request_counter{method="POST",path="/api/v1/log",status="200"} 1.0' in text


async def test_a_server_that_was_frozen_after_a_stamp_does_not_write_to_a_purged_endpoint(
    server: Server,
) -> None:
    """`purge` takes an endpoint for empty some time after its release, so nothing may arrive then.

    The server is frozen before it reads its stamp, and goes on when it is too late to write.
    """
    users = server.bound(binding())
    await server.commit("main", users)
    assert (await server.log(body(user=["ann"], age=[1], at=[AT_MS])))[0] == 200
    held = server.read(users.raw_topic)
    async with server.pool.connection() as other, other.transaction():
        await other.execute("SELECT hlc FROM ingest_clock FOR UPDATE")
        sent = asyncio.create_task(server.log(body(user=["bob"], age=[2], at=[AT_MS])))
        await eventually(lambda: waits_for_a_lock(server), within_s=30)
        server.process.send_signal(signal.SIGSTOP)
    # The stamp is given now, and the server cannot read it.
    too_late_s = boot_s() + COMMIT_WITHIN_TRANSACTIONS * TRANSACTION_MS / 1000
    await eventually(lambda: boot_s() > too_late_s, within_s=60, interval_s=0.5)
    server.process.send_signal(signal.SIGCONT)
    status, text = await sent
    assert status == 503
    assert "too long between the stamp of the request and its transaction" in text
    assert server.read(users.raw_topic) == held
    assert [row["user"] for row in server.rows(users.topic)] == ["ann"]
    assert (await server.log(body(user=["cid"], age=[3], at=[AT_MS])))[0] == 200


async def waits_for_a_lock(server: Server) -> bool:
    async with server.pool.connection() as connection:
        found = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND application_name = 'fennel-ingest'"
        )
        return bool((await found.fetchone())[0])
