"""The removal of old rows from the ledgers in Postgres: a base of a ledger transaction."""

from __future__ import annotations

from typing import Final

from fennel_core.ledger.lifecycle import OPEN_ENTRIES, EntryState
from fennel_core.ledger.postgres_grace import GracePeriods
from fennel_core.vocab.ids import Millis

CLOSED_ENTRIES: Final = [str(s) for s in EntryState if s not in OPEN_ENTRIES]
COMMITS: Final = """
    UPDATE commit SET request = NULL, merged = NULL, catalog = NULL, catch_up = NULL WHERE id IN (
        SELECT c.id FROM commit c
        WHERE c.request IS NOT NULL AND c.finished_at <= now() - %(older)s * interval '1 ms'
          AND coalesce(c.rows_held_until <= now(), true)
          AND c.id NOT IN (SELECT v FROM branch, unnest(ARRAY[target, serving]) AS v
              WHERE v IS NOT NULL)
          AND NOT EXISTS (SELECT 1 FROM commit n WHERE n.base = c.id AND (n.finished_at IS NULL
              OR n.finished_at > now() - %(older)s * interval '1 ms'))
        ORDER BY c.finished_at LIMIT %(limit)s
    )
"""
ENTRIES: Final = """
    DELETE FROM ledger_entry WHERE id IN (
        SELECT e.id FROM ledger_entry e
        WHERE e.state = ANY(%(closed)s) AND e.updated_at <= now() - %(older)s * interval '1 ms'
          AND NOT EXISTS (SELECT 1 FROM commit c WHERE c.id = e.commit_id
              AND c.finished_at IS NULL)
        ORDER BY e.updated_at LIMIT %(limit)s
    )
"""
ASSETS: Final = """
    DELETE FROM asset WHERE id IN (
        SELECT a.id FROM asset a WHERE a.state = 'deleted'
          AND NOT EXISTS (SELECT 1 FROM ledger_entry e WHERE e.asset_id = a.id)
        ORDER BY a.id LIMIT %(limit)s
    )
"""


class OldRows(GracePeriods):
    """The part of `ledger.store.LedgerTransaction` about pruning."""

    async def prune_commits(self, older_ms: Millis, limit: int) -> int:
        return await self._execute(COMMITS, {"older": older_ms, "limit": limit})

    async def prune_entries(self, older_ms: Millis, limit: int) -> int:
        values = {"older": older_ms, "limit": limit, "closed": CLOSED_ENTRIES}
        return await self._execute(ENTRIES, values)

    async def prune_assets(self, limit: int) -> int:
        return await self._execute(ASSETS, {"limit": limit})
