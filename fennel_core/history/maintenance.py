"""Keep history in shape: one run of what the DAG `history_maintenance` does.

First the rows of erased keys leave the files that no replay needs (`erasing_run`), and with the
setting `history_retention` rows that are older than `history` do (`expiring_run`, and for keyed
datasets `replaced_versions_run`); then small files are merged (`compaction_run`). The same function
runs under `spark-submit` in Airflow (`apps/spark_jobs/history_maintenance.py`) and in
`fennel-core maintain-history` without it. Several runs at once are safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

from fennel_core.connections import postgres
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.postgres import Pool
from fennel_core.history.compaction import CompactionRule
from fennel_core.history.compaction_run import Compaction, CompactionResult, Merger
from fennel_core.history.erased_topic_keys import erasures_of
from fennel_core.history.erasing_run import ErasedRowsRemoval, EraseWorker
from fennel_core.history.errors import CompactionFailed
from fennel_core.history.expired_topics import expiries_now
from fennel_core.history.expiring_run import ExpiredRowsRemoval, ExpiryWorker
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.removals import RemovedRows, Replacer, sums
from fennel_core.history.replaced_versions_run import ReplacedVersionsRemoval, VersionWorker
from fennel_core.history.row_needs import RowNeedsReader
from fennel_core.history.spark_merges import SparkMerger
from fennel_core.history.topics import HistoryTopics
from fennel_core.settings.model import MIB, Settings
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition

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


class RowWorker(EraseWorker, ExpiryWorker, VersionWorker, Protocol):
    """Makes files with fewer rows."""


class FileWorker(Merger, RowWorker, Protocol):
    """Makes files."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What a run did: `removed` rows of erased keys, rows that `expired`, by topic, and merges.

    `merged`: None in a dry run. `retention`: rows that expire are removed; without it, a dry run
    counts them.
    """

    removed: RemovedRows
    expired: Mapping[TopicName, RemovedRows]
    merged: CompactionResult | None
    retention: bool

    @property
    def expired_rows(self) -> RemovedRows:
        """The sums over all topics."""
        return sums(self.expired.values())

    def check(self) -> None:
        """Raise CompactionFailed if some files could not be read or merged."""
        merged = CompactionResult() if self.merged is None else self.merged
        if refused := self.removed.refused + self.expired_rows.refused + merged.refused:
            raise CompactionFailed(
                f"{refused} files or merges were refused, {merged.made} were made and "
                f"{self.removed.rows} rows of erased keys and {self.expired_rows.rows} expired "
                "ones removed: the log names the files; restore damaged ones from a backup of the "
                "bucket"
            )

    def __str__(self) -> str:
        removed, expired = self.removed, self.expired_rows
        older = "removed" if self.retention else "kept, because FENNEL_HISTORY_RETENTION is off"
        text = (
            f"rows of erased keys removed: {removed.rows} from {removed.rewritten} of "
            f"{removed.searched} files searched. Rows older than `history` {older}: {expired.rows} "
            f"from {expired.rewritten} of {expired.searched} files searched. Files that wait until "
            f"snapshots and Kafka's retention have passed them: "
            f"{removed.waiting + expired.waiting}"
        )
        if left := removed.left + expired.left:
            text += (
                f". Files left to the next run by FENNEL_HISTORY_REWRITE_BYTES: {left} "
                f"({removed.left_bytes + expired.left_bytes} bytes)"
            )
        superseded = removed.superseded + expired.superseded
        if self.merged is not None:
            superseded += self.merged.superseded
            text += f". Files merged: {self.merged.merged} into {self.merged.made}"
        return f"{text}. Files that another process had changed: {superseded}"


async def maintain_history(
    settings: Settings, read_bounds: ReadBounds, *, dry_run: bool = False
) -> MaintenanceResult:
    """Remove the rows of erased keys and those that have expired, and merge small files.

    `dry_run`: rows that would be removed are counted, nothing is changed, and the caller checks the
    result. Raises SystemUnavailable, and CompactionFailed also if some files cannot be read or
    merged.
    """
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name=SESSION, size=2) as pool:
        worker = SparkMerger(settings, installation_objects(settings, pool), dry_run=dry_run)
        try:
            if dry_run:
                rows = await remove_rows(settings, pool, worker, read_bounds, dry_run=True)
                done = MaintenanceResult(*rows, None, settings.history_retention)
            else:
                done = await remove_and_merge(settings, pool, worker, read_bounds)
        finally:
            worker.stop()
    if not dry_run:
        done.check()
    return done


async def remove_and_merge(
    settings: Settings, pool: Pool, worker: FileWorker, read_bounds: ReadBounds
) -> MaintenanceResult:
    """Remove rows, then merge small files, also where nothing can be removed now because a system
    is away. Raises SystemUnavailable, then too, or CompactionFailed.
    """
    failed: SystemUnavailable | None = None
    rows: tuple[RemovedRows, Mapping[TopicName, RemovedRows]] = RemovedRows(), {}
    try:
        rows = await remove_rows(settings, pool, worker, read_bounds)
    except SystemUnavailable as unavailable:
        log.warning("rows were not removed from history", reason=str(unavailable))
        failed = unavailable
    merged = await compact(settings, pool, worker)
    if failed is not None:
        raise failed
    return MaintenanceResult(*rows, merged, settings.history_retention)


async def remove_rows(
    settings: Settings,
    pool: Pool,
    worker: RowWorker,
    read_bounds: ReadBounds,
    *,
    dry_run: bool = False,
) -> tuple[RemovedRows, Mapping[TopicName, RemovedRows]]:
    """Remove the rows of erased keys, then those that have expired, where they may be removed.

    Expired rows are only removed with the setting `history_retention`; a dry run counts them.
    """
    topics = HistoryTopics(pool)
    by_topic = await erasures_of(pool, await topics.erasable())
    needs = RowNeedsReader(pool)
    expiring = settings.history_retention or dry_run
    if expiring and not dry_run:
        await needs.advance_clocks()
    read_expiries = partial(expiries_now, needs, dry_run=dry_run)
    if not by_topic and not (expiring and (await read_expiries()).topics):
        return RemovedRows(), {}
    bounds = await read_bounds(settings, pool)
    replacer = Replacer(PostgresHistoryFiles(pool), REPLACED_KEPT, dry_run)
    grace = timedelta(milliseconds=settings.history_grace_ms)
    most = settings.history_rewrite_bytes
    removed = await ErasedRowsRemoval(replacer, worker, by_topic, bounds, grace, most).run()
    if not expiring:
        return removed, {}
    found = replacer, worker, read_expiries, bounds, grace, most
    expired = {
        **await ExpiredRowsRemoval(*found).run(),
        **await ReplacedVersionsRemoval(*found).run(),
    }
    for topic, each in expired.items():
        if each.rewritten:
            log.info(
                "rows older than `history` " + ("would be" if dry_run else "were") + " removed",
                topic=topic,
                files=each.rewritten,
                rows=each.rows,
            )
    return removed, expired


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
