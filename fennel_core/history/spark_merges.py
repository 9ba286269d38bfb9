"""Make files of history with Spark: one task per merge, or per file with rows of erased keys.

A task reads, sorts and uploads; the driver replaces the rows of the index. So a
task that Spark repeats uploads an object more, and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fennel_core.connections import s3
from fennel_core.connections.installation import InstallationObjects
from fennel_core.connections.spark import JVM_EXIT_ERRORS, session_builder
from fennel_core.history.compaction import Merge
from fennel_core.history.erasing import TopicErasures, remove_erased
from fennel_core.history.errors import CompactionFailed
from fennel_core.history.merging import MergeRefused, merge_files
from fennel_core.history.spark import TASK_ATTEMPTS, first_lines
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import TopicName

log = logger(__name__)
Item = TypeVar("Item")
Task = Callable[[Item], HistoryFile | MergeRefused]
if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class SparkMerger:
    """A `maintenance.FileWorker` on Spark, which starts with the first file."""

    def __init__(self, settings: Settings, objects: InstallationObjects) -> None:
        self._settings, self._objects = settings, objects
        self._spark: SparkSession | None = None

    async def merge(self, merges: Sequence[Merge]) -> Sequence[HistoryFile | MergeRefused]:
        """See `Merger.merge`."""
        task = merge_task(self._settings, await self._objects.root())
        return await asyncio.to_thread(self._made, task, merges)

    async def remove_erased(
        self, files: Sequence[HistoryFile], erasures: Mapping[TopicName, TopicErasures]
    ) -> Sequence[HistoryFile | MergeRefused]:
        """See `EraseWorker.remove_erased`."""
        wanted = {file.topic: erasures[file.topic] for file in files}
        task = erase_task(self._settings, await self._objects.root(), wanted)
        return await asyncio.to_thread(self._made, task, files)

    def _made(self, task: Task[Item], items: Sequence[Item]) -> list[HistoryFile | MergeRefused]:
        """Return the result of `task` for each item, made by a Spark task of its own."""
        try:
            if self._spark is None:
                self._spark = session(self._settings)
            tasks = self._spark.sparkContext.parallelize(list(items), len(items))
            return list(tasks.map(task).collect())
        except PySparkException as failed:
            if len(items) == 1:
                return [MergeRefused(f"its task failed: {first_lines(failed)}")]
            # One of them, such as one that needs too much memory, must not stop the others.
            log.warning("files are made one by one", reason=first_lines(failed))
            return [made for item in items for made in self._made(task, [item])]
        except JVM_EXIT_ERRORS as failed:
            raise CompactionFailed(
                f"files of history were not made ({first_lines(failed)}): what was made before "
                "stays; run the maintenance again"
            ) from failed

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


def merge_task(settings: Settings, root: str) -> Task[Merge]:
    """Return the function that a task applies to its merge; it is self-contained."""

    def work(merge: Merge) -> HistoryFile | MergeRefused:
        return merge_files(merge, partial(_get, settings, root), partial(_put, settings, root))

    return work


def erase_task(
    settings: Settings, root: str, erasures: Mapping[TopicName, TopicErasures]
) -> Task[HistoryFile]:
    """Return the function that a task applies to a file; it is self-contained."""

    def work(file: HistoryFile) -> HistoryFile | MergeRefused:
        return remove_erased(
            file,
            erasures[file.topic],
            partial(_get, settings, root),
            partial(_put, settings, root),
        )

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
