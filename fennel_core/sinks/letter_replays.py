"""Send the changes of dead letters again, as was ordered: each in its place, under its first key.

Theory. The writer of a sink does it, in its own thread behind a step, so no change is sent beside
it. Its session shows before each change that no later one was opened, which may have sent a newer
change of the key. A change is made again from its message (`change_search`), and is sent only if it
is the newest of its key. What became of a letter is settled in one transaction of its partition,
with the letter of what was refused again, and then the order ends. A process that dies before that
leaves the order: what was sent is sent again, and a receiver knows it by its idempotency key.

Opening the partition of a letter fences other orders about it, and is fenced by them: then the
letters are left to a later step, which finds what the other order has settled.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Protocol, assert_never

import polars as pl
import structlog

from fennel_core.connections.errors import (
    ConnectionsError,
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.redrive.letters import Letter
from fennel_core.redrive.sink_replays import SinkReplay, SinkReplays
from fennel_core.redrive.store import LetterLog, LetterSession
from fennel_core.sinks.change_search import (
    ChangeSearch,
    Fate,
    Form,
    Sendable,
    Unsent,
    deletes_of,
)
from fennel_core.sinks.changes import PART
from fennel_core.sinks.deliveries import EVENT, NUMBER, LettersOf, RefusedEvent
from fennel_core.sinks.errors import LettersTaken, SinkError, SinkRowsLost, SinkStopped
from fennel_core.sinks.http import SinkRequest
from fennel_core.sinks.writer import ChangeReader, KeyErasures
from fennel_core.vocab.dead_letters import SettledLetter, message_of
from fennel_core.vocab.ids import TopicPartition
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode

LETTERS: Final = 1_000
"""Letters of a pass at most: so many are looked for in one read of the dataset."""
LETTERS_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the letters of a pass, unless one has more."""
PASS_S: Final = 10.0
"""How long a pass sends: the sink's own changes wait behind it."""
SETTLE_EVERY_S: Final = 2.0
"""How long changes are sent before their letters are settled: what a kill sends again."""
IDLE_READS: Final = 30
"""Reads in a row, of a second each, that may return nothing before the end of a partition."""
FOREVER_S: Final = float("inf")
MISSING: Final = (
    "the dataset does not have this change any more as it was refused, so it cannot be sent again; "
    "send it yourself, and drop the letter"
)
"""The reason of a letter that was to be sent again. Earlier history of a dataset may be gone."""
log = structlog.get_logger(__name__)
Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on an event loop and returns what it returns; raises what it raises."""
OpenPart = Callable[[int, int], ChangeReader]
"""Returns a reader of one partition of the dataset's topic, from an offset on."""


class Resender(Protocol):
    """The session of a sink (`http.HttpSinkSession`)."""

    def send_again(self, change: SinkRequest) -> RefusedEvent | None: ...


@dataclass(frozen=True, slots=True)
class LetterChange:
    """One change of a letter. `number`: None in a letter without numbers."""

    text: bytes
    part: int
    offset: int | None
    number: int | None


@dataclass(slots=True)
class SentLetter:
    """What became of the changes of a letter."""

    letter: Letter
    order: SinkReplay
    replayed: int = 0
    superseded: int = 0
    dropped: int = 0
    refused: list[RefusedEvent] = field(default_factory=list)

    @property
    def unchanged(self) -> bool:
        """Whether all is refused for the reason that the letter has already: it stays."""
        reason = self.letter.origin.reason
        return len(self.refused) == self.letter.rows and all(
            each.reason == reason for each in self.refused
        )

    def settled(self) -> SettledLetter:
        origin, counts = self.letter.origin, (self.replayed, self.dropped, len(self.refused))
        return SettledLetter(
            self.letter.offset,
            origin.writer,
            origin.subject,
            origin.kind,
            *counts,
            self.superseded,
        )


def changes_of(letter: Letter) -> list[LetterChange]:
    """Return the changes of a letter, in order."""
    message = message_of(letter.origin.source)
    part, offset = (0, None) if message is None else message
    frame = decode(letter.value)
    numbers = frame[NUMBER].to_list() if NUMBER in frame.columns else [None] * frame.height
    return [
        LetterChange(text.encode(), part, offset, number)
        for text, number in zip(frame[EVENT].to_list(), numbers, strict=True)
    ]


