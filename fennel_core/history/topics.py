"""Which topics have a history: those of the branches' datasets, the raw topics of their endpoints,
the inputs of terminal aggregates (which have no topic of their own), and query logs.

Theory. The bank and the catalogs decide this, not Kafka: a topic that only carries rows to another
partition is not the content of a dataset. Raw requests are kept because a new version of a dataset
is recomputed from them. Catalogs and job specifications never change after they
are written, so each is decoded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, LiteralString, cast

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.history.erasable_topics import ErasableTopic, erasable_topics
from fennel_core.history.roll import TopicLayout
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab import query_log_blocks, raw_batches
from fennel_core.vocab.ids import TopicName
from fennel_core.wire.connectors import WebhookEndpoint

CATALOGS: Final = """
    SELECT DISTINCT c.id, CASE WHEN c.id = ANY(%(known)s) THEN NULL ELSE c.catalog END
    FROM branch b JOIN commit c ON c.id IN (b.target, b.serving) WHERE c.catalog IS NOT NULL
"""
JOBS: Final = (
    "SELECT id, CASE WHEN id = ANY(%(known)s) THEN NULL ELSE spec END FROM job WHERE "
    "desired = 'run'"
)
EVERY_JOB: Final = (
    "SELECT id, CASE WHEN id = ANY(%(known)s) THEN NULL ELSE spec END FROM job WHERE "
    "desired <> 'remove'"
)
"""Paused jobs, too: a commit may revive them."""
ALIVE: Final = """
    SELECT id FROM asset
    WHERE kind IN ('topic', 'raw', 'querylog') AND state NOT IN ('condemned', 'deleted')
"""
QUERY_LOGS: Final = "SELECT id FROM asset WHERE kind = 'querylog' AND state = 'live'"
READERS: Final = """
    SELECT c.id, CASE WHEN c.id = ANY(%(known)s) THEN NULL ELSE c.catalog END FROM commit c
    WHERE c.catalog IS NOT NULL AND (
        c.finished_at IS NULL
        OR EXISTS (SELECT FROM branch b WHERE c.id IN (b.target, b.serving))
    )
"""
"""Versions that branches have, and those that running commits will give them."""
RAW_LAYOUT: Final = TopicLayout((), raw_batches.RECEIVED)
QUERY_LOG_LAYOUT: Final = TopicLayout((), query_log_blocks.LAST)

Layouts = Mapping[TopicName, TopicLayout]


@dataclass(frozen=True, slots=True)
class CatalogTopics:
    """What history needs to know of one catalog."""

    layouts: Layouts
    raw_retention_ms: Mapping[TopicName, int]


def catalog_topics(catalog: Catalog) -> CatalogTopics:
    """Return the topics of a branch version."""
    return CatalogTopics(catalog_layouts(catalog), raw_retention_ms(catalog))


def catalog_layouts(catalog: Catalog) -> dict[TopicName, TopicLayout]:
    """Return the layouts of the topics of a branch version's datasets, and of its raw topics."""
    views = [view for view in catalog.datasets if view.topic is not None]
    return {source.raw_topic: RAW_LAYOUT for source in catalog.sources} | {
        view.topic: TopicLayout(view.schema.key_names, view.schema.timestamp)
        for view in views
        if view.topic is not None
    }


def raw_retention_ms(catalog: Catalog) -> dict[TopicName, int]:
    """Return how long Kafka keeps the requests of each endpoint of a branch version, ms."""
    found: dict[TopicName, int] = {}
    for source in catalog.sources:
        if isinstance(table := source.source.table, WebhookEndpoint):
            kept = table.db.retention_us // 1000
            found[source.raw_topic] = max(kept, found.get(source.raw_topic, 0))
    return found


def request_history_us(catalogs: Iterable[Catalog]) -> dict[TopicName, int]:
    """Return how long the requests of each raw topic are kept: its readers' longest `history`.

    A raw topic with a reader whose `history` is not known is absent: all of it is kept.
    """
    found: dict[TopicName, int] = {}
    unknown: set[TopicName] = set()
    for catalog in catalogs:
        kept_us = {view.name: view.history_us for view in catalog.datasets}
        for source in catalog.sources:
            longest = max(found.get(source.raw_topic, 0), kept_us[source.dataset])
            found[source.raw_topic] = longest
            if kept_us[source.dataset] <= 0:
                unknown.add(source.raw_topic)
    return {topic: kept for topic, kept in found.items() if topic not in unknown}


