"""What a slot answers: lookups from the state it owns, how far its job partitions have come, and
waiting for them to get further.

Theory. Everything runs on the slot's event loop, which also applies write batches, so an answer
never sees half an iteration. A slot whose lease has ended on the monotonic clock answers nothing:
another may own its partitions by now. Requests name what they want by (job, partition) and every
refusal has a code of `connections.slot_protocol`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.engine.drill.subprocess_drill import DrillRunner
from fennel_core.engine.errors import RebuildRequested
from fennel_core.engine.runner import Runner
from fennel_core.engine.snapshots import Snapshots
from fennel_core.engine.supervisor import Supervisor
from fennel_core.hangar.store import HangarClosed, HangarCorrupt
from fennel_core.operators.step import LookupStep
from fennel_core.snapshots.drills import DrillFinding, DrillVerdict
from fennel_core.snapshots.rebuild import SlotReport
from fennel_core.snapshots.store import StoreError
from fennel_core.snapshots.transfer import OwnershipLost, SnapshotTaken, SnapshotUnchanged
from fennel_core.vocab.ids import JobId, Micros, Offset, PartitionIndex, TopicName

Item = tuple[str, int]


class Scans(Protocol):
    """A served step that can also list what it holds."""

    def rows(self, reads: Any, as_of: Micros, limit: int) -> list[tuple[bytes, bytes]]: ...


class SlotService:
    """Handler of `connections.frames.serve`."""

    def __init__(self, supervisor: Supervisor, snapshots: Snapshots, drills: DrillRunner) -> None:
        self._supervisor, self._snapshots, self._drills = supervisor, snapshots, drills

    async def __call__(self, op: str, argument: Any) -> object:
        match op:
            case "lookup":
                return [self._lookup(*item) for item in argument["items"]]
            case "positions":
                return [dict(self._runner(job, part).applied) for job, part in argument["items"]]
            case "wait":
                return await self._wait(argument["items"], argument["timeout_ms"])
            case "scan":
                return self._scan(
                    argument["job"], argument["part"], argument["as_of"], argument["limit"]
                )
            case "states":
                return [
                    self._state(JobId(job), PartitionIndex(part)) for job, part in argument["items"]
                ]
            case "rebuild":
                why = RebuildRequested(argument["why"], argument["before"])
                return [
                    await self._supervisor.rebuild((JobId(job), PartitionIndex(part)), why)
                    for job, part in argument["items"]
                ]
            case "snapshot":
                return [
                    [job, part, *await self._snapshot(job, part)] for job, part in argument["items"]
                ]
            case "drill":
                ((job, part),) = argument["items"]
                finding = await self._drill(job, part, argument["max_bytes"])
                return [finding.verdict, finding.told, finding.live_hash, finding.drilled_hash]
            case _:
                raise RemoteError(
                    RefusalCode.UNKNOWN_OPERATION,
                    f"a slot does not know `{op}`: query server and engine are of "
                    "different versions",
                )

    def _runner(self, job: str, part: int) -> Runner:
        hosted = self._supervisor.hosted.get((JobId(job), PartitionIndex(part)))
        if hosted is None or hosted.lost or not self._supervisor.lease_is_live():
            raise RemoteError(RefusalCode.NOT_OWNER, f"{job}[{part}] is not owned here")
        if hosted.parked is not None:
            raise RemoteError(RefusalCode.PARKED, f"{job}[{part}] is parked: {hosted.parked}")
        if hosted.runner is None or hosted.runner.status != "running":
            raise RemoteError(RefusalCode.NOT_OWNER, f"{job}[{part}] is replaying")
        return hosted.runner

    def _state(self, job: JobId, part: PartitionIndex) -> SlotReport | None:
        """How far one of our job partitions has come, whatever it is doing; None for others'."""
        hosted = self._supervisor.hosted.get((job, part))
        if hosted is None or hosted.lost or not self._supervisor.lease_is_live():
            return None
        report = hosted.report()
        seen = 0 if hosted.runner is None else sum(hosted.runner.applied.values())
        return SlotReport(
            hosted.epoch,
            report.status,
            report.lag,
            report.error,
            seen,
            self._snapshots.origin(job, part),
        )

    def _lookup(
        self, job: str, part: int, keys: Sequence[bytes], as_of: int | Sequence[int]
    ) -> list[bytes | None]:
        runner = self._runner(job, part)
        step = cast(LookupStep, runner.step)
        times = (
            [Micros(as_of)] * len(keys) if isinstance(as_of, int) else [Micros(t) for t in as_of]
        )
        with _condemned_if_damaged(runner):
            return step.lookup(runner.hangar, keys, times)

    def _scan(self, job: str, part: int, as_of: int, limit: int) -> list[tuple[bytes, bytes]]:
        runner = self._runner(job, part)
        with _condemned_if_damaged(runner):
            return cast(Scans, runner.step).rows(runner.hangar, Micros(as_of), limit)

    async def _snapshot(self, job: str, part: int) -> tuple[str, str, int]:
        """What came of it, a text and the bytes uploaded: `taken` and `unchanged` with the
        manifest's key, else why there is none.

        It never raises.
        """
        try:
            match await self._snapshots.take(self._runner(job, part)):
                case SnapshotTaken(manifest, uploaded_bytes=sent):
                    return "taken", manifest, sent
                case SnapshotUnchanged(manifest):
                    return "unchanged", manifest, 0
                case OwnershipLost():
                    return RefusalCode.NOT_OWNER, f"{job}[{part}] has another owner now", 0
        except RemoteError as refused:
            return refused.remote_code, str(refused), 0
        except HangarClosed as closed:
            return RefusalCode.NOT_OWNER, str(closed), 0
        except HangarCorrupt as damaged:
            self._runner(job, part).discard_state(str(damaged))
            return "failed", str(damaged), 0
        except (StoreError, OSError) as failed:
            return "failed", str(failed), 0

    async def _drill(self, job: str, part: int, max_bytes: int) -> DrillFinding:
        try:
            return await self._drills.run(self._runner(job, part), max_bytes)
        except HangarClosed as closed:
            raise RemoteError(RefusalCode.NOT_OWNER, str(closed)) from closed
        except (StoreError, OSError) as failed:
            return DrillFinding(DrillVerdict.UNKNOWN, str(failed))

    async def _wait(
        self, items: Sequence[tuple[str, int, dict[str, int]]], timeout_ms: int
    ) -> list[Item]:
        """The items that are still behind at the deadline."""

        async def behind(job: str, part: int, targets: dict[str, int]) -> Item | None:
            wanted = {TopicName(topic): Offset(offset) for topic, offset in targets.items()}
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    while (runner := self._runner(job, part)).behind(wanted):
                        await runner.changed()
            except TimeoutError:
                return job, part
            return None

        found = await asyncio.gather(*(behind(*item) for item in items))
        return [item for item in found if item is not None]


@contextmanager
def _condemned_if_damaged(runner: Runner) -> Iterator[None]:
    """A reader that meets a damaged block has the state rebuilt: the writer may not meet it for
    days.
    """
    try:
        yield
    except HangarCorrupt as damaged:
        runner.discard_state(str(damaged))
        raise RemoteError(
            RefusalCode.NOT_OWNER,
            f"{runner.job.id}[{runner.part}] is rebuilt: its local state is damaged",
        ) from damaged