class LetterReplays:
    """Carries out the orders about letters of one sink. Use from the thread of its writer."""

    def __init__(
        self,
        of: LettersOf,
        schema: Schema,
        form: Form,
        letters: LetterLog,
        orders: SinkReplays,
        open_part: OpenPart,
        erasures: Callable[[], KeyErasures],
        wait: Wait,
        stopping: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`erasures`: reads those that there are now."""
        self._of, self._schema, self._form = of, schema, form
        self._letters, self._orders, self._open_part = letters, orders, open_part
        self._erasures, self._wait = erasures, wait
        self._stopping, self._clock = stopping, clock

    def run(self, session: Resender, following: Mapping[int, int]) -> None:
        """Carry out orders that are due at the position `following` of the sink, for some seconds.

        Raises `SinkError` and `ConnectionsError`; the session is over after each.
        """
        until_s = self._clock() + PASS_S
        due: Sequence[SinkReplay] = self._wait(self._orders.due(self._of.sink, following, LETTERS))
        for at, own in groupby(due, key=lambda each: each.at):
            if self._clock() >= until_s:
                return
            try:
                self._of_partition(session, at, list(own), until_s)
            except LettersTaken:
                log.warning("dead letters are settled by another order", sink=self._of.title)

    def _of_partition(
        self, session: Resender, at: TopicPartition, orders: Sequence[SinkReplay], until_s: float
    ) -> None:
        """Carry out orders about letters of one partition, as many as a pass holds."""
        by_offset = {each.offset: each for each in orders}
        owner: LetterSession = self._wait(self._letters.open(at))
        try:
            # Only what is read behind this is settled by no other order.
            letters, read_to = self._open_letters(at, by_offset)
            there = {letter.offset for letter in letters}
            gone = [e for e in orders if e.offset not in there and e.offset <= read_to]
            if gone:
                self._wait(self._orders.end(gone))
            if letters:
                self._send(
                    session, owner, [(each, by_offset[each.offset]) for each in letters], until_s
                )
        finally:
            owner.close()

    def _open_letters(
        self, at: TopicPartition, wanted: Mapping[int, SinkReplay]
    ) -> tuple[list[Letter], int]:
        """Return those of the wanted letters that are open, and up to which offset they are."""
        found: list[Letter] = []
        size, last = 0, max(wanted)
        letters = self._letters.letters(at)
        try:
            for letter in letters:
                if letter.offset > last:
                    break
                if letter.offset in wanted:
                    found.append(letter)
                    size += len(letter.value)
                    if size >= LETTERS_BYTES:
                        return found, letter.offset
        finally:
            letters.close()
        return found, last

    def _send(
        self,
        session: Resender,
        owner: LetterSession,
        letters: Sequence[tuple[Letter, SinkReplay]],
        until_s: float,
    ) -> None:
        fates = self._fates([letter for letter, _ in letters])
        done: list[SentLetter] = []
        since_s = self._clock()
        # In the order in which their changes were made; those of erasures come last.
        for letter, order in sorted(letters, key=lambda each: _place(each[0])):
            now_s = self._clock()
            if now_s >= until_s:
                break
            if now_s - since_s >= SETTLE_EVERY_S:
                self._settle(owner, done)
                done, since_s = [], now_s
            try:
                sent = self._sent(session, letter, order, fates)
            except (SinkError, ConnectionsError):
                # What stops the sink is reported, and not that another order was quicker.
                with suppress(LettersTaken):
                    self._settle(owner, done)
                raise
            done.append(sent)
        self._settle(owner, done)

    def _sent(
        self,
        session: Resender,
        letter: Letter,
        order: SinkReplay,
        fates: Mapping[LetterChange, Fate],
    ) -> SentLetter:
        """Send the changes of a letter again that may be sent."""
        done = SentLetter(letter, order)
        for change in changes_of(letter):
            match fates[change]:
                case Sendable(found):
                    number = found if change.number is None else change.number
                    request = SinkRequest(change.part, change.offset, number, (change.text,))
                    refused = session.send_again(request)
                    if refused is None:
                        done.replayed += 1
                    else:
                        done.refused.append(refused)
                case Unsent.SUPERSEDED:
                    done.superseded += 1
                case Unsent.ERASED:
                    done.dropped += 1
                case Unsent.MISSING:
                    number = change.number or 0
                    done.refused.append(
                        RefusedEvent(change.text, change.part, change.offset, MISSING, number)
                    )
                case unreachable:
                    assert_never(unreachable)
        return done

    def _settle(self, owner: LetterSession, done: Sequence[SentLetter]) -> None:
        """Settle letters with those of what was refused again; then end their orders."""
        if not done:
            return
        changed = [each for each in done if not each.unchanged]
        if changed:
            messages = [
                record
                for each in changed
                for record in self._refused_again(each.letter.at, each.refused)
            ]
            settled = [each.settled() for each in changed]
            try:
                self._wait(owner.commit(messages, settled, FOREVER_S))
            except (TransactionAborted, TransactionOutcomeUnknown) as lost:
                raise LettersTaken(self._of.title) from lost
        self._wait(self._orders.end([each.order for each in done]))
        log.info(
            "dead letters were sent again",
            sink=self._of.title,
            replayed=sum(each.replayed for each in done),
            superseded=sum(each.superseded for each in done),
            erased=sum(each.dropped for each in done),
            refused=sum(len(each.refused) for each in done),
        )

    def _refused_again(self, at: TopicPartition, refused: Sequence[RefusedEvent]) -> Iterator[Any]:
        for reason in dict.fromkeys(each.reason for each in refused):
            yield self._of.record(at, [e for e in refused if e.reason == reason], reason)

    def _fates(self, letters: Sequence[Letter]) -> dict[LetterChange, Fate]:
        """Return what becomes of each change of letters, from the messages that they are from."""
        erasures = self._erasures()
        changes = [change for letter in letters for change in changes_of(letter)]
        fates: dict[LetterChange, Fate] = {}
        for part in sorted({c.part for c in changes if c.offset is not None}):
            own = {c: c.offset for c in changes if c.offset is not None and c.part == part}
            fates |= self._fates_of(part, own, erasures)
        deletes = [c for c in changes if c.offset is None]
        if deletes:
            known = {each.value for each in deletes_of(self._schema, self._form, erasures)}
            fates |= {
                change: Sendable(change.number or 0) if change.text in known else Unsent.MISSING
                for change in deletes
            }
        return fates

    def _fates_of(
        self, part: int, changes: Mapping[LetterChange, int], erasures: KeyErasures
    ) -> dict[LetterChange, Fate]:
        """Return what becomes of changes of messages of one partition, given with offsets."""
        fates: dict[LetterChange, Fate] = {}
        left = changes
        while left:
            wanted: dict[int, set[bytes]] = {}
            for change, offset in left.items():
                wanted.setdefault(offset, set()).add(change.text)
            search = ChangeSearch(self._schema, self._form, erasures, wanted)
            try:
                for frame in self._messages(part, min(wanted)):
                    search.take(frame)
            except SinkRowsLost as lost:
                log.warning("messages of dead letters are gone", sink=self._of.title, part=part)
                # A later change of an earlier message may be among those that are gone.
                fates |= {c: Unsent.MISSING for c, at in left.items() if at < lost.following}
                left = {c: at for c, at in left.items() if at >= lost.following}
            else:
                return fates | {c: search.fate(at, c.text) for c, at in left.items()}
        return fates

    def _messages(self, part: int, first: int) -> Iterator[pl.DataFrame]:
        """Yield the versions of one partition from an offset on, to the end that it has now."""
        reader = self._open_part(part, first)
        try:
            end, idle = first + reader.behind(), 0
            while idle < IDLE_READS:
                if self._stopping():
                    raise SinkStopped("the sink ends")
                read = reader.read()
                yield read.frame.filter(pl.col(PART) == part)
                if read.following.get(part, 0) >= end:
                    return
                idle = 0 if read.frame.height else idle + 1
        finally:
            reader.close()
        raise SystemUnavailable(
            f"partition {part} of {self._of.dataset} could not be read to {end}"
        )


def _place(letter: Letter) -> tuple[float, float]:
    message = message_of(letter.origin.source)
    return (FOREVER_S, 0.0) if message is None else message
