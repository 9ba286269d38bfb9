"""Keep history in shape: one run of what the DAG `history_maintenance` does.

First the rows of erased keys leave the files that no replay needs (`erasing_run`), then small files
are merged (`compaction_run`). The same function runs under `spark-submit` in Airflow
(`apps/spark_jobs/history_maintenance.py`) and in `fennel-core maintain-history` without it. Several
runs at once are safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from fennel_core.connections import postgres
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.postgres import Pool
from fennel_core.history.compaction import CompactionRule
from fennel_core.history.compaction_run import Compaction, CompactionResult, Merger
from fennel_core.history.erased_topic_keys import erasures_of
from fennel_core.history.erasing_run import ErasedRowsRemoval, EraseWorker, RemovedRows
from fennel_core.history.errors import CompactionFailed
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.spark_merges import SparkMerger
from fennel_core.history.topics import HistoryTopics
from fennel_core.settings.model import MIB, Settings
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import Offset, TopicPartition

SESSION: Final = "fennel-history-maintenance"
MERGED: Final = CompactionRule(file_bytes=16 * MIB, file_rows=1_000_000)
"""The largest merged file: some readers, and the task that merges, decode a file as a whole."""
REPLACED_KEPT: Final = timedelta(hours=26)
"""How long replaced files stay: longer than the longest read, a run of `query_offline` of up to a
day.
"""
log = logger(__name__)
ReadBounds = Callable[[Settings, Pool], Awaitable[Mapping[TopicPartition, Offset]]]
"""Returns the offset of each partition below which neither a replay nor Kafka has records."""


class FileWorker(Merger, EraseWorker, Protocol):
    """Makes files."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What a run did."""

    removed: RemovedRows
    merged: CompactionResult

    def __str__(self) -> str:
        removed, merged = self.removed, self.merged
        return (
            f"rows of erased keys removed: {removed.rows} from {removed.rewritten} of "
            f"{removed.searched} files searched; files that wait until snapshots and Kafka's "
            f"retention have passed them: {removed.waiting}. Files merged: {merged.merged} into "
            f"{merged.made}. Files that another process had changed: "
            f"{removed.superseded + merged.superseded}"
        )


async def maintain_history(settings: Settings, read_bounds: ReadBounds) -> MaintenanceResult:
    """Remove the rows of erased keys and merge small files.

    Raises SystemUnavailable, and CompactionFailed also if some files cannot be read or merged.
    """
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name=SESSION, size=2) as pool:
        worker = SparkMerger(settings, installation_objects(settings, pool))
        try:
            removed, merged = await remove_and_merge(settings, pool, worker, read_bounds)
        finally:
            worker.stop()
    if refused := removed.refused + merged.refused:
        raise CompactionFailed(
            f"{refused} files or merges were refused, {merged.made} were made and {removed.rows} "
            "rows of erased keys removed: the log names the files; restore damaged ones from a "
            "backup of the bucket"
        )
    return MaintenanceResult(removed, merged)


async def remove_and_merge(
    settings: Settings, pool: Pool, worker: FileWorker, read_bounds: ReadBounds
) -> tuple[RemovedRows, CompactionResult]:
    """Remove the rows of erased keys, then merge small files, also where nothing can be removed
    now because a system is away. Raises SystemUnavailable, then too, or CompactionFailed.
    """
    failed: SystemUnavailable | None = None
    try:
        removed = await remove_erased_rows(settings, pool, worker, read_bounds)
    except SystemUnavailable as unavailable:
        log.warning("rows of erased keys were not removed", reason=str(unavailable))
        failed = unavailable
    merged = await compact(settings, pool, worker)
    if failed is not None:
        raise failed
    return removed, merged


async def remove_erased_rows(
    settings: Settings, pool: Pool, worker: EraseWorker, read_bounds: ReadBounds
) -> RemovedRows:
    """Remove the rows of erased keys with `worker`, where they may be removed."""
    by_topic = await erasures_of(pool, await HistoryTopics(pool).erasable())
    if not by_topic:
        return RemovedRows()
    return await ErasedRowsRemoval(
        PostgresHistoryFiles(pool),
        worker,
        by_topic,
        await read_bounds(settings, pool),
        timedelta(milliseconds=settings.history_grace_ms),
        REPLACED_KEPT,
    ).run()


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
