"""Remove from the ledgers what only the past needed, in batches.

A commit's row stays for ever, with its state, its error and its plan. Its request, definitions and
catalog are needed while a branch has the version, or while another commit that was validated
against it is open; they are kept for `commit_history_ms` after the version was replaced. Entries
are removed the same time after they were done, and a deleted asset with the last of its entries.

Nothing else looks a deleted asset up: history and snapshots name what they keep in their own rows,
orphans are recognized by their incarnation, and no name is ever used twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.store import LedgerTransaction
from fennel_core.telemetry.logs import logger

log = logger(__name__)
BATCH_ROWS: Final = 500
"""Rows of one transaction: short enough that no commit waits for it."""
BATCHES_PER_PASS: Final = 20


async def prune_ledgers(context: LedgerContext) -> int:
    """Remove what is old enough, up to the limit of one pass; return the number of rows."""
    older_ms = context.timings.commit_history_ms
    commits = await _in_batches(context, lambda tx: tx.prune_commits(older_ms, BATCH_ROWS))
    entries = await _in_batches(context, lambda tx: tx.prune_entries(older_ms, BATCH_ROWS))
    # After the entries: an asset stays as long as an entry refers to it.
    assets = await _in_batches(context, lambda tx: tx.prune_assets(BATCH_ROWS))
    if commits or entries or assets:
        log.info("ledgers pruned", commits=commits, entries=entries, assets=assets)
    return commits + entries + assets


async def _in_batches(
    context: LedgerContext, prune: Callable[[LedgerTransaction], Awaitable[int]]
) -> int:
    total = 0
    for _ in range(BATCHES_PER_PASS):
        pruned = await context.ledger.run(prune)
        total += pruned
        if pruned < BATCH_ROWS:
            break
    return total
