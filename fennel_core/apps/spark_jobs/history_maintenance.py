"""The Spark application of the DAG `history_maintenance`: `spark-submit history_maintenance.py`.

It ends with status 1 if it has to run again.
"""

from __future__ import annotations

import asyncio
import sys

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.spark import keep_submitted_master
from fennel_core.definition.kafka_retention import removable_records
from fennel_core.history.errors import CompactionFailed
from fennel_core.history.maintenance import maintain_history
from fennel_core.settings.model import Settings
from fennel_core.telemetry import logs
from fennel_core.telemetry.logs import logger

log = logger(__name__)


def main() -> int:
    """Run once."""
    settings = Settings()
    logs.configure("history-maintenance", settings.log_level, hidden=logs.secrets_of(settings))
    keep_submitted_master()
    try:
        done = asyncio.run(maintain_history(settings, removable_records))
    except (SystemUnavailable, CompactionFailed) as failed:
        log.error("history was not maintained", code=failed.code, reason=str(failed))
        return 1
    expired, merged = done.expired_rows, done.merged
    assert merged is not None, "this is no dry run"
    log.info(
        "history is maintained",
        removed_rows=done.removed.rows,
        expired_rows=expired.rows,
        rewritten=done.removed.rewritten + expired.rewritten,
        searched=done.removed.searched + expired.searched,
        waiting=done.removed.waiting + expired.waiting,
        left=done.removed.left + expired.left,
        left_bytes=done.removed.left_bytes + expired.left_bytes,
        merged=merged.merged,
        made=merged.made,
        superseded=done.removed.superseded + expired.superseded + merged.superseded,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
