"""Measure what it costs a query to be logged: the queries of `benchmarks/query.py` with and without
`log`, in turns, over one connection.

A slot, a query server and a client as there, and a real Kafka: the log's thread, encoder and
producer run in the server as in production. At the end, every logged row must be on the topic.

    python -m benchmarks.query_log --kafka 127.0.0.1:7411          # one key, at 200 requests/s
    python -m benchmarks.query_log --kafka 127.0.0.1:7411 --keys 100 --rate 40
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import uvloop
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.query import (
    PARTITIONS,
    WARM,
    Connection,
    bodies,
    cpu_s,
    first_connection,
    serve_queries,
    show,
    slot_process,
)
from benchmarks.slot_and_server import running
from fennel_core.connections.kafka import client_config, consumer_config
from fennel_core.query.log_kafka import KafkaLogProducer
from fennel_core.query.query_log import QueryLog
from fennel_core.settings.model import Settings
from fennel_core.vocab import query_log_blocks
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.vocab.versions import decode

SETTLE_S = 3.0
"""After this, what was logged is on the topic."""


@dataclass(frozen=True)
class OneTopic:
    """The topic of every workspace."""

    name: TopicName

    async def query_log_topic(self, workspace: WorkspaceId) -> TopicName | None:  # noqa: ARG002  # one
        return self.name


def server_process(folder: str, port: int, kafka: str, topic: str) -> None:
    uvloop.run(_server(Path(folder), port, kafka, TopicName(topic)))


async def _server(folder: Path, port: int, kafka: str, topic: TopicName) -> None:
    log = QueryLog(KafkaLogProducer(Settings(kafka_bootstrap=kafka)), OneTopic(topic), 64 << 20)
    finding = asyncio.create_task(log.run())
    await serve_queries(folder, port, mixed=False, query_log=log)
    finding.cancel()


def logged(requests: list[bytes]) -> list[bytes]:
    """Return the requests with `log`."""
    return [json.dumps(json.loads(body) | {"log": True}).encode() for body in requests]


async def in_turns(
    url: SplitResult, kinds: list[list[bytes]], rate: float, seconds: float
) -> list[list[float]]:
    """Latencies (s) of each kind of request; kinds take turns at a steady rate."""
    connection = await Connection.open(url)
    took: list[list[float]] = [[] for _ in kinds]
    start, number = time.perf_counter(), 0
    while (due := start + number / rate) < start + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        kind, place = number % len(kinds), number // len(kinds)
        began = time.perf_counter()
        await connection.post(kinds[kind][place % len(kinds[kind])])
        took[kind].append(time.perf_counter() - began)
        number += 1
    return took


def rows_on_topic(settings: Settings, topic: TopicName) -> int:
    found = 0
    for part in range(PARTITIONS):
        consumer = Consumer(consumer_config(settings))
        consumer.assign([TopicPartition(topic, part, 0)])
        while (message := consumer.poll(10)) is not None and message.error() is None:
            value = message.value()
            assert value is not None
            found += sum(block.rows for block in query_log_blocks.blocks_of(decode(value)))
        consumer.close()
    return found


async def measure(
    arguments: argparse.Namespace, server: Any, url: SplitResult, topic: TopicName
) -> None:
    connection = await first_connection(url)
    plain = bodies(arguments.keys)
    kinds = [plain, logged(plain)]
    for number in range(WARM):
        await connection.post(kinds[number % 2][number % len(plain)])
    took = await in_turns(url, kinds, arguments.rate, arguments.seconds)
    print(f"{arguments.keys} key(s) of 50 features, {arguments.rate:g} requests/s, half are logged")
    show("plain", took[0])
    show("logged", took[1])
    for name, cut in (("p50", 49), ("p90", 89), ("p99", 98)):
        without, with_log = (statistics.quantiles(each, n=100)[cut] for each in took)
        print(f"  {name} ratio {with_log / without:.3f}")
    for name, requests in (("plain", plain), ("logged", kinds[1])):
        connection = await Connection.open(url)  # the server closes those that are idle
        before, done, stop = cpu_s(server.pid), 0, time.perf_counter() + arguments.seconds / 2
        while time.perf_counter() < stop:
            await connection.post(requests[done % len(requests)])
            done += 1
        await asyncio.sleep(SETTLE_S)
        used_ms = (cpu_s(server.pid) - before) * 1000
        print(f"  {name:6} {used_ms / done:.3f} ms of CPU per request, with its log")
        took[1] += [0.0] * (done if name == "logged" else 0)
    expected = (len(took[1]) + WARM // 2) * arguments.keys
    found = await asyncio.to_thread(rows_on_topic, Settings(kafka_bootstrap=arguments.kafka), topic)
    assert found == expected, f"{found} of {expected} logged rows are on the topic"
    print(f"  all {found} logged rows are on the topic")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kafka", required=True, help="address of a broker")
    parser.add_argument("--keys", type=int, default=1, help="rows per request")
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the run")
    parser.add_argument("--port", type=int, default=17401)
    arguments = parser.parse_args()
    topic = TopicName(f"bench.querylog.{uuid.uuid4().hex}.1")
    admin = AdminClient(client_config(Settings(kafka_bootstrap=arguments.kafka)))
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        slot = spawn.Process(target=slot_process, args=(folder, False))
        server = spawn.Process(
            target=server_process, args=(folder, arguments.port, arguments.kafka, topic)
        )
        try:
            with running(slot, server, Path(folder)):
                url = urlsplit(f"http://127.0.0.1:{arguments.port}/api/v1/query")
                uvloop.run(measure(arguments, server, url, topic))
        finally:
            admin.delete_topics([topic])[topic].result(30)


if __name__ == "__main__":
    main()
