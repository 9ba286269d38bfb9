"""Slots without an engine: rows in a dictionary behind the real frames, with injected faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.erasures import ErasableKeys
from fennel_core.connections.frames import RemoteError, serve
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.query.owners import Ownership, Parked
from fennel_core.vocab.ids import DatasetName, JobId, JobPartition, WorkspaceId

ERASABLE = ErasableKeys(WorkspaceId("w"), DatasetName("Users"), ("uid",))
encode = msgspec.msgpack.encode


class FakeSlot:
    """Serves versions `(key, ts_us, values)` of jobs, as of a time.

    `misbehave(op, item)` may raise a RemoteError. While `release` is cleared, operations wait;
    `running` counts them.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.versions: dict[tuple[str, bytes], list[tuple[int, list[object]]]] = {}
        self.applied: dict[tuple[str, int], dict[str, int]] = {}
        self.requests: list[tuple[str, Any]] = []
        self.misbehave: Callable[[str, Sequence[Any]], None] = lambda op, item: None
        self.release = asyncio.Event()
        self.release.set()
        self.running = 0
        self.stale = False
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FakeSlot:
        self._server = await serve(self.path, self._handle)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)

    def put(self, job: str, key: Sequence[object], ts_us: int, values: Sequence[object]) -> None:
        self.versions.setdefault((job, encode(list(key))), []).append((ts_us, list(values)))

    async def _handle(self, op: str, argument: Any) -> object:
        self.requests.append((op, argument))
        self.running += 1
        try:
            await self.release.wait()
            return await self._answer(op, argument)
        finally:
            self.running -= 1

    async def _answer(self, op: str, argument: Any) -> object:
        if op == "scan":
            self.misbehave(op, [argument["job"], argument["part"]])
            rows = [
                (key, self._row(job, key, argument["as_of"]))
                for job, key in self.versions
                if job == argument["job"]
            ]
            shown = [[key, row] for key, row in rows if row is not None][: argument["limit"]]
            return {"rows": shown, "stale": self.stale}
        items = argument["items"]
        for item in items:
            self.misbehave(op, item)
        match op:
            case "lookup":
                found = [
                    [self._row(job, key, at) for key, at in _times(keys, as_of)]
                    for job, _, keys, as_of in items
                ]
                return {"rows": found, "stale": self.stale}
            case "positions":
                return [self.applied.get((job, part), {}) for job, part in items]
            case "wait":
                return await self._wait(items, argument["timeout_ms"])
            case _:
                raise RemoteError(RefusalCode.UNKNOWN_OPERATION, op)

    async def _wait(self, items: Sequence[Any], timeout_ms: int) -> list[list[Any]]:
        late = self._late(items)
        for _ in range(timeout_ms // 5):
            if not late:
                break
            await asyncio.sleep(0.005)  # the step in which the time-out is counted
            late = self._late(items)
        return late

    def _late(self, items: Sequence[Any]) -> list[list[Any]]:
        return [
            [job, part]
            for job, part, wanted in items
            if any(
                self.applied.get((job, part), {}).get(topic, 0) < offset
                for topic, offset in wanted.items()
            )
        ]

    def _row(self, job: str, key: bytes, as_of: int) -> bytes | None:
        live = [version for version in self.versions.get((job, key), ()) if version[0] <= as_of]
        if not live:
            return None
        ts, values = max(live, key=lambda version: version[0])
        return encode([ts, *values])


def _times(keys: Sequence[bytes], as_of: int | Sequence[int]) -> list[tuple[bytes, int]]:
    return (
        [(key, as_of) for key in keys]
        if isinstance(as_of, int)
        else list(zip(keys, as_of, strict=True))
    )


T = TypeVar("T")


class FakeRegistry:
    """The owners of job partitions, set by the test; counts its reads."""

    def __init__(self) -> None:
        self.addresses: dict[JobPartition, str] = {}
        self.parked: dict[JobPartition, Parked] = {}
        self.destroyed: set[JobId] = set()
        self.reads = 0
        self.read_jobs: list[frozenset[JobId] | None] = []
        """What each read covered; None: everything."""
        self.unreachable = False

    def own(self, slot: FakeSlot, job: str, partitions: int) -> None:
        self.addresses |= {(JobId(job), part): slot.path for part in range(partitions)}

    async def read_owners(self, jobs: Collection[JobId] | None = None) -> Ownership:
        self.reads += 1
        self.read_jobs.append(jobs if jobs is None else frozenset(jobs))
        if self.unreachable:
            raise DatabaseUnavailable("the platform's database cannot be reached; try again")

        def of_jobs(known: Mapping[JobPartition, T]) -> dict[JobPartition, T]:
            return {at: each for at, each in known.items() if jobs is None or at[0] in jobs}

        return Ownership(of_jobs(self.addresses), of_jobs(self.parked), AllJobsBut(self.destroyed))


class AllJobsBut:
    """The jobs of the registry: all but some."""

    def __init__(self, destroyed: set[JobId]) -> None:
        self._destroyed = destroyed

    def __contains__(self, job: object) -> bool:
        return job not in self._destroyed


def nothing_hidden(of: ErasableKeys, keys: Sequence[bytes]) -> Sequence[int]:
    """Hide no key: nothing is erased."""
    return ()
