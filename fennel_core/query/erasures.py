"""Hide erased keys from reads, whatever the slots still hold.

An erasure belongs to a workspace and a dataset's name (`connections.erasures`). All erasures are
kept in memory. Those of a workspace are read again after a notification, which names it, and before
the response of a forwarded `erase` is sent; all of them when the listener (re)connects and after a
failure of Postgres. The workers of one server count that erasure in shared
memory first (`query.erasure_counters`), and each reads the list again before its next read of the
workspace. Workspaces without erasures do not pay for any of this.

A read must not show what has been erased, so reads are refused while this server is known to lack
an erasure: before the first read of the list, after an announced or counted erasure that could not
be read,
and after any failure of a Postgres that responds. While Postgres cannot be reached at all, no
erasure can be accepted either, and the last complete list stays in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import psycopg

from fennel_core.connections import erasures
from fennel_core.connections.erasures import ErasableKeys, ErasedKeys
from fennel_core.connections.postgres import (
    ListenStarted,
    Notification,
    bounded_connection,
    listen,
)
from fennel_core.query.erasure_counters import ErasureCounters, counter_in, new_memory
from fennel_core.query.errors import ErasuresUnknown
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import DatasetName, WorkspaceId

log = logger(__name__)
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
CATCH_UP_S: Final = 1.0
"""Longest wait of a request for an erasure that another worker has accepted."""
_decode = msgspec.msgpack.Decoder(list[object]).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class ErasureRule:
    """Erased keys of one dataset.

    `places` are the indexes of the erase keys in its key, None when they are the whole key in
    order.
    """

    places: tuple[int, ...] | None
    keys: frozenset[bytes]

    def hides(self, key: bytes) -> bool:
        if self.places is None:
            return key in self.keys
        values = _decode(key)
        return _encode([values[place] for place in self.places]) in self.keys


def erasure_rules(names: Sequence[str], erased: Sequence[ErasedKeys]) -> tuple[ErasureRule, ...]:
    """Return the erasures that apply to the key `names`; those by other columns do not."""
    found = []
    for each in erased:
        if set(each.columns) <= set(names):
            places = (
                None
                if each.columns == tuple(names)
                else tuple(names.index(column) for column in each.columns)
            )
            found.append(ErasureRule(places, each.keys))
    return tuple(found)


class ErasureList(Protocol):
    """What a process that serves reads knows of erasures; see `Erasures`."""

    def is_behind(self, workspace: WorkspaceId) -> bool: ...
    async def catch_up(self, workspace: WorkspaceId) -> None: ...


class Erasures:
    """The erasures in memory; `run` keeps them current. Use from one event loop."""

    def __init__(self, dsn: str, counters: ErasureCounters | None = None) -> None:
        self._dsn = dsn
        self._counters = ErasureCounters(new_memory()) if counters is None else counters
        self._seen = self._counters.snapshot()
        """The counters before the last successful read of the whole list began."""
        self._seen_of: dict[WorkspaceId, bytes] = {}
        """The counters of workspaces that were read since then, before that read began."""
        self._unread: set[WorkspaceId] | None = None
        """What the next read covers; None: everything."""
        self._erased: dict[WorkspaceId, dict[DatasetName, tuple[ErasedKeys, ...]]] | None = None
        self._rules: dict[ErasableKeys, tuple[ErasureRule, ...]] = {}
        self._announced: set[WorkspaceId] = set()
        """Workspaces with an erasure that no read of the list has begun after."""
        self._refused: set[WorkspaceId] = set()
        """Workspaces with an erasure that could not be read."""
        self._failing = False
        """Postgres responds and the list could not be read."""
        self._reading = asyncio.Lock()
        self._catching_up: asyncio.Task[None] | None = None
        self._requested = asyncio.Event()

    async def run(self) -> None:
        """Read the erasures, and again after each notification, without end."""
        self._requested.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._read_when_requested())

    async def announce(self, workspace: WorkspaceId) -> None:
        """Read an erasure that was just accepted.

        If that fails, reads of the workspace are refused until it succeeds in the background.
        """
        self._announced.add(workspace)
        self._counters.count(workspace)
        if not await self.try_read((workspace,)):
            self._requested.set()

    def is_behind(self, workspace: WorkspaceId) -> bool:
        """Return whether another worker has accepted an erasure that was not read here."""
        seen = self._seen_of.get(workspace)
        if seen is None:
            seen = counter_in(self._seen, workspace)
        return self._counters.of(workspace) != seen

    async def catch_up(self, workspace: WorkspaceId) -> None:
        """Read the erasures that other workers have accepted; `hidden` refuses if that fails.

        All requests share one read.
        """
        try:
            async with asyncio.timeout(CATCH_UP_S):
                for _ in range(2):  # a read under way may have begun before the erasure
                    if self.is_behind(workspace):
                        self._want((workspace,))
                        if self._catching_up is None:
                            self._catching_up = asyncio.create_task(self._read_or_request())
                        await asyncio.shield(self._catching_up)
        except TimeoutError:
            return

    async def _read_or_request(self) -> None:
        """Read what is wanted; if that fails, it is repeated in the background."""
        try:
            if not await self.try_read(()):
                self._requested.set()
        finally:
            self._catching_up = None

    async def try_read(self, workspaces: Collection[WorkspaceId] | None = None) -> bool:
        """Read the erasures of `workspaces`, or all, and those that are wanted already.

        Return whether that succeeded. After a failure everything is read, because it is not known
        what else the failure has hidden.
        """
        self._want(workspaces)
        async with self._reading:
            if self._erased is None or self._failing:
                self._want(None)
            wanted, self._unread = self._unread, set()
            if wanted is not None and not wanted:
                return True  # A read that began after the call has finished while this one waited.
            counted = self._counters.snapshot()
            announced, self._announced = self._announced, set()
            try:
                found = await self._read(wanted, announced)
            except BaseException:
                # A caller that waited for it has given up; the next read covers the same.
                self._want(wanted)
                self._announced |= announced
                raise
            if found is None:
                self._want(wanted)
                return False
            if wanted is None:
                self._erased, self._rules = found, {}
                self._seen, self._seen_of = counted, {}
            else:
                self._replace(wanted, found)
                self._seen_of |= {each: counter_in(counted, each) for each in wanted}
            self._refused -= announced
            self._failing = False
            return True

    async def _read(
        self, wanted: Collection[WorkspaceId] | None, announced: set[WorkspaceId]
    ) -> dict[WorkspaceId, dict[DatasetName, tuple[ErasedKeys, ...]]] | None:
        """Return what Postgres has; None, and refuse what was announced, if it cannot be read."""
        try:
            connection = await bounded_connection(self._dsn, name="fennel-query-erasures")
        except psycopg.OperationalError as unreachable:
            self._not_read(announced, unreachable)
            return None
        try:
            async with connection:
                return await erasures.read_over(connection, wanted)
        except psycopg.Error as failed:
            self._failing |= not connection.broken
            self._not_read(announced, failed)
            return None

    def _replace(
        self,
        wanted: Collection[WorkspaceId],
        found: Mapping[WorkspaceId, dict[DatasetName, tuple[ErasedKeys, ...]]],
    ) -> None:
        """Replace the erasures of some workspaces."""
        assert self._erased is not None, "a part is read only after the whole list was"
        kept = {each: erased for each, erased in self._erased.items() if each not in wanted}
        self._erased = kept | dict(found)
        self._rules = {of: rule for of, rule in self._rules.items() if of.workspace not in wanted}

    def _want(self, workspaces: Collection[WorkspaceId] | None) -> None:
        if workspaces is None:
            self._unread = None
        elif self._unread is not None:
            self._unread |= set(workspaces)

    def problem(self) -> str | None:
        """Return why reads are refused, None while they are served."""
        if self._erased is None or self._failing:
            return "the list of erased keys could not be read"
        if self._refused:
            return f"an erasure of {', '.join(sorted(self._refused))} could not be read"
        return None

    def hidden(self, of: ErasableKeys, keys: Sequence[bytes]) -> Sequence[int]:
        """Return the indexes of erased keys among `keys`; raises `ErasuresUnknown`."""
        unread = of.workspace in self._refused or self.is_behind(of.workspace)
        if self._erased is None or self._failing or unread:
            raise ErasuresUnknown()
        if of.workspace not in self._erased:
            return ()
        found = self._rules.get(of)
        if found is None:
            erased = self._erased[of.workspace].get(of.dataset, ())
            found = self._rules[of] = erasure_rules(of.columns, erased)
        return (
            [place for place, key in enumerate(keys) if any(rule.hides(key) for rule in found)]
            if found
            else ()
        )

    def _not_read(self, announced: set[WorkspaceId], why: psycopg.Error) -> None:
        log.warning("erasures could not be read", reason=str(why))
        self._announced |= announced
        self._refused |= announced

    async def _follow(self) -> None:
        async for event in listen(self._dsn, (erasures.CHANNEL,), name="fennel-query-erasures"):
            match event:
                case ListenStarted():
                    self._want(None)  # Erasures may have been missed while it was disconnected.
                case Notification(_, workspace):
                    self._announced.add(WorkspaceId(workspace))
                    self._want((WorkspaceId(workspace),))
            self._requested.set()

    async def _read_when_requested(self) -> None:
        while True:
            await self._requested.wait()
            self._requested.clear()
            pause_s = FIRST_PAUSE_S
            while not await self.try_read(()):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
