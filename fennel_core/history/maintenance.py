"""Keep history in shape: one run of what the DAG `history_maintenance` does.

The same function runs under `spark-submit` in Airflow (`apps/spark_jobs/history_maintenance.py`)
and in `fennel-core maintain-history` without it. Several runs at once are safe (`compaction_run`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from fennel_core.connections import postgres
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.postgres import Pool
from fennel_core.history.compaction import CompactionRule
from fennel_core.history.compaction_run import Compaction, CompactionResult, Merger
from fennel_core.history.errors import CompactionFailed
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.spark_merges import SparkMerger
from fennel_core.history.topics import HistoryTopics
from fennel_core.settings.model import MIB, Settings

SESSION: Final = "fennel-history-maintenance"
MERGED: Final = CompactionRule(file_bytes=16 * MIB, file_rows=1_000_000)
"""The largest merged file: some readers, and the task that merges, decode a file as a whole."""
REPLACED_KEPT: Final = timedelta(hours=26)
"""How long replaced files stay: longer than the longest read, a run of `query_offline` of up to a
day.
"""


async def maintain_history(settings: Settings) -> CompactionResult:
    """Merge small files of history. Raises SystemUnavailable, and CompactionFailed also if
    some files cannot be merged.
    """
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name=SESSION, size=2) as pool:
        merger = SparkMerger(settings, installation_objects(settings, pool))
        try:
            done = await compact(settings, pool, merger)
        finally:
            merger.stop()
    if done.refused:
        raise CompactionFailed(
            f"{done.refused} merges were refused, {done.made} were made: the log names the files; "
            "restore damaged ones from a backup of the bucket"
        )
    return done


async def compact(settings: Settings, pool: Pool, merger: Merger) -> CompactionResult:
    """Merge small files with `merger`."""
    topics = HistoryTopics(pool)
    kept_us = await topics.request_history_us()
    if settings.query_log_history_s:
        queries_us = settings.query_log_history_s * 1_000_000
        kept_us |= dict.fromkeys(await topics.query_logs(), queries_us)
    return await Compaction(
        PostgresHistoryFiles(pool),
        merger,
        MERGED,
        kept_us,
        timedelta(milliseconds=settings.history_grace_ms),
        REPLACED_KEPT,
    ).run()
