"""Which topics have a history: those of the branches' datasets, and the inputs of terminal
aggregates (which have no topic of their own).

Theory. The bank and the catalogs decide this, not Kafka: a topic that only carries rows to another
partition is not the content of a dataset. Catalogs and job specifications never change after they
are written, so each is decoded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, LiteralString, cast

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.history.roll import TopicLayout
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.ids import TopicName

CATALOGS: Final = """
    SELECT DISTINCT c.id, CASE WHEN c.id = ANY(%(known)s) THEN NULL ELSE c.catalog END
    FROM branch b JOIN commit c ON c.id IN (b.target, b.serving) WHERE c.catalog IS NOT NULL
"""
JOBS: Final = (
    "SELECT id, CASE WHEN id = ANY(%(known)s) THEN NULL ELSE spec END FROM job WHERE "
    "desired = 'run'"
)
ALIVE: Final = "SELECT id FROM asset WHERE kind = 'topic' AND state NOT IN ('condemned', 'deleted')"

Layouts = Mapping[TopicName, TopicLayout]


def catalog_layouts(catalog: Catalog) -> dict[TopicName, TopicLayout]:
    """Return the layouts of the topics of a branch version's datasets."""
    views = [view for view in catalog.datasets if view.topic is not None]
    return {
        view.topic: TopicLayout(view.schema.key_names, view.schema.timestamp)
        for view in views
        if view.topic is not None
    }


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
        self._catalogs: dict[str, Layouts] = {}
        self._jobs: dict[str, Layouts] = {}

    async def with_history(self) -> dict[TopicName, TopicLayout]:
        """Return the layouts of the topics that have a history now.

        A topic that is both a dataset's and an aggregate's input has the dataset's layout.
        """
        catalogs = await self._rows(CATALOGS, {"known": list(self._catalogs)})
        self._catalogs = {
            str(commit): self._catalogs[str(commit)]
            if data is None
            else catalog_layouts(stored_names.loads(cast(bytes, data), Catalog))
            for commit, data in catalogs
        }
        jobs = await self._rows(JOBS, {"known": list(self._jobs)})
        self._jobs = {
            str(job): self._jobs[str(job)]
            if data is None
            else job_layouts(stored_names.loads(cast(bytes, data), Job))
            for job, data in jobs
        }
        found: dict[TopicName, TopicLayout] = {}
        for layouts in (*self._jobs.values(), *self._catalogs.values()):
            found |= layouts
        return found

    async def alive(self) -> list[TopicName]:
        """Return every topic that the bank knows and is not destroying."""
        return [TopicName(str(name)) for (name,) in await self._rows(ALIVE, {})]

    async def _rows(
        self, statement: LiteralString, values: Mapping[str, object]
    ) -> list[tuple[object, ...]]:
        async with postgres.connection_of(self._pool) as connection:
            return await (await connection.execute(statement, values)).fetchall()
