"""The orders about dead letters of a workspace: list, show, replay and drop.

Letters of sinks are not replayed here: the order to send their changes again is stored, and the
process that writes the sink carries it out (`sink_replays.py`). No session is opened for that,
which would fence the one in which it does.

Each order goes through the partitions of the workspace's dead-letter topic, and through a partition
in chunks: at most `CHUNK_ROWS` rows per transaction, so its memory is bounded and it may end
anywhere. What was settled by then stays settled, and the same order goes on with the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, assert_never

from fennel_core.admission.errors import SourceCodeFailed, SourceCodeUnavailable
from fennel_core.admission.validator import CodeRunner, Validator
from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.erasures import Erased
from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.executors.client import Callbacks
from fennel_core.ingest.catalogs import Catalogs, EndpointTarget, RoutingTable
from fennel_core.ingest.log_service import ReadSecret
from fennel_core.ingest.store import IngestClock, boot_s
from fennel_core.redrive.api_errors import DropNeedsFilter, RedriveStopped
from fennel_core.redrive.letters import (
    DeliveringSink,
    Letter,
    LetterFilter,
    LetterTarget,
    Obstacle,
    target_of,
)
from fennel_core.redrive.pages import HIDDEN, Place, letter_rows
from fennel_core.redrive.replay import ReplayedLetters, replay_letters
from fennel_core.redrive.sink_replays import SinkReplay, SinkReplays
from fennel_core.redrive.store import LetterLog, LetterSession
from fennel_core.vocab.dead_letters import INGEST, DeadLetterKind, SettledLetter, message_of
from fennel_core.vocab.ids import TopicName, TopicPartition, WorkspaceId, partition_indexes

CHUNK_ROWS: Final = 5_000
CHUNK_BYTES: Final = 4 * 1024 * 1024
ATTEMPTS: Final = 5
"""Attempts to replay a chunk while definitions change."""
CODE_FAILURES: Final = 30
"""Runs of user code that fail in a chunk before letters that are left together stay together."""
Topics = Callable[[], Awaitable[Mapping[TopicName, int]]]
"""Returns the dead-letter topics of all workspaces with their partitions."""
NOT_DELIVERED: Final = DeadLetterKind.NOT_DELIVERED
AboutLetter = Callable[[Letter], bool]
"""Returns whether an order is about a letter."""
ReadErased = Callable[[WorkspaceId], Awaitable[Erased]]
FAILURES: Final = (
    SourceCodeFailed,
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)


@dataclass(slots=True)
class OrderReport:
    """What an order has done, or would do: rows, and letters as the messages that they are in."""

    letters: int = 0
    rows: int = 0
    accepted: int = 0
    left_out: int = 0
    refused: int = 0
    ordered: int = 0
    """Changes that sinks send again."""
    obstacles: dict[str, tuple[int, set[str]]] = field(default_factory=dict)

    def hinder(self, obstacle: str, letter: Letter) -> None:
        """Count a letter that is not replayed; `obstacle` is for people."""
        rows, subjects = self.obstacles.get(obstacle, (0, set()))
        self.obstacles[obstacle] = (rows + letter.rows, subjects | {letter.origin.subject})

    def as_json(self) -> dict[str, Any]:
        return {
            "letters": self.letters,
            "rows": self.rows,
            "accepted": self.accepted,
            "left_out": self.left_out,
            "refused": self.refused,
            "ordered": self.ordered,
            "not_replayable": [
                {"reason": str(obstacle), "rows": rows, "subjects": sorted(subjects)}
                for obstacle, (rows, subjects) in self.obstacles.items()
            ],
        }


class Redrive:
    """Gives the orders. Use from one event loop. `commit_within_s` as for `ingest.committer`."""

    def __init__(
        self,
        topics: Topics,
        log: LetterLog,
        catalogs: Catalogs,
        clock: IngestClock,
        executors: CodeRunner,
        secret: ReadSecret,
        erased: ReadErased,
        replays: SinkReplays,
        commit_within_s: float,
    ) -> None:
        self._erased, self._replays = erased, replays
        self._topics, self._log, self._catalogs = topics, log, catalogs
        self._clock, self._executors, self._secret = clock, executors, secret
        self._commit_within_s = commit_within_s

    async def counts(self, workspace: WorkspaceId, wanted: LetterFilter) -> list[dict[str, Any]]:
        """Return the open letters by dataset or job, source and kind, with the newest reason."""
        table = await self._catalogs.reload(workspace)
        erased = await self._erased(workspace)
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        for at in await self._partitions(workspace):
            async with aclosing(self._chunks(at, wanted.matches)) as chunks:
                async for letters in chunks:
                    for letter in letters:
                        reason = _listed_reason(letter, erased)
                        _count(found, letter, target_of(letter, table), reason)
        return [found[key] for key in sorted(found)]

    async def rows(
        self, workspace: WorkspaceId, wanted: LetterFilter, count: int, after: Place | None
    ) -> tuple[list[dict[str, Any]], Place | None]:
        """Return at most `count` rows of open letters from a place on, and the place of the next.

        Raises SystemUnavailable.
        """
        table = await self._catalogs.reload(workspace)
        erased = await self._erased(workspace)
        found: list[dict[str, Any]] = []
        for at in await self._partitions(workspace):
            async with aclosing(self._chunks(at, wanted.matches)) as chunks:
                async for letters in chunks:
                    for letter in letters:
                        place = Place(at, letter.offset, 0)
                        if after is not None and after > place:
                            if after.at != at or after.offset != letter.offset:
                                continue
                            place = after
                        if place.row >= letter.rows:
                            continue
                        if len(found) == count:
                            return found, place
                        left = count - len(found)
                        rows = letter_rows(letter, place.row, left, table, erased)
                        found += rows
                        if place.row + len(rows) < letter.rows:
                            return found, Place(at, letter.offset, place.row + len(rows))
        return found, None

    async def drop(
        self, workspace: WorkspaceId, wanted: LetterFilter, *, everything: bool, dry_run: bool
    ) -> OrderReport:
        """Settle letters without a replay. Raises DropNeedsFilter and RedriveStopped."""
        if wanted.is_empty and not everything:
            raise DropNeedsFilter

        async def settle(
            session: LetterSession | None, letters: Sequence[Letter], report: OrderReport
        ) -> None:
            settled = [_settled(letter, dropped=letter.rows) for letter in letters]
            if session is not None:
                await session.commit((), settled, boot_s() + self._commit_within_s)
            report.letters += len(letters)
            report.rows += sum(letter.rows for letter in letters)

        report = OrderReport()
        await self._order(workspace, wanted.matches, settle, report, None if dry_run else self._log)
        return report

    async def replay(
        self, workspace: WorkspaceId, wanted: LetterFilter, *, dry_run: bool
    ) -> OrderReport:
        """Type the rows of letters again and write those that fit, and order that sinks send the
        changes of theirs again. Raises RedriveStopped.
        """

        async def order(
            _: LetterSession | None, letters: Sequence[Letter], report: OrderReport
        ) -> None:
            table = await self._catalogs.get(workspace)
            await self._order_replays(letters, table, report, dry_run=dry_run)

        async def settle(
            session: LetterSession | None, letters: Sequence[Letter], report: OrderReport
        ) -> None:
            for _ in range(ATTEMPTS):
                table = await self._catalogs.get(workspace)
                if await self._replay(workspace, session, letters, table, report):
                    return
                await self._catalogs.reload(workspace)
            raise SystemUnavailable("the definitions kept changing")

        def typed(letter: Letter) -> bool:
            return letter.origin.kind is not NOT_DELIVERED and wanted.matches(letter)

        def sent(letter: Letter) -> bool:
            return letter.origin.kind is NOT_DELIVERED and wanted.matches(letter)

        report = OrderReport()
        await self._order(workspace, typed, settle, report, None if dry_run else self._log)
        await self._order(workspace, sent, order, report, None)
        return report

    async def _order_replays(
        self, letters: Sequence[Letter], table: RoutingTable, report: OrderReport, *, dry_run: bool
    ) -> None:
        """Order that sinks send the changes of letters again."""
        orders = []
        for letter in letters:
            match target_of(letter, table):
                case DeliveringSink(name):
                    message = message_of(letter.origin.source)
                    orders.append(SinkReplay(name, letter.at, letter.offset, message))
                    report.ordered += letter.rows
                case Obstacle() as obstacle:
                    report.hinder(obstacle, letter)
                case EndpointTarget():
                    raise AssertionError("these letters are of sinks")
                case unreachable:
                    assert_never(unreachable)
        if orders and not dry_run:
            await self._replays.order(orders)

    async def _replay(
        self,
        workspace: WorkspaceId,
        session: LetterSession | None,
        letters: Sequence[Letter],
        table: RoutingTable,
        report: OrderReport,
    ) -> bool:
        """Replay letters of a partition; return False if the definitions have changed."""
        code = f"sources@{table.version}"
        callbacks = Callbacks(
            secret=lambda name: self._secret(workspace, code, name),
            workspace=workspace,
            version=code,
        )
        validator = Validator(self._executors, callbacks)
        targets = [target_of(letter, table) for letter in letters]
        done, failed = await _replayed(validator, _by_target(letters, targets))
        # Before the stamp, as in `ingest.committer`: nothing is written long after it.
        deadline_s = boot_s() + self._commit_within_s
        start = await self._clock.begin(workspace, ())
        if start.version != table.version:
            return False
        settled = [each for part in done for each in part.settled]
        if session is not None and settled:
            messages = [message for part in done for message in part.messages]
            await session.commit(messages, settled, deadline_s)
        for letter, target in zip(letters, targets, strict=True):
            if isinstance(target, Obstacle):
                report.hinder(target, letter)
        for reason, letter in failed:
            report.hinder(reason, letter)
        for part in done:
            report.letters += part.letters
            report.rows += part.rows
            report.accepted += part.accepted
            report.left_out += part.left_out
            report.refused += part.refused
        return True

    async def _order(
        self,
        workspace: WorkspaceId,
        about: AboutLetter,
        settle: Callable[[LetterSession | None, Sequence[Letter], OrderReport], Awaitable[None]],
        report: OrderReport,
        log: LetterLog | None,
    ) -> None:
        """Go through the letters that an order is about, in a session of `log` for each partition;
        None: in none.
        """
        try:
            await self._catalogs.reload(workspace)
            for at in await self._partitions(workspace):
                async with aclosing(self._chunks(at, about)) as chunks:
                    if await anext(chunks, None) is None:
                        continue
                # Only what is read behind this is settled by no other order.
                session = None if log is None else await log.open(at)
                try:
                    async with aclosing(self._chunks(at, about)) as chunks:
                        async for letters in chunks:
                            await settle(session, letters, report)
                finally:
                    if session is not None:
                        session.close()
        except FAILURES as failed:
            raise RedriveStopped(
                f"the order ended early ({failed}) after {report.rows} rows, of which "
                f"{report.accepted} were accepted and {report.refused} refused again; repeat it: "
                "what is settled is not settled twice"
            ) from failed

    async def _partitions(self, workspace: WorkspaceId) -> list[TopicPartition]:
        prefix = f"{workspace}.{AssetKind.DEAD}."
        return [
            (topic, part)
            for topic, partitions in sorted((await self._topics()).items())
            if topic.startswith(prefix)
            for part in partition_indexes(partitions)
        ]

    async def _chunks(
        self, at: TopicPartition, about: AboutLetter
    ) -> AsyncGenerator[list[Letter], None]:
        """Yield the open letters that an order is about; the log is read in threads."""
        letters = self._log.letters(at)
        try:
            while chunk := await asyncio.to_thread(_chunk, letters, about):
                yield chunk
        finally:
            # After a cancellation a thread may still read; the log is closed with the generator.
            with suppress(ValueError):
                await asyncio.to_thread(letters.close)


def _chunk(letters: Iterator[Letter], about: AboutLetter) -> list[Letter]:
    found: list[Letter] = []
    rows = size = 0
    for letter in letters:
        if about(letter):
            found.append(letter)
            rows, size = rows + letter.rows, size + len(letter.value)
            if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                break
    return found


async def _replayed(
    validator: Validator, groups: Sequence[tuple[EndpointTarget, list[Letter]]]
) -> tuple[list[ReplayedLetters], list[tuple[str, Letter]]]:
    """Replay letters group by group; return those whose code cannot run with the reason.

    A group whose code fails is halved until the letters are found that it fails for, at most
    `CODE_FAILURES` times: each failure may take as long as code may run.
    """
    done: list[ReplayedLetters] = []
    failed: list[tuple[str, Letter]] = []
    failures = 0
    left = list(reversed(groups))
    while left:
        typing, own = left.pop()
        try:
            done.append(await replay_letters(validator, typing, own))
        except SourceCodeUnavailable:
            raise  # This says nothing about the letters.
        except SourceCodeFailed as stopped:
            failures += 1
            if len(own) > 1 and failures < CODE_FAILURES:
                middle = len(own) // 2
                left += [(typing, own[middle:]), (typing, own[:middle])]
            else:
                failed += [(f"{Obstacle.CODE}: {stopped}", letter) for letter in own]
    return done, failed


def _by_target(
    letters: Sequence[Letter], targets: Sequence[LetterTarget]
) -> list[tuple[EndpointTarget, list[Letter]]]:
    """Return the letters of each target that failed for the same cause.

    Reasons name what is wrong with all rows that are typed together, so letters of another cause
    would change the reason of each other.
    """
    found: dict[tuple[str, ...], tuple[EndpointTarget, list[Letter]]] = {}
    for letter, target in zip(letters, targets, strict=True):
        if isinstance(target, EndpointTarget):
            key = (target.binding.identity, target.binding.topic, letter.origin.cause)
            found.setdefault(key, (target, []))[1].append(letter)
    return list(found.values())


def _settled(letter: Letter, dropped: int) -> SettledLetter:
    origin = letter.origin
    return SettledLetter(letter.offset, origin.writer, origin.subject, origin.kind, 0, dropped, 0)


def _listed_reason(letter: Letter, erased: Erased) -> str:
    """Return the reason without values if anything was erased: it may quote a row of the key."""
    return (letter.origin.cause or HIDDEN) if erased else letter.origin.reason


def _count(
    found: dict[tuple[str, ...], dict[str, Any]],
    letter: Letter,
    target: LetterTarget,
    reason: str,
) -> None:
    """Add a letter to the counts; the last of a partition has the newest reason."""
    origin = letter.origin
    obstacle = target.value if isinstance(target, Obstacle) else None
    key = (origin.subject, letter.source, origin.kind.value, origin.writer, obstacle or "")
    of_sink = origin.kind is NOT_DELIVERED
    row = found.setdefault(
        key,
        {
            "subject": origin.subject,
            "source": letter.source or None,
            "sink": origin.sink or None,
            "job": None if of_sink or origin.writer in ("", INGEST) else origin.writer,
            "kind": origin.kind.value,
            "letters": 0,
            "rows": 0,
            "not_replayable": obstacle,
            "newest_at": "",
            "newest_reason": "",
        },
    )
    row["letters"] += 1
    row["rows"] += letter.rows
    written = time_text(letter.written_ms)
    if written >= row["newest_at"]:
        row |= {"newest_at": written, "newest_reason": reason}


def time_text(ms: int) -> str:
    """Return a time as the API writes it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
