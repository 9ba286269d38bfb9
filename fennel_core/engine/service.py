"""The operations of a slot: lookups from its state, its positions, and waiting for later ones.

Theory. Everything runs on the slot's event loop, which also applies write batches, so a response
never contains half an iteration. A read works in slices of some milliseconds, and gives way in
between to lease renewals, other reads and the writer, also inside of a key with a large state; it
sees one state through a view (`hangar.read_view`). It ends when its caller cancels it.

A slot whose lease has ended on the monotonic clock may have been replaced, and cannot know it while
the registry is out of reach. It processes nothing more, but it goes on serving reads, marked as
stale, until it learns that another slot owns the partition. Positions, waits, snapshots and drills
need a live lease. Requests name job partitions, and every refusal has a code of
`connections.slot_protocol`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.engine.drill.subprocess_drill import DrillRunner
from fennel_core.engine.errors import RebuildRequested
from fennel_core.engine.runner import Runner
from fennel_core.engine.snapshots import Snapshots
from fennel_core.engine.supervisor import Supervisor
from fennel_core.hangar.store import HangarClosed, HangarCorrupt
from fennel_core.operators.gradual import Gradual, finished
from fennel_core.operators.step import LookupStep, StateReader, lookup_in_pieces
from fennel_core.snapshots.drills import DrillFinding, DrillVerdict
from fennel_core.snapshots.rebuild import SlotReport
from fennel_core.snapshots.transfer import OwnershipLost, SnapshotTaken, SnapshotUnchanged
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import JobId, Micros, Offset, PartitionIndex, TopicName

log = logger(__name__)
SLICE_KEYS = 32
"""Keys per step of a lookup; one takes 10 to 300 µs."""
SLICE_S = 0.002
"""How long a read may hold the event loop."""
LONG_STEP_S = 1.0
"""A step of so few keys that takes longer is logged: nothing else ran in this time."""
SLICE_STEPS = 8
"""As many steps of the cheapest kind take about that long."""


class ScannableStep(Protocol):
    """A served step that can also list its rows."""

    def row_pages(
        self, reads: Any, as_of: Micros, limit: int
    ) -> Iterator[list[tuple[bytes, bytes]]]: ...


class _Turns:
    """The turns of one read on the event loop."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._until, self._steps = self._time() + SLICE_S, 0

    @property
    def is_over(self) -> bool:
        return self._time() >= self._until

    async def give_way(self) -> None:
        """Count a step, and let others run if this turn has lasted long enough."""
        self._steps += 1
        if self._steps >= SLICE_STEPS or self.is_over:
            await asyncio.sleep(0)
            self._until, self._steps = self._time() + SLICE_S, 0


