"""Changes of a dataset in a topic of a user's own Kafka, and at an endpoint: from history on."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fennel_core.apps.local import processes, status_requests
from fennel_core.settings.model import Settings
from tests.support.adults import ADULTS
from tests.support.executors import commit_of
from tests.support.http_receivers import Receiver, served
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(300)]
PARTITIONS = 3
KAFKA = """
kafka = Kafka(
    name="out",
    bootstrap_servers="{bootstrap}",
    security_protocol="PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_plain_username=None,
    sasl_plain_password=None,
)
"""


@pytest.fixture
def topic(settings: Settings) -> Iterator[str]:
    name = f"adults-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    yield name
    admin.delete_topics([name])


def committed(settings: Settings, topic: str) -> list[tuple[str, dict[str, Any] | None]]:
    """Return every message that an independent reader of committed records sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings.kafka_bootstrap,
            "group.id": "independent",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    left, found = set(range(PARTITIONS)), []
    consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in left])
    while left:
        message = consumer.poll(30)
        assert message is not None, "the topic can be read to its end"
        error = message.error()
        if error is None:
            key, value = message.key(), message.value()
            assert key is not None, "the dataset has keys"
            found.append((json.loads(key)["name"], None if value is None else json.loads(value)))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            left.discard(message.partition())
    consumer.close()
    return found


def written(folder: Path, settings: Settings, topic: str | None) -> str:
    kafka = KAFKA.format(bootstrap=settings.kafka_bootstrap)
    sink = "" if topic is None else f'@sink(kafka.topic("{topic}"), cdc="debezium")'
    return file_of(folder, kafka, sink)


def file_of(folder: Path, connector: str, sink: str) -> str:
    file = folder / "adults.py"
    imports = "HTTP, Certificate, Kafka, Webhook, sink, source"
    file.write_text(ADULTS.format(imports=imports, connector=connector, key="key=True", sink=sink))
    return str(file)


def kill_sinks(settings: Settings) -> None:
    record = processes.read_record(settings.data_dir / "pids" / "sources")
    assert record is not None
    for pid in processes.session_members(record):
        os.kill(pid, signal.SIGKILL)


