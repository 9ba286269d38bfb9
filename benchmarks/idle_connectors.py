"""Measure what idle sources and sinks of Kafka cost in the application that hosts them.

    python -m benchmarks.idle_connectors [--count 20] [--seconds 60] [--json FILE]

Starts a platform of its own and measures the application of the streaming sources (driver, JVM,
Python workers) four times: without any source or sink, with `count` sinks that have written a
change, with `count` sources beside them that have read a message each, and with the sources alone.
Prints CPU-seconds per second as percent of a core; the goal is 10% for the sources, and for the
sinks. CPU time counts, so other programs of the machine disturb it little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Final

import aiohttp
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.processes import Cost, measure
from fennel_core.apps.local import status_requests
from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.own_platform import OwnPlatform
from tests.support.platform_settings import ENV_COMMAND
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

GOAL_PERCENT: Final = 10.0
REST_S: Final = 75.0
"""Longer than the pauses after which Spark ends idle Python workers."""
STARTED_S: Final = 300.0
PARTITIONS: Final = 3
KAFKA: Final = """\
from datetime import datetime

from fennel.connectors import Kafka, Webhook, sink, source
from fennel.datasets import Dataset, dataset, field, pipeline
from fennel.expr import col
from fennel.lib import inputs

__owner__ = "tests@example.com"
kafka = Kafka(
    name="idle",
    bootstrap_servers="{bootstrap}",
    security_protocol="PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_plain_username=None,
    sasl_plain_password=None,
)
"""
SOURCE: Final = """

@source(kafka.topic("in-{n}"), disorder="14d", cdc="append")
@dataset
class In{n}:
    name: str
    at: datetime
"""
SINKS: Final = """

@source(Webhook(name="door").endpoint("people"), disorder="14d", cdc="append")
@dataset
class Person:
    name: str
    at: datetime


{sinks}
@dataset
class Named:
    name: str
    at: datetime

    @pipeline
    @inputs(Person)
    def named(cls, people: Dataset):
        return people.filter(col("name") != "")
"""
ROW: Final = {"name": "Ann", "at": "2026-01-01T00:00:00Z"}


def definitions(settings: Settings, sources: int, sinks: int) -> str:
    """Return the definitions of so many sources, and of a dataset with so many sinks."""
    text = KAFKA.format(bootstrap=settings.kafka_bootstrap)
    text += "".join(SOURCE.format(n=number) for number in range(sources))
    each = (f'@sink(kafka.topic("out-{n}"), cdc="debezium")' for n in range(sinks))
    return text + SINKS.format(sinks="\n".join(each))


class Measured:
    """The platform, and what was measured on it."""

    def __init__(self, api: Api, settings: Settings, folder: Path, seconds: float) -> None:
        self._api, self._settings = api, settings
        self._folder, self._seconds = folder, seconds

    async def cost(self, title: str, sources: int, sinks: int) -> Cost:
        """Commit so many sources and sinks, let them work and rest, and return their cost."""
        file = self._folder / "idle.py"
        file.write_text(definitions(self._settings, sources, sinks))
        await self._api.good(
            "POST", "/commit", await commit_of(str(file), folder=self._folder), **INLINE
        )
        await self._work(sources)
        await eventually(
            lambda: self._at_rest(sources, sinks),
            within_s=STARTED_S,
            interval_s=1.0,
            what=lambda: status_requests.read(self._settings),
        )
        await asyncio.sleep(REST_S)
        pids = self._settings.data_dir / "pids"
        found = (await asyncio.to_thread(measure, pids, self._seconds))["sources"]
        print(
            f"{title}: {100 * found.cores:.1f}% of a core, {found.memory_mib:.0f} MiB, "
            f"{found.processes} processes",
            flush=True,
        )
        return found

    async def _work(self, sources: int) -> None:
        producer = Producer({"bootstrap.servers": self._settings.kafka_bootstrap})
        for number in range(sources):
            producer.produce(f"in-{number}", json.dumps(ROW).encode())
        assert producer.flush(60) == 0
        data = {name: [value] for name, value in ROW.items()}
        body = {"webhook": "door", "endpoint": "people", "data": data}
        await self._api.good("POST", "/log", body)
        await self._api.settled(within_s=STARTED_S)

    def _at_rest(self, sources: int, sinks: int) -> bool:
        found = status_requests.read(self._settings)
        read = [each for each in found.sources or () if each["behind"] == 0]
        written = [e for e in found.sinks or () if e["behind"] == 0 and (e["events"] or not sinks)]
        return (len(read), len(written)) == (sources, sinks)


async def run(count: int, seconds: float, folder: Path) -> dict[str, float]:
    settings = Settings()
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
    wanted = [NewTopic(f"{way}-{n}", PARTITIONS, 1) for way in ("in", "out") for n in range(count)]
    for made in admin.create_topics(wanted).values():
        made.result(60)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        measured = Measured(Api(session, settings, "idle"), settings, folder, seconds)
        costs = {
            "none": await measured.cost("no sources and sinks", 0, 0),
            "sinks": await measured.cost(f"{count} idle sinks", 0, count),
            "both": await measured.cost(f"{count} idle sources and {count} sinks", count, count),
            "sources": await measured.cost(f"{count} idle sources", count, 0),
        }
    return {name: 100 * each.cores for name, each in costs.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the percentages to this file")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fennel-idle-"))
    platform = OwnPlatform(folder / "platform")
    os.environ.update(platform.settings)
    try:
        platform.run("up")
        for line in platform.run(*ENV_COMMAND).splitlines():
            name, _, value = shlex.split(line.removeprefix("export "))[0].partition("=")
            os.environ[name] = value
        found = asyncio.run(run(arguments.count, arguments.seconds, folder))
    finally:
        platform.run("down")
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    passed = max(found["sources"], found["sinks"]) <= GOAL_PERCENT
    print(f"goal: {GOAL_PERCENT:.0f}% of a core each: {'met' if passed else 'missed'}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
