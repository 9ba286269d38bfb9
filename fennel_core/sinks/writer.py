"""Write the changes of one dataset to one sink: each once, in order per key.

Theory. One step reads some whole messages of the dataset's topic, makes events of them and commits
these with the position behind the messages. If anything fails, the session is over: the next step
opens another one, which fences this writer's open transaction, and reads on from the position that
the sink has. So what was committed is never read again, and what was not is. Erased keys are
deleted in the same way: their number is part of the position, and no change of such a key follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

import polars as pl
import structlog

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.history.asof import without_erased
from fennel_core.operators.rows import columns_of, decode_rows
from fennel_core.sinks.changes import events_of
from fennel_core.sinks.errors import SinkPositionsLost, SinkTopicReplaced
from fennel_core.sinks.positions import SinkPosition, SinkRewind, lost
from fennel_core.sinks.store import PositionCopy, SinkForm, SinkLog, SinkSession, T
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema


@dataclass(frozen=True, slots=True)
class Versions:
    """Whole messages of a topic: their versions, as `changes.events_of` takes them, and the offset
    behind the last message of each partition that was read.
    """

    frame: pl.DataFrame
    following: Mapping[int, int]
    full: bool = False
    """The size of a batch ended it, or that of a file: there is more to read at once."""


class ChangeReader(Protocol):
    """Reads the messages of a topic from a position on. All calls block."""

    def read(self) -> Versions:
        """Return the next messages; an empty frame after a short time without any.

        Raises `SystemUnavailable` and `SinkError`.
        """
        ...

    def behind(self) -> int:
        """Return how many offsets of the topic were not returned yet, as far as is known."""
        ...

    def close(self) -> None: ...


OpenReader = Callable[[Mapping[int, int]], ChangeReader]
"""Returns a reader that begins at the next offset of each partition (absent: 0)."""


@dataclass(frozen=True, slots=True)
class KeyErasures:
    """The erased keys of a dataset, as numbers of erasures with columns and key bytes each."""

    newest: int
    keys: Sequence[tuple[int, tuple[str, ...], bytes]]

    def hidden(self) -> tuple[ErasedKeys, ...]:
        """Return the erasures as filters of rows."""
        found: dict[tuple[str, ...], set[bytes]] = {}
        for _, columns, key in self.keys:
            found.setdefault(columns, set()).add(key)
        return tuple(ErasedKeys(columns, frozenset(keys)) for columns, keys in found.items())

    def since(self, number: int, schema: Schema) -> list[bytes]:
        """Return the key bytes of keys erased after the number by all key columns, in any order."""
        names, found = schema.key_names, dict[tuple[str, ...], list[bytes]]()
        for n, columns, key in self.keys:
            if n > number and set(columns) == set(names):
                found.setdefault(columns, []).append(key)
        return [
            key
            for columns, keys in found.items()
            for key in key_bytes(decode_rows(keys, columns_of(schema, columns)), names)
        ]


NO_ERASURES = KeyErasures(0, ())
log = structlog.get_logger(__name__)


def _is_due(rewind: SinkRewind, position: SinkPosition | None) -> bool:
    """Return whether a rewind was not carried out yet, as far as a position says."""
    return position is None or rewind.number > position.rewound


@dataclass(frozen=True, slots=True)
class Step:
    """What a step wrote and read, and how far the sink is behind."""

    events: int
    behind: int
    idle: bool
    """Nothing was there to read."""
    full: bool = False
    """There is more to read at once."""


class SinkWriter(Generic[T]):
    """Writes one sink. Use from one thread; `step` raises what its parts raise."""

    def __init__(
        self,
        title: str,
        schema: Schema,
        form: SinkForm[T],
        log: SinkLog[T],
        copy: PositionCopy | None,
        reader: OpenReader,
    ) -> None:
        """`copy`: None if the platform itself has the position."""
        self._title, self._schema, self._form = title, schema, form
        self._log, self._copy, self._open_reader = log, copy, reader
        self._session: SinkSession[T] | None = None
        self._reader: ChangeReader | None = None
        self._position: SinkPosition | None = None

    @property
    def position(self) -> SinkPosition | None:
        """The last position that is known to be committed."""
        return self._position

    @property
    def session(self) -> SinkSession[T] | None:
        """The session of the last step; None if that failed."""
        return self._session

    def step(self, erasures: KeyErasures, rewind: SinkRewind | None = None) -> Step:
        """Write the next changes, or the deletes of newly erased keys.

        Nothing is read while the position knows of a later erasure than `erasures` has. `rewind`:
        the last one that was ordered, which is carried out first unless it was before.
        """
        if rewind is not None and _is_due(rewind, self._position):
            self.close()  # it is carried out when a session begins
        try:
            session, reader, position = self._opened(erasures, rewind)
            if position.erased < erasures.newest:
                return self._erase(session, reader, position, erasures)
            if position.erased > erasures.newest:
                # Rows of keys that another writer deleted would be written again.
                return Step(0, reader.behind(), idle=False)
            read = reader.read()
            kept = without_erased(read.frame, erasures.hidden())
            events = events_of(kept, self._schema)
            count = events.height
            if count:
                # Without an event the position moves in memory only: an idle sink writes nothing.
                batch = self._form.changes(kept, events, position.events)
                self._commit(session, batch, position.moved(read.following, 0, count))
        except BaseException:
            self.close()
            raise
        return Step(count, reader.behind(), idle=read.frame.is_empty(), full=read.full)

    def close(self) -> None:
        """Release session and reader."""
        session, reader = self._session, self._reader
        self._session = self._reader = None
        if reader is not None:
            reader.close()
        if session is not None:
            session.close()

    def _opened(
        self, erasures: KeyErasures, rewind: SinkRewind | None
    ) -> tuple[SinkSession[T], ChangeReader, SinkPosition]:
        if self._session is None or self._reader is None or self._position is None:
            # Read before the session is opened, it is older than the truth: never ahead.
            known = None if self._copy is None else self._copy.read()
            again = rewind is not None and rewind.whole and _is_due(rewind, known)
            session = self._session = self._log.open(first=known is None or again)
            before = known if session.position is None else session.position
            if rewind is None or before is None or not _is_due(rewind, before):
                self._position = self._continued(session, known, erasures, rewind)
            else:
                if not rewind.whole:
                    self._continued(session, known, erasures, rewind)
                self._rewind(session, before.back(rewind, session.origin))
            assert self._position is not None, "it was read or written"
            self._reader = self._open_reader(self._position.next)
        assert self._session is not None, "a reader is opened after its session"
        return self._session, self._reader, self._position

    def _continued(
        self,
        session: SinkSession[T],
        known: SinkPosition | None,
        erasures: KeyErasures,
        rewind: SinkRewind | None,
    ) -> SinkPosition:
        """Return where the sink goes on; raise if it would write changes twice there."""
        stored = session.position
        before = known if stored is None else stored
        if before is not None and before.origin != session.origin:
            raise SinkTopicReplaced(self._title, before.origin, session.origin)
        if missing := lost(stored, known):
            raise SinkPositionsLost(self._title, missing)
        # A new sink never had the rows of keys that were erased before it, and is at its beginning.
        number = 0 if rewind is None else rewind.number
        return stored or SinkPosition(session.origin, erased=erasures.newest, rewound=number)

    def _rewind(self, session: SinkSession[T], position: SinkPosition) -> None:
        """Move back, and take back what was written from there on where that can be done."""
        self._commit(session, self._form.rewound(position.next), position)
        log.info("a sink was rewound", sink=self._title, following=position.next)

    def _erase(
        self,
        session: SinkSession[T],
        reader: ChangeReader,
        position: SinkPosition,
        erasures: KeyErasures,
    ) -> Step:
        keys = erasures.since(position.erased, self._schema)
        batch = self._form.deletes(keys) if keys else None
        self._commit(session, batch, position.moved({}, erasures.newest, len(keys)))
        # Rows may be due: erasures that come often must not put them off.
        return Step(len(keys), reader.behind(), idle=False, full=True)

    def _commit(self, session: SinkSession[T], batch: T | None, position: SinkPosition) -> None:
        session.commit(batch, position)
        position = session.position or position
        self._position = position
        if self._copy is not None:
            self._copy.write(position)
