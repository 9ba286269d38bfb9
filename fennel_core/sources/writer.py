"""Write the messages of one source partition: exactly once, by the path of `log`.

A batch may have been written before, in part or as a whole: by this writer, whose transaction has
an unknown outcome, or by an earlier one. The position says so, because it is committed with the
rows: messages before it are skipped. So a reader may deliver messages as often as it likes, in
order and without gaps from a position that it has read.

A session that is kept between batches may be fenced by then, so it cannot commit. Where a batch
does not begin at the position of the session, that is likely, and a new one is opened at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from fennel_core.admission.payload import Payload
from fennel_core.admission.validator import CodeRunner, DeadLetter, Validator
from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.executors.client import Callbacks
from fennel_core.ingest.batches import (
    IngestTransaction,
    PreparedRequest,
    SourceRows,
    build_transaction,
)
from fennel_core.ingest.catalogs import Catalogs, EndpointTarget
from fennel_core.ingest.log_service import ReadSecret
from fennel_core.ingest.preparation import ReadFrom, Received, prepare
from fennel_core.ingest.store import CatalogVersion, IngestClock, boot_s
from fennel_core.sources.errors import FeedRemoved, RowsNotWritten, SourceRewound, StreamReplaced
from fennel_core.sources.messages import SHOWN_BYTES, MessageBatch, decode_messages, raw_body
from fennel_core.sources.positions import SourcePosition, advanced
from fennel_core.sources.store import FeedPartition, SourceLog, SourceSession
from fennel_core.wire.json_data import json_table

ATTEMPTS: Final = 5
"""Attempts to write one part of a batch: fenced sessions, lost responses, changed definitions."""
VALUE: Final = "value"
"""The column with a message that is no row, in its dead letter."""


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
        on_commit: Callable[[IngestTransaction], None] = lambda _: None,
    ) -> None:
        self._partition, self._origin = partition, origin
        self._log, self._clock, self._catalogs = log, clock, catalogs
        self._executors, self._secret = executors, secret
        self._server, self._commit_within_s = server, commit_within_s
        self._rewinds = rewinds
        self._on_commit = on_commit
        self._session: SourceSession | None = None

    async def write(self, batch: MessageBatch) -> SourcePosition | None:
        """Write the messages that are not written yet; return the position behind them.

        Raises `FeedRemoved`, `StreamReplaced`, `SourceRewound`, `RowsNotWritten`,
        `SystemUnavailable` and `SourceCodeFailed`. What was written by then stays.
        """
        if self._session is not None:
            position = self._session.position
            if position is None or (len(batch) and position.next != batch.offsets[0]):
                self.close()
        for part in batch.parts():
            await self._write_part(part)
        return None if self._session is None else self._session.position

    def close(self) -> None:
        """Release the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    async def _write_part(self, part: MessageBatch) -> None:
        reason = ""
        for _ in range(ATTEMPTS):
            if self._session is None:
                self._session = await self._log.open(self._partition)
            session = self._session
            position = session.position or SourcePosition(0, self._origin)
            if position.origin != self._origin:
                raise StreamReplaced(self._partition.title, position.origin, self._origin)
            if position.rewinds != self._rewinds:
                raise SourceRewound(
                    f"{self._partition.title} was rewound to {position.next} while it was read"
                )
            rest = part.since(position.next)
            if not len(rest):
                return
            try:
                if await self._commit(session, position, rest):
                    return
                reason = "the definitions kept changing"
            except (TransactionAborted, TransactionOutcomeUnknown) as failed:
                reason = str(failed)
                self.close()
            except BaseException:
                # The transaction may be open: the next session ends it.
                self.close()
                raise
        raise RowsNotWritten(
            f"{self._partition.title}: rows could not be written in {ATTEMPTS} attempts ({reason})"
        )

    async def _commit(
        self, session: SourceSession, position: SourcePosition, batch: MessageBatch
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
        requests = await self._prepared(table.version, targets, batch)
        deadline_s = boot_s() + self._commit_within_s
        start = await self._clock.begin(workspace, ())
        if start.version != table.version:
            await self._catalogs.reload(workspace)
            return False
        # Progress is that of this partition, and not that of all of them (`positions.py`).
        start = replace(start, progress=position.progress())
        transaction = build_transaction(requests, start, self._server)
        present = [target.binding.identity for target in targets]
        following = advanced(
            position, transaction, int(batch.offsets[-1]) + 1, start.now_us, present
        )
        await session.commit(transaction.messages, following, deadline_s)
        self._on_commit(transaction)
        return True

    async def _prepared(
        self, version: CatalogVersion, targets: tuple[EndpointTarget, ...], batch: MessageBatch
    ) -> list[PreparedRequest]:
        decoded = decode_messages(batch.values)
        title, requests = self._partition.title, []
        code, workspace = f"sources@{version}", self._partition.workspace
        callbacks = Callbacks(
            secret=lambda name: self._secret(workspace, code, name),
            workspace=workspace,
            version=code,
        )
        validator = Validator(self._executors, callbacks)
        for part in decoded.tables():
            rows, numbers = decoded.rows[part], decoded.numbers[part]
            received = Received(
                raw_body(
                    self._partition.name,
                    self._partition.stream,
                    [batch.values[number] for number in numbers],
                ),
                Payload(json_table(rows).columns, np.arange(len(rows), dtype=np.int64)),
                self._partition.number,
                ReadFrom(SourceRows(title, batch.offsets[numbers])),
            )
            requests.append(await prepare(validator, version, targets, received))
        for unreadable in decoded.unreadable:
            numbers = np.array(unreadable.numbers, dtype=np.int64)
            texts = [
                (batch.values[n] or b"")[:SHOWN_BYTES].decode(errors="replace")
                for n in unreadable.numbers
            ]
            payload = Payload({VALUE: texts}, np.arange(len(texts), dtype=np.int64))
            letter = DeadLetter(unreadable.reason, payload, unreadable.reason)
            requests.append(
                PreparedRequest(
                    version,
                    b"",
                    len(texts),
                    self._partition.number,
                    raw=(),
                    judged_for=frozenset(),
                    entries=(),
                    dead=tuple((target, letter) for target in targets),
                    source=SourceRows(title, batch.offsets[numbers]),
                )
            )
        return requests
