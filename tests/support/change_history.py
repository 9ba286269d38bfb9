"""Random histories of a table's changes, whose readers are killed, fenced and run at once.

The oracle are the statements that were committed, in the order of their commits.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import polars as pl

from fennel_core.blueprints.spec import SourceBinding
from fennel_core.connections.change_engine import ChangeEngineFailed
from fennel_core.connections.errors import TransactionAborted
from fennel_core.sources.errors import ReaderSuperseded, RowsNotWritten
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, decode
from tests.support.change_readers import ChangeWorld, TableReader, read_rows
from tests.support.ingest_world import catalog
from tests.support.source_world import LOST_AFTER, LOST_BEFORE, Fault, SourceWorld

REFUSED = Fault(TransactionAborted("the broker refused"), committed=False)
ENDS = (ReaderSuperseded, RowsNotWritten, ChangeEngineFailed)
"""How a reader ends whose place was taken, or that was fenced."""
KINDS = ("commit",) * 4 + ("roll back",) + ("read",) * 4 + ("kill", "repeat", "start")
Row = dict[str, Any]
Change = tuple[str, str, Row | None]
"""Operation, key, and the columns that count; a deleted row has none."""


class Users(Protocol):
    """A table, what it holds by key, and the changes that were committed, in order."""

    content: dict[str, Row]
    changes: list[Change]

    def commit(self, statements: int, *, roll_back: bool = False) -> None:
        """Commit a transaction of statements."""


def faulty_sources(random_: random.Random, binding: SourceBinding) -> SourceWorld:
    """Return a platform whose first transactions fail now and then."""
    sources = SourceWorld()
    faults = random_.choices([None, None, None, None, LOST_AFTER, LOST_BEFORE, REFUSED], k=40)
    sources.fault = lambda: faults.pop() if faults else None
    sources.world.commit(main=catalog(binding))
    return sources


@dataclass
class History:
    """A history of a table and of its readers.

    `place_of`: where a reader has begun; until one has written the position, each begins at a place
    of its own. `more`: other steps, by name. `wait_s`: how long a round waits for something.
    """

    users: Users
    world: ChangeWorld[Any, Any]
    random: random.Random
    place_of: Callable[[TableReader[Any, Any]], str]
    more: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    wait_s: float = 0.0
    alive: list[TableReader[Any, Any]] = field(default_factory=list)
    readers: list[TableReader[Any, Any]] = field(default_factory=list)
    begun: dict[str, tuple[int, set[str]]] = field(default_factory=dict)
    """By place: the changes that were committed before, and the keys that were there."""

    async def run(self, steps: int) -> None:
        """Take steps, and let a last reader write."""
        for _ in range(steps):
            await self._step(self.random.choice([*KINDS, *self.more]))
        self.world.sources.fault = lambda: None
        await self._start()
        await self._read(self.alive[-1], 1)

    async def _step(self, kind: str) -> None:
        match kind:
            case "read" | "kill" | "repeat" if not self.alive:
                await self._start()
            case "commit":
                self.users.commit(self.random.choice([1, 1, 2, 12]))
            case "roll back":
                self.users.commit(2, roll_back=True)
            case "read":
                await self._read(
                    self.random.choice(self.alive), self.random.choice([1, 2, 5, 1000])
                )
            case "kill":
                self.alive.pop(self.random.randrange(len(self.alive)))
            case "repeat":
                # Spark runs the round again, in another worker.
                again = self.random.choice(self.alive)
                with suppress(ChangeEngineFailed):
                    await again.lose_worker()
                await self._read(again, 1000)
            case "start":
                await self._start()
            case other:
                self.more[other]()

    async def _start(self) -> None:
        reader = await self.world.reader()
        self.alive.append(reader)
        self.readers.append(reader)
        place = self.place_of(reader)
        self.begun.setdefault(place, (len(self.users.changes), set(self.users.content)))

    async def _read(self, reader: TableReader[Any, Any], rows: int) -> None:
        try:
            await reader.round(0.3, rows, self.wait_s)
        except ENDS:
            self.alive.remove(reader)

    def check(self, place: str, columns: tuple[str, ...], *, is_final: bool) -> None:
        """Check what was read, from a place on, to the end.

        `is_final`: versions have the times of their rows, so that the last ones are the content.
        """
        (count, there), sources = self.begun[place], self.world.sources
        rows = read_rows(sources)
        changes = self.users.changes[count:]
        assert [change_of(row, columns) for row in rows if row["op"] != "r"] == changes
        keys = [change_of(row, columns)[1] for row in rows if row["op"] == "r"]
        assert len(keys) == len(set(keys)), "a key is read once"
        assert there - {key for op, key, _ in changes if op == "d"} <= set(keys)
        if is_final:
            ages = {user: row["age"] for user, row in self.users.content.items()}
            assert last_ages(sources) == ages
        assert sources.world.rows("w.dead.1") == []
        assert all("none" not in json.dumps(row["after"]) for row in rows), "a null is no default"


def change_of(row: Row, columns: tuple[str, ...]) -> Change:
    image = row["after"] or row["before"]
    after = None if row["after"] is None else {each: image[each] for each in columns}
    return row["op"], image["user"], after


def last_ages(sources: SourceWorld) -> dict[str, int | None]:
    """Recompute: the version of each key that is last in (time, position)."""
    found = [
        decode(record.value)
        for (topic, _), records in sources.world.log.items()
        if topic == "w.topic.users.1"
        for record in records
    ]
    if not found:
        return {}
    last = pl.concat(found).sort("at", POS).group_by("user", maintain_order=True).last()
    return {row["user"]: row["age"] for row in last.rows(named=True) if not row[IS_TOMBSTONE]}
