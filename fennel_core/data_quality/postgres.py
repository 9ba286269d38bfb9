"""Counts of expectations in Postgres (migration 0017).

Theory. One transaction moves the offset of a partition by compare-and-set and adds the counts. Of
two processes that read the same range, one waits for the other's row and then finds another offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString, cast

from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.data_quality.counting import EvaluatedRange
from fennel_core.data_quality.suites import Suites, TopicExpectations
from fennel_core.expectations.expected import passes
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

POSITIONS: Final = "SELECT topic, part, next_offset FROM expectation_position"
ADVANCE: Final = """
    INSERT INTO expectation_position AS p (topic, part, next_offset)
    SELECT %(topic)s, %(part)s, %(next)s
    WHERE %(first)s = 0 OR EXISTS (
        SELECT FROM expectation_position WHERE topic = %(topic)s AND part = %(part)s
    )
    ON CONFLICT (topic, part) DO UPDATE SET next_offset = excluded.next_offset
    WHERE p.next_offset = %(first)s
    RETURNING true
"""
ADD: Final = """
    INSERT INTO expectation_count AS c
        (topic, digest, workspace, dataset, kind, arguments, mostly, evaluated, failed, failed_at)
    VALUES (%(topic)s, %(digest)s, %(workspace)s, %(dataset)s, %(kind)s, %(arguments)s, %(mostly)s,
        %(evaluated)s, %(failed)s, CASE WHEN %(failed)s > 0 THEN now() END)
    ON CONFLICT (topic, digest) DO UPDATE
    SET evaluated = c.evaluated + excluded.evaluated, failed = c.failed + excluded.failed,
        failed_at = coalesce(excluded.failed_at, c.failed_at), dataset = excluded.dataset
"""
FORGET: Final = (
    "DELETE FROM expectation_position WHERE NOT topic = ANY(%(topics)s)",
    "DELETE FROM expectation_count WHERE NOT topic || '/' || digest = ANY(%(names)s)",
)
COLUMNS: Final = (
    "workspace, dataset, topic, digest, kind, arguments, mostly, evaluated, failed, failed_at"
)
IS_UNMET: Final = (
    "(evaluated > 0 AND (evaluated - failed)::double precision / nullif(evaluated, 0) < mostly)"
)
"""`not passes(…)` in SQL."""
ORDER: Final = "workspace, dataset, kind, arguments, topic"
READ: Final = f"""
    SELECT {COLUMNS} FROM expectation_count
    WHERE %(visible)s::text[] IS NULL OR workspace = ANY(%(visible)s)
    ORDER BY {ORDER} LIMIT %(limit)s
"""  # noqa: S608  # a constant
READ_UNMET: Final = f"""
    SELECT {COLUMNS} FROM expectation_count WHERE {IS_UNMET} ORDER BY {ORDER} LIMIT %(limit)s
"""  # noqa: S608  # a constant


@dataclass(frozen=True, slots=True)
class ExpectationCount:
    """What one expectation has counted on one topic."""

    workspace: str
    dataset: str
    topic: str
    digest: str
    kind: str
    arguments: str
    mostly: float
    evaluated: int
    failed: int
    failed_at: datetime | None

    @property
    def is_met(self) -> bool:
        """Whether the share of rows as expected is at least `mostly`."""
        return passes(self.mostly, self.evaluated, self.failed)

    @property
    def share(self) -> float | None:
        """The share of the considered rows that are as expected; None without rows."""
        return (self.evaluated - self.failed) / self.evaluated if self.evaluated else None


def count_of(row: Sequence[Any]) -> ExpectationCount:
    """Return the count in a row of `COLUMNS`."""
    return ExpectationCount(*tuple(row))


class PostgresQualityCounts:
    """`QualityCounts` in the tables `expectation_count` and `expectation_position`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def positions(self) -> Mapping[TopicPartition, Offset]:
        return {
            (TopicName(topic), PartitionIndex(part)): Offset(offset)
            for topic, part, offset in await self._rows(POSITIONS)
        }

    async def add(self, evaluated: EvaluatedRange, suite: TopicExpectations) -> bool:
        topic, part = evaluated.source
        at = {
            "topic": topic,
            "part": part,
            "first": evaluated.first,
            "next": evaluated.next_offset,
        }
        values = [
            {
                "topic": topic,
                "digest": digest,
                "workspace": suite.workspace,
                "dataset": suite.dataset,
                "kind": suite.expected[digest].kind,
                "arguments": suite.expected[digest].arguments,
                "mostly": suite.expected[digest].mostly,
                "evaluated": counts.evaluated,
                "failed": counts.failed,
            }
            for digest, counts in sorted(evaluated.counts.items())
        ]
        async with (
            postgres.connection_of(self._pool) as connection,
            connection.transaction(),
            connection.cursor() as cursor,
        ):
            if await (await cursor.execute(ADVANCE, at)).fetchone() is None:
                return False
            await cursor.executemany(ADD, values)
        return True

    async def keep_only(self, suites: Suites) -> None:
        names = [f"{topic}/{digest}" for topic, each in suites.items() for digest in each.expected]
        async with postgres.connection_of(self._pool) as connection, connection.transaction():
            for statement in FORGET:
                await connection.execute(statement, {"topics": list(suites), "names": names})

    async def read(
        self, limit: int, workspaces: Sequence[str] | None = None
    ) -> list[ExpectationCount]:
        """Return the counts of some workspaces, or of all."""
        visible = None if workspaces is None else list(workspaces)
        rows = await self._rows(READ, {"limit": limit, "visible": visible})
        return [count_of(row) for row in rows]

    async def read_unmet(self, limit: int) -> list[ExpectationCount]:
        """Return the counts of expectations that are not met, of all workspaces."""
        return [count_of(row) for row in await self._rows(READ_UNMET, {"limit": limit})]

    async def _rows(
        self, statement: LiteralString, values: Mapping[str, object] | None = None
    ) -> list[tuple[Any, ...]]:
        async with postgres.connection_of(self._pool) as connection:
            rows = await (await connection.execute(statement, values)).fetchall()
        return cast(list[tuple[Any, ...]], rows)