def job_layouts(job: Job) -> dict[TopicName, TopicLayout]:
    """Return the layouts of the inputs of a terminal aggregate; empty for other jobs."""
    match job.step:
        case AggregateSpec(terminal=True) as step:
            return {topic: TopicLayout(step.keys, step.input.timestamp) for topic in job.inputs}
        case _:
            return {}


class HistoryTopics:
    """The topics in a database. Every method raises SystemUnavailable if it cannot be used."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._catalogs: dict[str, CatalogTopics] = {}
        self._jobs: dict[str, Layouts] = {}
        self._readers: dict[str, Catalog] = {}
        self._every_job: dict[str, Job] = {}

    async def with_history(self) -> dict[TopicName, TopicLayout]:
        """Return the layouts of the topics that have a history now.

        A topic that is both a dataset's and an aggregate's input has the dataset's layout.
        """
        await self._read_catalogs()
        jobs = await self._rows(JOBS, {"known": list(self._jobs)})
        self._jobs = {
            str(job): self._jobs[str(job)]
            if data is None
            else job_layouts(stored_names.loads(cast(bytes, data), Job))
            for job, data in jobs
        }
        found = dict.fromkeys(await self.query_logs(), QUERY_LOG_LAYOUT)
        for layouts in self._jobs.values():
            found |= layouts
        for topics in self._catalogs.values():
            found |= topics.layouts
        return found

    async def raw_retention_ms(self) -> dict[TopicName, int]:
        """Return how long Kafka keeps the requests of each endpoint, ms.

        It is the longest retention that a branch declares for the endpoint.
        """
        await self._read_catalogs()
        found: dict[TopicName, int] = {}
        for topics in self._catalogs.values():
            for topic, kept in topics.raw_retention_ms.items():
                found[topic] = max(kept, found.get(topic, 0))
        return found

    async def request_history_us(self) -> dict[TopicName, int]:
        """Return how long the requests of each raw topic are kept, over all workspaces."""
        await self._read_readers()
        return request_history_us(self._readers.values())

    async def erasable(self) -> list[ErasableTopic]:
        """Return the topics with rows of datasets, and which of them lose those of erased keys."""
        await self._read_readers()
        return erasable_topics(self._readers.values(), await self._read_every_job())

    async def _read_every_job(self) -> list[Job]:
        jobs = await self._rows(EVERY_JOB, {"known": list(self._every_job)})
        self._every_job = {
            str(job): self._every_job[str(job)]
            if data is None
            else stored_names.loads(cast(bytes, data), Job)
            for job, data in jobs
        }
        return list(self._every_job.values())

    async def query_logs(self) -> list[TopicName]:
        """Return the topics of the query logs of all workspaces."""
        return [TopicName(str(name)) for (name,) in await self._rows(QUERY_LOGS, {})]

    async def alive(self) -> list[TopicName]:
        """Return every topic that the bank knows and is not destroying."""
        return [TopicName(str(name)) for (name,) in await self._rows(ALIVE, {})]

    async def _read_catalogs(self) -> None:
        catalogs = await self._rows(CATALOGS, {"known": list(self._catalogs)})
        self._catalogs = {
            str(commit): self._catalogs[str(commit)]
            if data is None
            else catalog_topics(stored_names.loads(cast(bytes, data), Catalog))
            for commit, data in catalogs
        }

    async def _read_readers(self) -> None:
        catalogs = await self._rows(READERS, {"known": list(self._readers)})
        self._readers = {
            str(commit): self._readers[str(commit)]
            if data is None
            else stored_names.loads(cast(bytes, data), Catalog)
            for commit, data in catalogs
        }

    async def _rows(
        self, statement: LiteralString, values: Mapping[str, object]
    ) -> list[tuple[object, ...]]:
        async with postgres.connection_of(self._pool) as connection:
            return await (await connection.execute(statement, values)).fetchall()
