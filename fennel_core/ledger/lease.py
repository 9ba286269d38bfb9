"""Keep the lease of a commit while a step works on it.

Reconcile takes over a commit whose lease has expired. A step may take much longer than a lease
(thousands of topics, a slow broker), and it may have no client that waits for it, so the lease must
not depend on what the step does: it is renewed beside the work, and the renewals end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fennel_core.connections.errors import ConnectionsError
from fennel_core.ledger.context import LedgerContext
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import CommitId

RENEWALS_PER_LEASE: Final = 3
"""Two renewals may fail before the lease expires."""
log = logger(__name__)


@asynccontextmanager
async def keep_lease(context: LedgerContext, commit: CommitId) -> AsyncIterator[None]:
    """Renew the commit's lease until the block ends, however it ends."""
    task = asyncio.create_task(_renew(context, commit), name=f"lease of commit {commit}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _renew(context: LedgerContext, commit: CommitId) -> None:
    lease_ms = context.timings.lease_ms
    while True:
        await asyncio.sleep(lease_ms / 1000 / RENEWALS_PER_LEASE)
        try:
            await context.ledger.run(lambda tx: tx.extend_lease(commit, lease_ms))
        except ConnectionsError as error:
            log.warning("lease not renewed", commit=commit, reason=str(error))
