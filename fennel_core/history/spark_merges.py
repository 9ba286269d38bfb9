"""Merge files of history with Spark: one task per merge.

A task reads, sorts and uploads; the driver replaces the rows of the index (`compaction_run`). So a
task that Spark repeats uploads an object more, and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fennel_core.connections import s3
from fennel_core.connections.installation import InstallationObjects
from fennel_core.connections.spark import JVM_EXIT_ERRORS, session_builder
from fennel_core.history.compaction import Merge
from fennel_core.history.errors import CompactionFailed
from fennel_core.history.merging import MergeRefused, merge_files
from fennel_core.history.spark import TASK_ATTEMPTS, first_lines
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.telemetry.logs import logger

log = logger(__name__)
if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class SparkMerger:
    """A `compaction_run.Merger` on Spark, which starts with the first merge."""

    def __init__(self, settings: Settings, objects: InstallationObjects) -> None:
        self._settings, self._objects = settings, objects
        self._spark: SparkSession | None = None

    async def merge(self, merges: Sequence[Merge]) -> Sequence[HistoryFile | MergeRefused]:
        """See `Merger.merge`."""
        root = await self._objects.root()
        return await asyncio.to_thread(self._merge, root, merges)

    def _merge(self, root: str, merges: Sequence[Merge]) -> list[HistoryFile | MergeRefused]:
        try:
            return self._made(root, merges)
        except PySparkException as failed:
            if len(merges) == 1:
                return [MergeRefused(f"its task failed: {first_lines(failed)}")]
            # One of them, such as one that needs too much memory, must not stop the others.
            log.warning("merges are repeated one by one", reason=first_lines(failed))
            return [made for merge in merges for made in self._merge(root, [merge])]
        except JVM_EXIT_ERRORS as failed:
            raise CompactionFailed(
                f"files of history were not merged ({first_lines(failed)}): what was merged before "
                "stays; run the compaction again"
            ) from failed

    def _made(self, root: str, merges: Sequence[Merge]) -> list[HistoryFile | MergeRefused]:
        if self._spark is None:
            self._spark = session(self._settings)
        tasks = self._spark.sparkContext.parallelize(list(merges), len(merges))
        return list(tasks.map(merge_task(self._settings, root)).collect())

    def stop(self) -> None:
        """Stop Spark."""
        if self._spark is not None:
            with contextlib.suppress(*JVM_EXIT_ERRORS):
                self._spark.stop()
            self._spark = None


def session(settings: Settings) -> SparkSession:
    """Return the Spark application: local unless another master is configured."""
    return (
        session_builder(
            settings,
            app_name="fennel-history-maintenance",
            local_master=f"local[{settings.history_workers},{TASK_ATTEMPTS}]",
        )
        .config("spark.executorEnv.POLARS_MAX_THREADS", 1)  # a task has one core
        .getOrCreate()
    )


def merge_task(settings: Settings, root: str) -> Callable[[Merge], HistoryFile | MergeRefused]:
    """Return the function that a task applies to its merge; it is self-contained."""

    def work(merge: Merge) -> HistoryFile | MergeRefused:
        return merge_files(merge, partial(_get, settings, root), partial(_put, settings, root))

    return work


def _get(settings: Settings, root: str, key: str) -> bytes | None:
    return s3.get(_client(settings), settings.s3_bucket, root + key)


def _put(settings: Settings, root: str, key: str, body: bytes) -> None:
    # Keys are unique, so a key that exists is an earlier attempt whose response was lost.
    s3.put_new(_client(settings), settings.s3_bucket, root + key, body)


@lru_cache(maxsize=1)
def _client(settings: Settings) -> S3Client:
    """Return the worker's client; creating one costs as much as writing a file."""
    return s3.client(settings)