def people(first: int, count: int) -> dict[str, list[Any]]:
    numbers = range(first, first + count)
    return {
        "name": [f"p{n}" for n in numbers],
        "age": [10 + n % 20 for n in numbers],
        "at": [f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z" for n in numbers],
    }


async def test_changes_are_written_once_from_history_on_across_a_kill(
    make: Callable[[], Awaitable[Api]], settings: Settings, topic: str, tmp_path: Path
) -> None:
    api, ages, children = await make(), {}, set[str]()

    async def send(first: int, count: int) -> None:
        data = people(first, count)
        ages.update(
            {name: age for name, age in zip(data["name"], data["age"], strict=True) if age >= 18}
        )
        children.update(set(data["name"]) - set(ages))
        status, text = await api.log(**data)
        assert status == 200, text

    async def all_there() -> bool:
        return {name for name, _ in committed(settings, topic)} >= set(ages) | children

    async def wait() -> None:
        def missing() -> str:
            return (
                f"{len(ages) + len(children)} keys; sinks: {status_requests.read(settings).sinks}"
            )

        await eventually(all_there, within_s=90, interval_s=0.5, what=missing)

    plain = await commit_of(written(tmp_path, settings, None), folder=tmp_path)
    await api.good("POST", "/commit", plain, **INLINE)
    await send(0, 60)
    await api.settled(within_s=60)
    # The sink begins with what is there, and the plan says how much that is.
    definitions = await commit_of(written(tmp_path, settings, topic), folder=tmp_path)
    answer = json.dumps(await api.good("POST", "/commit", definitions, **INLINE))
    assert "rows from history that it starts with" in answer
    await wait()
    await send(60, 60)
    kill_sinks(settings)
    await send(120, 60)
    # The same definitions in another branch write nothing twice.
    await api.good("POST", "/init", {"clone_from": "main"}, **{"X-Fennel-Branch": "copy"})
    await wait()
    found = committed(settings, topic)
    # A row that the filter drops is a delete of its key at its time.
    expected = [(name, "c", None, age) for name, age in ages.items()]
    expected += [(name, "d", None, None) for name in children]
    rows = []
    for name, event in found:
        assert event is not None, "only an erased key is followed by a null value"
        old, new = event["before"], event["after"]
        rows.append((name, event["op"], old and old["age"], new and new["age"]))
        assert not event["source"]["retraction"]
        assert event["source"]["withdrawn"] is None
    assert sorted(rows, key=str) == sorted(expected, key=str), "each change once, and no other"
    (own,) = [s for s in status_requests.read(settings).sinks or () if s["sink"].endswith(topic)]
    assert (own["reason"], own["dataset"]) == (None, "Adult")
    # A key that is erased is deleted, and followed by what lets compaction forget it.
    erased = next(iter(ages))
    keys = {"erase_keys": [{"name": erased}]}
    await api.good("POST", "/dataset/Adult/erase", keys)

    async def deleted() -> bool:
        return committed(settings, topic).count((erased, None)) == 1

    await eventually(deleted, within_s=60, interval_s=0.5)
    *before, (_, event), _ = [each for each in committed(settings, topic) if each[0] == erased]
    assert event is not None, "the delete comes first"
    assert (event["op"], event["before"]["age"], event["after"]) == ("d", None, None)
    assert "ts_us" not in event["source"]
    assert len(before) == 1, "its row was written before, once"


async def test_a_topic_that_cannot_be_written_is_refused_at_commit(
    make: Callable[[], Awaitable[Api]], settings: Settings, tmp_path: Path
) -> None:
    api = await make()
    for name, text in (("no-such-topic", "has no topic"), ("w.raw.ab12.1", "no sink")):
        definitions = await commit_of(written(tmp_path, settings, name), folder=tmp_path)
        for path in ("/commit?preview=true", "/commit"):
            status, answer = await api.call("POST", path, definitions, **INLINE)
            assert status == 500, answer
            assert text in answer


HOOKS = """
hooks = HTTP(name="hooks", host="{host}", healthz="/health", ca_cert=Certificate(""))
"""
HTTP_SINK = """
@sink(hooks.path("/adults", limit=7, headers={"X-Team": "token-of-ann"}), cdc="debezium")
"""


@pytest.mark.long
async def test_changes_are_sent_from_history_on_and_refused_rows_are_sent_again_on_order(
    make: Callable[[], Awaitable[Api]], settings: Settings, tmp_path: Path
) -> None:
    (allowed,) = settings.http_sink_private_hosts
    lost = iter([(503, {"Retry-After": "0"}), (500, {})])
    refused = (422, {"text": "p9 is not welcome, token-of-ann"})

    def answers(key: str, body: bytes) -> tuple[int, dict[str, str]] | None:
        if not key:
            return None  # the health check
        return refused if b'"p9"' in body else next(lost, None)

    api, receiver = await make(), Receiver(answers)
    with served(receiver, port=int(allowed.rpartition(":")[2])):
        other = HOOKS.format(host="https://elsewhere.example")
        definitions = await commit_of(file_of(tmp_path, other, HTTP_SINK), folder=tmp_path)
        status, text = await api.call("POST", "/commit", definitions, **INLINE)
        assert status == 500, text
        assert "FENNEL_HTTP_SINK_HOSTS" in text
        data = people(0, 60)
        connector = HOOKS.format(host=f"http://{allowed}")
        plain = await commit_of(file_of(tmp_path, connector, ""), folder=tmp_path)
        await api.good("POST", "/commit", plain, **INLINE)
        assert (await api.log(**data))[0] == 200
        await api.settled(within_s=60)
        definitions = await commit_of(file_of(tmp_path, connector, HTTP_SINK), folder=tmp_path)
        answer = json.dumps(await api.good("POST", "/commit", definitions, **INLINE))
        assert "rows from history that it starts with" in answer
        more = people(60, 20)
        assert (await api.log(**more))[0] == 200

        def missing() -> str:
            events = receiver.events()
            return f"{len(events)} events; sinks: {status_requests.read(settings).sinks}"

        await eventually(
            lambda: len(receiver.events()) >= 79, within_s=60, interval_s=0.2, what=missing
        )
        taken = [(e["before"] or e["after"])["name"] for e in receiver.events()]
        assert sorted(taken) == sorted({*data["name"], *more["name"]} - {"p9"}), "each once"
        assert {headers["X-Team"] for _, headers in receiver.seen} == {"token-of-ann"}

        async def letters() -> list[dict[str, Any]]:
            found: dict[str, Any] = await api.good("GET", "/dead_letters/rows")
            return list(found["rows"])

        (letter,) = await letters()
        assert (letter["kind"], letter["subject"]) == ("not-delivered", "Adult")
        assert "status 422: p9 is not welcome, ***" in letter["reason"]
        assert letter["source_position"].startswith("partition ")
        # When the endpoint takes it, the sink sends it again, under the key that was refused.
        refused_key = next(key for key, body in receiver.requests[::-1] if b'"p9"' in body)
        receiver.answers = lambda *_: None
        ordered = await api.good("POST", "/dead_letters/replay", {"sink": "hooks/adults"})
        assert (ordered["ordered"], ordered["not_replayable"]) == (1, [])

        async def settled() -> bool:
            return not await letters()

        await eventually(settled, within_s=60, interval_s=0.2, what=missing)
        assert receiver.requests[-1][0] == refused_key
        assert len(receiver.events()) == 80
        (sink,) = (await api.good("GET", "/sinks"))["sinks"]
        assert (sink["sink"], sink["replays"], sink["rewind"]) == ("hooks/adults", 0, None)
