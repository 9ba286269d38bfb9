"""Write the messages of one source partition: exactly once, by the path of `log`.

A batch may have been written before, in part or as a whole: by this writer, whose transaction has
an unknown outcome, or by an earlier one. The position says so, because it is committed with the
rows: messages before it are skipped. So a reader may deliver messages as often as it likes, in
order and without gaps from a position that it has read.

Rows of a file or a table have no offsets that say where they belong, so a batch of them names the
place that it follows (`read_rows.RowBatch`). It is written only if that is the position: compare
and set. A batch whose end is the position was written before; at any other position its reader was
superseded, and begins again.

A session that is kept between batches may be fenced by then, so it cannot commit. Where a batch
does not begin at the position of the session, that is likely, and a new one is opened at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from fennel_core.admission.validator import CodeRunner, DeadLetter, Validator
from fennel_core.blueprints.spec import SourceBinding
from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.executors.client import Callbacks
from fennel_core.ingest.batches import (
    IngestTransaction,
    PreparedRequest,
    build_transaction,
)
from fennel_core.ingest.catalogs import Catalogs, EndpointTarget
from fennel_core.ingest.log_service import ReadSecret
from fennel_core.ingest.preparation import ReadFrom, Received, prepare
from fennel_core.ingest.store import CatalogVersion, IngestClock, boot_s
from fennel_core.sources.errors import (
    FeedRemoved,
    ReaderSuperseded,
    RowsNotWritten,
    SourceRewound,
    StreamReplaced,
)
from fennel_core.sources.messages import Decode, MessageBatch, decode_messages, is_expected
from fennel_core.sources.positions import SourcePosition, advanced
from fennel_core.sources.read_rows import (
    MessageRows,
    ReadPart,
    RefusedRows,
    RowBatch,
    StreamPlace,
    requests_of,
)
from fennel_core.sources.store import FeedPartition, SourceLog, SourceSession

ATTEMPTS: Final = 5
"""Attempts to write one part of a batch: fenced sessions, lost responses, changed definitions."""
OnCommit = Callable[[IngestTransaction, Sequence[SourceBinding]], None]
"""Gets each committed transaction, and the sources of whose rows it has some: also if each was left
out by `where` or the like. None if it only moves a cursor.
"""


class PartitionWriter:
    """Writes the batches of one partition, one after the other. Use from one event loop.

    `origin`: the ids of the external cluster and topic. `rewinds`: of the position that the reader
    began at. `commit_within_s` as for `ingest.committer`.
    """

    def __init__(
        self,
        partition: FeedPartition,
        origin: str,
        log: SourceLog,
        clock: IngestClock,
        catalogs: Catalogs,
        executors: CodeRunner,
        secret: ReadSecret,
        *,
        server: int,
        commit_within_s: float,
        rewinds: int = 0,
        on_commit: OnCommit = lambda _, __: None,
        decode: Decode = decode_messages,
    ) -> None:
        self._partition, self._origin = partition, origin
        self._log, self._clock, self._catalogs = log, clock, catalogs
        self._executors, self._secret = executors, secret
        self._server, self._commit_within_s = server, commit_within_s
        self._rewinds = rewinds
        self._on_commit, self._decode = on_commit, decode
        self._session: SourceSession | None = None

    async def write(self, batch: MessageBatch) -> SourcePosition | None:
        """Write the messages that are not written yet; return the position behind them.

        Raises `FeedRemoved`, `StreamReplaced`, `SourceRewound`, `RowsNotWritten`,
        `SystemUnavailable`, `SchemaRegistryUnusable` and `SourceCodeFailed`. What was written by
        then stays.
        """
        if self._session is not None:
            position = self._session.position
            if position is None or (len(batch) and position.next != batch.offsets[0]):
                self.close()
        for part in batch.parts():
            await self._write_part(part)
        return None if self._session is None else self._session.position

    async def write_rows(self, batch: RowBatch) -> SourcePosition:
        """Write the rows behind `batch.after`, unless they are written; return the position.

        As `write`; also raises `ReaderSuperseded`, if the position is neither end of the batch.
        """
        if self._session is not None and _place(self._session.position) != batch.after:
            self.close()
        await self._write_part(batch)
        assert self._session is not None, "a batch was written in a session"
        assert self._session.position is not None, "a written batch has moved the position"
        return self._session.position

    async def position(self) -> SourcePosition | None:
        """Return the position to read on from; every earlier writer is fenced.

        Raises `StreamReplaced`, `SourceRewound` and `SystemUnavailable`.
        """
        if self._session is None:
            self._session = await self._log.open(self._partition)
        self._checked(self._session)
        return self._session.position

    def notes(self) -> Mapping[str, bytes]:
        """Return what the source remembered when the session of `position` was opened, by name."""
        assert self._session is not None, "the position is read first"
        return self._session.notes

    def close(self) -> None:
        """Release the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    async def _write_part(self, part: MessageBatch | RowBatch) -> None:
        reason = ""
        for _ in range(ATTEMPTS):
            if self._session is None:
                self._session = await self._log.open(self._partition)
            session = self._session
            try:
                position = self._checked(session)
                rest = self._left(part, position)
                if rest is None:
                    return
                if await self._commit(session, position, rest):
                    return
                reason = "the definitions kept changing"
            except (TransactionAborted, TransactionOutcomeUnknown) as failed:
                reason = str(failed)
                self.close()
            except BaseException:
                # The transaction may be open, or the position stale: a new session ends both.
                self.close()
                raise
        raise RowsNotWritten(
            f"{self._partition.title}: rows could not be written in {ATTEMPTS} attempts ({reason})"
        )

    def _checked(self, session: SourceSession) -> SourcePosition:
        """Return the position of a session, which must be of the stream and of this reader."""
        position = session.position or SourcePosition(0, self._origin)
        if position.origin != self._origin:
            raise StreamReplaced(self._partition.title, position.origin, self._origin)
        if position.rewinds != self._rewinds:
            raise SourceRewound(
                f"{self._partition.title} was rewound to {position.next} while it was read"
            )
        return position

    def _left(self, part: MessageBatch | RowBatch, position: SourcePosition) -> RowBatch | None:
        """Return what of a part is not written at `position`; None if all of it is."""
        if isinstance(part, MessageBatch):
            rest = part.since(position.next)
            if not len(rest):
                return None
            end = StreamPlace(int(rest.offsets[-1]) + 1)
            return RowBatch(_place(position), end, (MessageRows(self._partition.title, rest),))
        at = _place(position)
        if at == part.after:
            return part
        if at == part.end:
            return None
        raise ReaderSuperseded(
            f"{self._partition.title} is at row {at.next}, and the rows that were read follow row "
            f"{part.after.next}: another reader has read it in between"
        )

    async def _commit(
        self, session: SourceSession, position: SourcePosition, batch: RowBatch
    ) -> bool:
        """Commit the batch; return False if the definitions changed in between."""
        workspace = self._partition.workspace
        table = await self._catalogs.get(workspace)
        targets = table.feeds.get(self._partition.raw_topic)
        if targets is None:
            table = await self._catalogs.reload(workspace)
            targets = table.feeds.get(self._partition.raw_topic)
        if targets is None:
            raise FeedRemoved(f"{self._partition.title} is not the source of a dataset any more")
        requests = await self._prepared(table.version, targets, batch.parts)
        deadline_s = boot_s() + self._commit_within_s
        start = await self._clock.begin(workspace, ())
        if start.version != table.version:
            await self._catalogs.reload(workspace)
            return False
        # Progress is that of this partition, and not that of all of them (`positions.py`).
        start = replace(start, progress={} if batch.never_late else position.progress())
        transaction = build_transaction(requests, start, self._server)
        present = [target.binding.identity for target in targets]
        following = advanced(
            position, transaction, batch.end.next, start.now_us, present, batch.end.cursor
        )
        assert all(self._partition.note_name(each.key or b"") for each in batch.remembered), (
            "what is remembered has the key of a note, which is never that of a position"
        )
        messages = (*transaction.messages, *batch.remembered)
        await session.commit(messages, following, deadline_s)
        self._on_commit(transaction, [t.binding for t in targets] if batch.parts else [])
        return True

    async def _prepared(
        self,
        version: CatalogVersion,
        targets: tuple[EndpointTarget, ...],
        parts: tuple[ReadPart, ...],
    ) -> list[PreparedRequest]:
        code, workspace = f"sources@{version}", self._partition.workspace
        callbacks = Callbacks(
            secret=lambda name: self._secret(workspace, code, name),
            workspace=workspace,
            version=code,
        )
        validator = Validator(self._executors, callbacks)
        found = []
        for part in parts:
            name, stream = self._partition.name, self._partition.stream
            requests = requests_of(name, stream, part, self._decode)
            # In a thread: a decoder may wait for its schema registry.
            for request in await asyncio.to_thread(list, requests):
                if isinstance(request, RefusedRows):
                    found.append(self._refused(version, targets, request))
                    continue
                number = self._partition.number
                origin = ReadFrom(request.source)
                received = Received(request.body, request.payload, number, origin)
                found.append(await prepare(validator, version, targets, received))
        return found

    def _refused(
        self, version: CatalogVersion, targets: tuple[EndpointTarget, ...], rows: RefusedRows
    ) -> PreparedRequest:
        letter = DeadLetter(rows.reason, rows.payload, rows.reason)
        return PreparedRequest(
            version,
            b"",
            len(rows.payload),
            self._partition.number,
            raw=(),
            judged_for=frozenset(),
            entries=(),
            dead=tuple(
                (target, letter)
                for target in targets
                if not is_expected(rows.reason, target.binding.source)
            ),
            source=rows.source,
        )


def _place(position: SourcePosition | None) -> StreamPlace:
    return StreamPlace() if position is None else StreamPlace(position.next, position.cursor)
