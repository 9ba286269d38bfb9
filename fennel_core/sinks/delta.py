"""Sinks of Delta tables on S3: sessions whose position is in the log of the table.

Theory. A commit of Delta Lake is one object of the table's log: its data files and the versions of
*application transactions* (`txn`) come together or not at all. The position of a sink is such
versions: the next offset of each partition, the last erasure, the number of events. Checkpoints of
the log keep them, and VACUUM and OPTIMIZE leave them as they are.

A session reads the position from one snapshot and commits nothing until it has something to write,
so a sink that cannot go on leaves no trace in the log. Every commit of a session has its *epoch*,
the one that the snapshot had and one more, and delta-rs refuses a commit if another one since the
snapshot has changed an application transaction that it has. So of two sessions that have read one
position only one commits behind it, whatever was delayed, and the other is over. Commits of others
that have no application transactions, as an OPTIMIZE, are no reason to refuse.

A table belongs to one sink, which made it: two contents in one table could not be separated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, assert_never

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Schema as DeltaSchema

from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.connections.external_delta import OWNER, ExternalDelta, other_columns, text_of
from fennel_core.sinks.delta_rows import AddedRows, DeletedKeys, DeletedMessages, DeltaBatch
from fennel_core.sinks.errors import SinkTableChanged, SinkTableGone, SinkTableTaken
from fennel_core.sinks.positions import SinkPosition
from fennel_core.vocab.change_columns import EVENT, change_columns
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.schema import Schema

CHECKPOINT_COMMITS: Final = 20
"""After how many commits the log is summed up: a reader reads at most so many small objects."""
DELETED_AT_ONCE: Final = 10_000
"""Rows of erased keys that one commit deletes."""
SCANNED_ROWS: Final = 65_536
"""Rows whose key columns are in memory while those of erased keys are looked for."""
COMPRESSED: Final = WriterProperties(compression="ZSTD")


class DeltaSinkLog:
    """See `store.SinkLog`. `name`: of the sink, unique in the installation and never used twice;
    `of`: the topic whose offsets the position has.
    """

    def __init__(
        self,
        place: ExternalDelta,
        schema: Schema,
        installation: str,
        name: TopicName,
        of: TopicName,
    ) -> None:
        self._place, self._columns = place, change_columns(schema)
        self._owner = f"{installation}/{name}/{of}"

    def open(self, *, first: bool = True) -> DeltaSinkSession:
        place = self._place
        place.require_conditional_put()
        table = place.table()
        if table is None:
            if not first:
                raise SinkTableGone(place.title)
            table = self._made()
        if (owner := table.metadata().configuration.get(OWNER)) != self._owner:
            raise SinkTableTaken(place.title, owner)
        if others := other_columns(table, self._columns):
            raise SinkTableChanged(place.title, others)
        with place.checked("cannot be read"):
            origin = f"{place.uri}/{table.metadata().id}"
            return DeltaSinkSession(place.title, table, self._owner, origin)

    def _made(self) -> DeltaTable:
        place = self._place
        configuration = {
            OWNER: self._owner,
            "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
            # So that a reader of changes sees the rows of erased keys leave.
            "delta.enableChangeDataFeed": "true",
        }
        with place.checked("cannot be created"):
            try:
                return DeltaTable.create(
                    place.uri,
                    DeltaSchema.from_arrow(self._columns),
                    configuration=configuration,
                    storage_options=place.options(),
                    raise_if_key_not_exists=False,
                )
            except CommitFailedError as failed:
                raise TransactionAborted(f"{place.title}: {text_of(failed)}") from failed


class DeltaSinkSession:
    """See `store.SinkSession`."""

    def __init__(self, title: str, table: DeltaTable, owner: str, origin: str) -> None:
        self._title = title
        self._table, self._owner, self._over = table, owner, False
        self.origin = origin
        self._last_epoch = self._version("epoch") or 0
        """That of the snapshot: after the first commit the session's own."""
        self._epoch = self._last_epoch + 1
        self.position = self._stored()

    def _stored(self) -> SinkPosition | None:
        """Return the position in the snapshot."""
        parts = self._version("partitions")
        if parts is None:
            return None
        found = {part: self._version(f"next/{part}") for part in range(parts)}
        return SinkPosition(
            self.origin,
            {part: offset for part, offset in found.items() if offset is not None},
            self._version("erased") or 0,
            self._version("events") or 0,
            rewound=self._version("rewound") or 0,
        )

    def commit(self, batch: DeltaBatch | None, position: SinkPosition) -> None:
        assert not self._over, "a session whose transaction failed is over"
        with self._settled():
            self._write(batch, self._transactions(position))
        self._last_epoch = self._epoch
        self.position = position

    def close(self) -> None:
        """Nothing is held. Files without a commit are no part of the table; VACUUM removes them."""
        self._over = True

    def _write(self, batch: DeltaBatch | None, transactions: Sequence[Transaction]) -> None:
        self._require_epoch()
        properties = CommitProperties(app_transactions=list(transactions))
        match batch:
            case AddedRows(rows):
                write_deltalake(
                    self._table,
                    rows,
                    mode="append",
                    writer_properties=COMPRESSED,
                    commit_properties=properties,
                )
            case DeletedKeys():
                if not self._delete(batch, transactions):
                    # Nothing to delete is no commit, but the position moves.
                    self._commit_nothing(transactions)
            case DeletedMessages(following):
                # All rows need no file to be read.
                predicate = batch.predicate if any(following.values()) else None
                if not self._delete_rows(predicate, transactions):
                    self._commit_nothing(transactions)
            case None:
                self._commit_nothing(transactions)
            case unreachable:
                assert_never(unreachable)

    def _delete(self, deleted: DeletedKeys, transactions: Sequence[Transaction]) -> bool:
        """Delete the rows of keys; return whether there were any, and the position was written.

        The numbers of their events say which rows: so a key is no part of an expression.
        """
        events = self._events_of(deleted)
        pieces = [
            events[at : at + DELETED_AT_ONCE] for at in range(0, len(events), DELETED_AT_ONCE)
        ]
        done = False
        for number, piece in enumerate(pieces, 1):
            self._require_epoch()
            # A deletion that is done again does nothing, so the position comes with the last.
            own = transactions if number == len(pieces) else transactions[:1]
            numbers = ", ".join(map(str, piece))
            done = self._delete_rows(
                f"{EVENT} BETWEEN {min(piece)} AND {max(piece)} AND {EVENT} IN ({numbers})", own
            )
        return done

    def _delete_rows(self, predicate: str | None, transactions: Sequence[Transaction]) -> bool:
        """Delete the rows of a predicate, None: all; return whether that was a commit."""
        found = self._table.delete(
            predicate,
            writer_properties=COMPRESSED,
            commit_properties=CommitProperties(app_transactions=list(transactions)),
        )
        if not found["num_removed_files"]:
            return False
        self._last_epoch = self._epoch
        return True

    def _events_of(self, deleted: DeletedKeys) -> list[int]:
        """Return the numbers of the events of keys; a batch of key columns in memory at a time."""
        scanner = self._table.to_pyarrow_dataset().scanner(
            columns=[*deleted.columns.names, EVENT],
            batch_size=SCANNED_ROWS,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        found: list[int] = []
        for batch in scanner.to_batches():
            found += deleted.events(pa.Table.from_batches([batch]))
        return sorted(found)

    def _commit_nothing(self, transactions: Sequence[Transaction]) -> None:
        self._table.create_write_transaction(
            [],
            "append",
            self._table.schema(),
            commit_properties=CommitProperties(app_transactions=list(transactions)),
        )
        self._table.update_incremental()

    def _transactions(self, position: SinkPosition) -> list[Transaction]:
        values = {
            "epoch": self._epoch,
            "partitions": max(position.next, default=-1) + 1,
            "erased": position.erased,
            "events": position.events,
            "rewound": position.rewound,
        }
        before = {} if self.position is None else self.position.next
        values |= {
            f"next/{part}": offset
            for part, offset in position.next.items()
            if before.get(part) != offset
        }
        return [Transaction(f"{self._owner}/{name}", value) for name, value in values.items()]

    def _require_epoch(self) -> None:
        """Raise `TransactionAborted` unless the snapshot has the position of this session.

        The library compares with commits since its snapshot, which may be newer than what this
        session has read or committed: then it has another epoch.
        """
        if (self._version("epoch") or 0) != self._last_epoch:
            raise TransactionAborted(f"{self._title}: another session has taken the sink over")

    def _version(self, name: str) -> int | None:
        return self._table.transaction_version(f"{self._owner}/{name}")

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Say what became of a commit: the next session reads whether it is in the log."""
        self._over = True
        try:
            yield
        except CommitFailedError as failed:
            raise TransactionAborted(f"{self._title}: {text_of(failed)}") from failed
        except (DeltaError, OSError, ValueError) as failed:
            raise TransactionOutcomeUnknown(f"{self._title}: {text_of(failed)}") from failed
        else:
            self._over = False
