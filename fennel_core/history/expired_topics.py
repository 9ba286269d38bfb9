"""Which rows of which topics have expired now.

Theory. The clock that ages rows must not jump: what is removed does not come back. So `now` is the
earliest of three clocks: that of the database, that of this machine, and the time that the database
stored when the workspace last accepted rows. A workspace that accepts nothing loses nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from fennel_core.blueprints.row_retention import RowRetention
from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.history.expiring import TopicExpiry
from fennel_core.history.topic_counts import group_of
from fennel_core.vocab.ids import Micros, TopicName

CLOCKS: Final = """
    SELECT workspace, (extract(epoch FROM max(last_rows_at)) * 1000000)::bigint FROM source_clock
    WHERE last_rows_at IS NOT NULL GROUP BY workspace
"""
"""Not `ingest_clock`, which erasures advance, too."""


def expiries(
    kept: Mapping[TopicName, RowRetention], accepted: Mapping[str, int], now_us: int
) -> dict[TopicName, TopicExpiry]:
    """Return the expiry of each topic that loses rows.

    `accepted`: when each workspace accepted its last row, µs.
    """
    found = {}
    for topic, each in kept.items():
        last = accepted.get(group_of(topic).workspace)
        if each.kept_because is None and last is not None:
            oldest = Micros(min(last, now_us) - each.kept_us)
            found[topic] = TopicExpiry(each.timestamp, oldest, each.kept_us)
    return found


async def expiries_now(
    pool: Pool, kept: Mapping[TopicName, RowRetention]
) -> dict[TopicName, TopicExpiry]:
    """Return the expiry of each topic that loses rows, as of now. Raises SystemUnavailable."""
    async with postgres.connection_of(pool) as connection:
        rows: list[tuple[str, int]] = await (await connection.execute(CLOCKS)).fetchall()  # type: ignore[assignment]  # the columns of the table
    stored = (await postgres.now(pool)).timestamp()
    return expiries(kept, dict(rows), int(min(stored, time.time()) * 1_000_000))