class SlotService:
    """Handler of `connections.frames.serve`."""

    def __init__(self, supervisor: Supervisor, snapshots: Snapshots, drills: DrillRunner) -> None:
        self._supervisor, self._snapshots, self._drills = supervisor, snapshots, drills

    async def __call__(self, op: str, argument: Any) -> object:
        match op:
            case "lookup":
                return await self._lookups(argument["items"])
            case "lookup_at_offsets":
                return await self._lookup_at_offsets(**argument)
            case "positions":
                return [dict(self._runner(job, part).applied) for job, part in argument["items"]]
            case "wait":
                return await self._wait(argument["items"], argument["timeout_ms"])
            case "scan":
                return await self._scan(
                    argument["job"], argument["part"], argument["as_of"], argument["limit"]
                )
            case "states":
                return [
                    self._state(JobId(job), PartitionIndex(part)) for job, part in argument["items"]
                ]
            case "rebuild":
                why = RebuildRequested(
                    argument["why"], argument["before"], trust_outputs=argument["trust_outputs"]
                )
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
                return [finding.verdict, finding.detail, finding.live_hash, finding.drilled_hash]
            case _:
                raise RemoteError(
                    RefusalCode.UNKNOWN_OPERATION,
                    f"unknown slot operation `{op}`: caller and engine run different releases; "
                    "upgrade the older one",
                )

    def _runner(self, job: str, part: int) -> Runner:
        """Return the runner of a partition that this slot owns."""
        if not self._supervisor.lease_is_live():
            raise RemoteError(RefusalCode.NOT_OWNER, "the lease of this slot has ended")
        return self._serving(job, part)

    def _serving(self, job: str, part: int) -> Runner:
        """Return the runner of a partition that no other slot is known to own."""
        hosted = self._supervisor.hosted.get((JobId(job), PartitionIndex(part)))
        if hosted is None or hosted.lost:
            raise RemoteError(RefusalCode.NOT_OWNER, f"this slot does not own {job}[{part}]")
        if hosted.parked is not None:
            raise RemoteError(RefusalCode.PARKED, f"{job}[{part}] is parked: {hosted.parked}")
        if hosted.runner is None or hosted.runner.status != "running":
            raise RemoteError(RefusalCode.NOT_OWNER, f"{job}[{part}] is replaying")
        return hosted.runner

    def _state(self, job: JobId, part: PartitionIndex) -> SlotReport | None:
        """Return the status and position of a job partition; None if this slot does not own it."""
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

    async def _lookups(self, items: Sequence[Sequence[Any]]) -> dict[str, object]:
        turns = _Turns()
        rows = []
        for item in items:
            rows.append(await self._lookup(turns, *item))
            await turns.give_way()
        # After the last read: the lease may have ended since.
        return {"rows": rows, "stale": not self._supervisor.lease_is_live()}

    async def _lookup_at_offsets(
        self, job: str, part: int, keys: Sequence[bytes], as_of: Sequence[int]
    ) -> dict[str, object]:
        """Return rows, and the next offsets of the inputs that exactly these rows include."""
        # The lookup takes its view of the state before it first gives way.
        offsets = dict(self._runner(job, part).progress.offsets)
        return {"rows": await self._lookup(_Turns(), job, part, keys, as_of), "offsets": offsets}

    async def _lookup(
        self, turns: _Turns, job: str, part: int, keys: Sequence[bytes], as_of: int | Sequence[int]
    ) -> list[bytes | None]:
        runner = self._serving(job, part)
        found: list[bytes | None] = []
        with runner.view() as view:
            for start in range(0, len(keys), SLICE_KEYS):
                if start:
                    await turns.give_way()
                self._require_same(runner, job, part)
                some = slice(start, start + SLICE_KEYS)
                times = as_of if isinstance(as_of, int) else as_of[some]
                pieces = _rows(runner, view, keys[some], times)
                while (rows := _next_turn(runner, pieces, len(keys[some]), turns)) is None:
                    await turns.give_way()
                    self._require_same(runner, job, part)
                found += rows
        return found

    def lookup_now(
        self, job: str, part: int, keys: Sequence[bytes], as_of: int | Sequence[int]
    ) -> list[bytes | None]:
        """Return the rows of `keys` without giving way."""
        runner = self._serving(job, part)
        with _state_discarded_if_damaged(runner):
            return finished(_rows(runner, runner.hangar, keys, as_of))

    async def _scan(self, job: str, part: int, as_of: int, limit: int) -> dict[str, object]:
        runner, turns = self._serving(job, part), _Turns()
        found: list[tuple[bytes, bytes]] = []
        with runner.view() as view:
            pages = cast(ScannableStep, runner.step).row_pages(view, Micros(as_of), limit)
            while True:
                self._require_same(runner, job, part)
                with _state_discarded_if_damaged(runner):
                    page = next(pages, None)
                if page is None:
                    break
                found += page
                await turns.give_way()
        return {"rows": found, "stale": not self._supervisor.lease_is_live()}

    def _require_same(self, runner: Runner, job: str, part: int) -> None:
        """Refuse to go on after the runner has ended: its store is closed."""
        if self._serving(job, part) is not runner:
            raise RemoteError(RefusalCode.NOT_OWNER, f"{job}[{part}] was restarted")

    async def _snapshot(self, job: str, part: int) -> tuple[str, str, int]:
        """Take a snapshot; return (result, text, uploaded bytes) and never raise.

        The result is `taken` or `unchanged`, and the text the manifest's key; or it is `failed` or
        a refusal code, and the text the reason.
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
        except (ConnectionsError, OSError) as failed:
            return "failed", str(failed), 0

    async def _drill(self, job: str, part: int, max_bytes: int) -> DrillFinding:
        try:
            return await self._drills.run(self._runner(job, part), max_bytes)
        except HangarClosed as closed:
            raise RemoteError(RefusalCode.NOT_OWNER, str(closed)) from closed
        except (ConnectionsError, OSError) as failed:
            return DrillFinding(DrillVerdict.UNKNOWN, str(failed))

    async def _wait(
        self, items: Sequence[tuple[str, int, dict[str, int]]], timeout_ms: int
    ) -> list[tuple[str, int]]:
        """Return the job partitions that are still behind at the deadline."""

        async def behind(job: str, part: int, targets: dict[str, int]) -> tuple[str, int] | None:
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


def _rows(
    runner: Runner, reads: StateReader, keys: Sequence[bytes], as_of: int | Sequence[int]
) -> Gradual[list[bytes | None]]:
    times = [Micros(as_of)] * len(keys) if isinstance(as_of, int) else [Micros(t) for t in as_of]
    return lookup_in_pieces(cast(LookupStep, runner.step), reads, keys, times)


def _next_turn(
    runner: Runner, pieces: Gradual[list[bytes | None]], keys: int, turns: _Turns
) -> list[bytes | None] | None:
    """Do one piece or more of a lookup of `keys` keys in this turn; return its rows at the end."""
    began = time.monotonic()
    rows: list[bytes | None] | None = None
    with _state_discarded_if_damaged(runner):
        try:
            next(pieces)
            while not turns.is_over:
                next(pieces)
        except StopIteration as end:
            rows = end.value
    if (took_s := time.monotonic() - began) > LONG_STEP_S:
        log.warning(
            "a read of few keys held the slot: one of them has a very large state",
            job=runner.job.id,
            part=runner.part,
            keys=keys,
            seconds=round(took_s, 3),
        )
    return rows


@contextmanager
def _state_discarded_if_damaged(runner: Runner) -> Iterator[None]:
    """Rebuild the state if the read fails on a damaged block.

    The runner itself may not read that block for days.
    """
    try:
        yield
    except HangarCorrupt as damaged:
        runner.discard_state(str(damaged))
        raise RemoteError(
            RefusalCode.NOT_OWNER,
            f"{runner.job.id}[{runner.part}] is being rebuilt: its local state is damaged",
        ) from damaged
