"""A slot's side of snapshots: copies of what its runners hold, and state for partitions that come here without any.

Theory. The checkpoint is made on the slot's worker thread, where stores are also opened and closed, so a store never goes away under it;
lookups and write batches go on beside it. The position is read before: what the copy holds is that or more. Uploads run on other threads,
one job partition at a time, so that a round of snapshots costs a slot little at any moment. A restored folder gets its real name when it
is complete: a process that dies before leaves nothing that could be taken for state.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from fennel_core.engine.progress import STATE_FORMAT
from fennel_core.engine.runner import Pool, Runner
from fennel_core.snapshots import flow
from fennel_core.snapshots.flow import Outrun, Subject, Taken, Tools, Unchanged
from fennel_core.snapshots.manifest import Position
from fennel_core.vocab.ids import Epoch, JobId, PartitionIndex

log = structlog.get_logger(__name__)


class Snapshots:
    """`root` is the folder of local state, `<root>/<job>/<part>`; `unique` gives a name that nobody had before."""

    def __init__(self, tools: Tools, root: Path, pool: Pool, unique: Callable[[], str]) -> None:
        self._tools, self._root, self._pool, self._unique = tools, root, pool, unique
        self._one_at_a_time = asyncio.Lock()

    async def take(self, runner: Runner) -> Taken | Unchanged | Outrun:
        """Copy a running runner's state. StoreError, HangarClosed (it stopped meanwhile) and OSError pass through."""
        job, part = runner.job.id, PartitionIndex(runner.part)
        folder = self._root / job / f"checkpoint-{part}"

        def copied() -> Path:
            shutil.rmtree(folder, ignore_errors=True)  # of a process that died
            runner.hangar.checkpoint(folder)
            return folder

        async with self._one_at_a_time:
            known = runner.progress
            position = Position(known.iteration, known.replayed, known.offsets)
            subject = Subject(job, part, runner.epoch, STATE_FORMAT, position)
            try:
                made = await flow.take(self._tools, subject, lambda: self._pool.run(copied), self._unique())
            finally:
                await asyncio.shield(self._pool.run(lambda: shutil.rmtree(folder, ignore_errors=True)))
        if isinstance(made, Taken):
            log.info("snapshot taken", job=job, part=part, snapshot=made.manifest, files=made.files, uploaded_bytes=made.uploaded_bytes)
        return made

    async def restore(self, job: JobId, part: PartitionIndex, epoch: Epoch) -> None:
        """Where a job partition has no local state, bring back the newest snapshot, if it has any. StoreError and OSError pass through."""
        place = self._root / job / str(part)
        if await asyncio.to_thread(place.exists):
            return
        coming = self._root / job / f"restoring-{part}-{epoch}"
        await asyncio.to_thread(shutil.rmtree, coming, ignore_errors=True)
        restored = await flow.restore(self._tools, job, part, STATE_FORMAT, coming)
        if restored is None:
            await asyncio.to_thread(shutil.rmtree, coming, ignore_errors=True)
            return
        await asyncio.to_thread(coming.rename, place)
        position = restored.manifest.position
        log.info(
            "state restored from snapshot",
            job=job,
            part=part,
            snapshot=restored.pointer.manifest,
            iteration=position.iteration,
            replayed=position.replayed,
            offsets=dict(position.offsets),
        )
