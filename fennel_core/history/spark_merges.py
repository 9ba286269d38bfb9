"""Make files of history with Spark: one task per merge, per file that may lose rows,
or per range of key groups in which replaced versions are searched.

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
from fennel_core.history.expiring import TopicExpiry, remove_expired
from fennel_core.history.merging import Get, MergeRefused, merge_files
from fennel_core.history.replaced_versions import (
    FileWithReplaced,
    ReplacedRows,
    VersionSurvey,
    remove_replaced,
    survey,
)
from fennel_core.history.roll import Put
from fennel_core.history.spark import TASK_ATTEMPTS, first_lines
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import TopicName

log = logger(__name__)
Item = TypeVar("Item")
Rule = TypeVar("Rule")
Made = TypeVar("Made")
Task = Callable[[Item], Made | MergeRefused]
if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class SparkMerger:
    """A `maintenance.FileWorker` on Spark, which starts with the first file."""

    def __init__(
        self, settings: Settings, objects: InstallationObjects, *, dry_run: bool = False
    ) -> None:
        """`dry_run`: files are made to count their rows, and not uploaded."""
        self._settings, self._objects, self._dry_run = settings, objects, dry_run
        self._spark: SparkSession | None = None

    async def merge(self, merges: Sequence[Merge]) -> Sequence[HistoryFile | MergeRefused]:
        """See `Merger.merge`."""
        get, put = await self._access()
        task = partial(merge_files, get=get, put=put)
        return await asyncio.to_thread(self._made, task, merges)

    async def remove_erased(
        self, files: Sequence[HistoryFile], erasures: Mapping[TopicName, TopicErasures]
    ) -> Sequence[HistoryFile | MergeRefused]:
        """See `EraseWorker.remove_erased`."""
        wanted = {file.topic: erasures[file.topic] for file in files}
        get, put = await self._access()
        task = partial(_each, remove_erased, wanted, get, put)
        return await asyncio.to_thread(self._made, task, files)

    async def remove_expired(
        self, files: Sequence[HistoryFile], expiries: Mapping[TopicName, TopicExpiry]
    ) -> Sequence[HistoryFile | MergeRefused]:
        """See `ExpiryWorker.remove_expired`."""
        wanted = {file.topic: expiries[file.topic] for file in files}
        get, put = await self._access()
        task = partial(_each, remove_expired, wanted, get, put)
        return await asyncio.to_thread(self._made, task, files)

    async def survey(self, tasks: Sequence[VersionSurvey]) -> Sequence[ReplacedRows | MergeRefused]:
        """See `VersionWorker.survey`."""
        opened = partial(_opened, self._settings, await self._objects.root())
        return await asyncio.to_thread(self._made, partial(survey, opened=opened), tasks)

    async def remove_replaced(
        self, files: Sequence[FileWithReplaced], expiries: Mapping[TopicName, TopicExpiry]
    ) -> Sequence[HistoryFile | MergeRefused]:
        """See `VersionWorker.remove_replaced`."""
        wanted = {each.file.topic: expiries[each.file.topic] for each in files}
        get, put = await self._access()
        task = partial(_remove_replaced, wanted, get, put)
        return await asyncio.to_thread(self._made, task, files)

    async def _access(self) -> tuple[Get, Put]:
        """Return how a task reads and writes objects."""
        root = await self._objects.root()
        put = _discard if self._dry_run else partial(_put, self._settings, root)
        return partial(_get, self._settings, root), put

    def _made(self, task: Task[Item, Made], items: Sequence[Item]) -> list[Made | MergeRefused]:
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


def _each(
    remove: Callable[[HistoryFile, Rule, Get, Put], HistoryFile | MergeRefused],
    rules: Mapping[TopicName, Rule],
    get: Get,
    put: Put,
    file: HistoryFile,
) -> HistoryFile | MergeRefused:
    """Apply the rule of its topic to a file; what a task calls."""
    return remove(file, rules[file.topic], get, put)


def _remove_replaced(
    rules: Mapping[TopicName, TopicExpiry], get: Get, put: Put, item: FileWithReplaced
) -> HistoryFile | MergeRefused:
    return remove_replaced(item, rules[item.file.topic], get, put)


def _opened(settings: Settings, root: str, file: HistoryFile) -> s3.RangedObject:
    key = root + file.object_key
    return s3.RangedObject(_client(settings), settings.s3_bucket, key, file.size_bytes)


def _get(settings: Settings, root: str, key: str) -> bytes | None:
    return s3.get(_client(settings), settings.s3_bucket, root + key)


def _discard(key: str, body: bytes) -> None:
    """Write nothing: a dry run."""


def _put(settings: Settings, root: str, key: str, body: bytes) -> None:
    # Keys are unique, so a key that exists is an earlier attempt whose response was lost.
    s3.put_new(_client(settings), settings.s3_bucket, root + key, body)


@lru_cache(maxsize=1)
def _client(settings: Settings) -> S3Client:
    """Return the worker's client; creating one costs as much as writing a file."""
    return s3.client(settings)
