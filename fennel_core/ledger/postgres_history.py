"""What the ledgers know of history in Postgres: a base of a ledger transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job
from fennel_core.ledger.postgres_pruning import OldRows
from fennel_core.ledger.store import HistoryRange
from fennel_core.vocab.ids import CommitId, TopicName, TopicPartition, WorkspaceId

HISTORY_RANGES = """
    SELECT topic, part, min(first_offset), max(next_offset), sum(removed_rows)::bigint,
        (max(next_offset) - min(first_offset) - sum(next_offset - first_offset))::bigint,
        sum(expired_rows)::bigint
    FROM history_file
    WHERE topic = ANY(%s::text[]) GROUP BY topic, part
"""
OLD_ROWS = """
    SELECT topic, sum(f.row_count)::bigint
    FROM history_file f JOIN unnest(%(topics)s::text[], %(kept)s::bigint[]) AS w (topic, kept_us)
        USING (topic),
        LATERAL (SELECT (extract(epoch FROM now()) * 1000000)::bigint - w.kept_us) AS o (oldest)
    WHERE f.min_ts < o.oldest
    GROUP BY topic
"""
# Also rows that were accepted later, for example of an import: they leave when that is old enough.
LET_LEAVE = """
    UPDATE workspace SET keeps_old_rows = false,
        old_rows_held_until = now() + %(grace)s * interval '1 ms'
    WHERE name = %(workspace)s AND keeps_old_rows
"""


class HistoryOfTopics(OldRows):
    """The part of `ledger.store.LedgerTransaction` about history."""

    async def history_ranges(
        self, topics: Iterable[TopicName]
    ) -> dict[TopicPartition, HistoryRange]:
        rows = await self._rows(HISTORY_RANGES, (list(topics),))
        return {(topic, part): HistoryRange(*held) for topic, part, *held in rows}

    async def old_rows(self, kept_us: Mapping[TopicName, int]) -> dict[TopicName, int]:
        values = {
            "topics": list(kept_us),
            "kept": list(kept_us.values()),
        }
        return {TopicName(t): rows for t, rows in await self._rows(OLD_ROWS, values)}

    async def kept_jobs(self, workspace: WorkspaceId) -> list[Job]:
        query = "SELECT spec FROM job WHERE workspace = %s AND desired <> 'remove' ORDER BY id"
        rows = await self._rows(query, (workspace,))
        return [stored_names.loads(bytes(spec), Job) for (spec,) in rows]

    async def keeps_old_rows(self, workspace: WorkspaceId) -> bool:
        query = "SELECT keeps_old_rows FROM workspace WHERE name = %s"
        return await self._rows(query, (workspace,)) == [(True,)]

    async def let_old_rows_leave(self, workspace: WorkspaceId) -> None:
        values = {"workspace": workspace, "grace": self.destroy_grace_ms}
        await self._execute(LET_LEAVE, values)

    async def versions_with_held_rows(self, workspace: WorkspaceId) -> list[CommitId]:
        query = "SELECT id FROM commit WHERE workspace = %s AND rows_held_until > now()"
        return [CommitId(id_) for (id_,) in await self._rows(query, (workspace,))]
