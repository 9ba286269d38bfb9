"""Try a source: read a few messages and type them as the source would, without a trace.

Nothing is written, and no position moves: the newest messages are typed by the code that types what
is read (`messages.py`, `admission`), for every dataset that the stream feeds. So the result says
what would become of them: a typed row, a dead letter with its reason, or nothing, because `where`,
`since`, `until`, the sample or an erasure leaves the row out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from fennel_core.admission.payload import Payload
from fennel_core.admission.validator import CodeRunner, RowKind, Validator
from fennel_core.blueprints.streams import Changes
from fennel_core.connections.change_engine import ChangeEngineFailed
from fennel_core.connections.erasures import Erased
from fennel_core.connections.external_delta import ExternalTableUnusable
from fennel_core.connections.external_kafka import (
    ExternalKafka,
    ExternalKafkaUnusable,
    ExternalMessage,
    describe_topic,
    newest_messages,
    opened,
)
from fennel_core.connections.external_kinesis import (
    ExternalStreamUnusable,
    IteratorExpired,
    StreamThrottled,
)
from fennel_core.connections.external_s3 import ExternalBucketUnusable
from fennel_core.connections.schema_registry import SchemaRegistryUnusable
from fennel_core.connections.secrets import SecretUnreadable
from fennel_core.executors.client import Callbacks
from fennel_core.ingest.log_service import ReadSecret
from fennel_core.sources import table_databases
from fennel_core.sources.api_errors import SourceNotReadable
from fennel_core.sources.errors import SourceError
from fennel_core.sources.file_trial import FileRow, decoded_rows
from fennel_core.sources.formats import decoder_of
from fennel_core.sources.kinesis_orders import StreamRow
from fennel_core.sources.messages import DecodedMessages, decode_messages, is_expected
from fennel_core.sources.overview import SourceView, cursor_and_disorder
from fennel_core.sources.service import SourceService, topic_of
from fennel_core.sources.table_databases import ScheduledTable, TableUnusable
from fennel_core.sources.table_trial import newest_rows
from fennel_core.telemetry.endless_tasks import in_daemon_thread
from fennel_core.vocab import dtypes
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import (
    KinesisStream,
    S3Table,
    SealedSecret,
)
from fennel_core.wire.json_data import json_table
from fennel_core.wire.json_encode import encode_column

MESSAGES: Final = 5
TRIED_S: Final = 90.0
"""How long a source may take; each kind has shorter limits for what it does."""
OpenSecret = Callable[[WorkspaceId, SealedSecret], str]
"""Returns the text of a sealed secret; raises `secrets.SecretUnreadable`."""
ReadNewest = Callable[[ExternalKafka, str, int], list[ExternalMessage]]
"""Returns the newest messages of a topic, at most so many. Blocks; raises `ExternalKafkaUnusable`.
"""
ReadFiles = Callable[[S3Table, Callable[[SealedSecret], str], int], list[FileRow]]
"""Returns rows of the newest files of a source. Blocks; raises `ExternalBucketUnusable`."""
ReadStreams = Callable[[KinesisStream, WorkspaceId, int], list[StreamRow]]
"""Returns rows of the newest records of a stream. Blocks; raises `ExternalStreamUnusable`."""
ReadChangedRows = Callable[[Changes, Callable[[SealedSecret], str], int], list[bytes]]
"""Returns rows of a table whose changes are read. Blocks; raises `ConnectionsError`."""
Place = dict[str, Any]
"""Where a row is, as the response has it: partition and offset, and of files the file. The offset
of a record of Kinesis is a text.
"""


def read_newest(kafka: ExternalKafka, topic: str, count: int) -> list[ExternalMessage]:
    """Return the newest messages of a topic; see `ReadNewest`."""
    return newest_messages(kafka, topic, describe_topic(kafka, topic).partitions, count)


class SourceTrials:
    """Tries sources with their stored credentials. Use from one event loop."""

    def __init__(
        self,
        sources: SourceService,
        executors: CodeRunner,
        secret: ReadSecret,
        open_secret: OpenSecret,
        read_files: ReadFiles,
        read_streams: ReadStreams,
        read_changes: ReadChangedRows,
        read: ReadNewest = read_newest,
    ) -> None:
        self._sources, self._executors, self._secret = sources, executors, secret
        self._open, self._read, self._read_files = open_secret, read, read_files
        self._read_streams, self._read_changes = read_streams, read_changes

    async def run(self, workspace: WorkspaceId, name: str) -> dict[str, Any]:
        """Return what would become of the newest messages of a stream.

        Raises SourceUnknown, SourceIsSent, OrderNotServed, SourceNotReadable, and SourceCodeFailed.
        """
        view, feed = await self._sources.feed(workspace, name, "test")
        branches = await self._sources.branches(workspace)

        def open_secret(secret: SealedSecret) -> str:
            return self._open(workspace, secret)

        def read() -> tuple[list[Place], DecodedMessages]:
            if isinstance(feed.table, S3Table):
                rows = self._read_files(feed.table, open_secret, MESSAGES)
                places = [_place(0, each.number) | {"file": each.key} for each in rows]
                return places, decoded_rows(rows)
            if isinstance(feed.table, KinesisStream):
                held = self._read_streams(feed.table, workspace, MESSAGES)
                places = [{"partition": each.shard, "offset": each.sequence} for each in held]
                return places, decode_messages([each.value for each in held])
            if isinstance(feed.table, Changes):
                lines = self._read_changes(feed.table, open_secret, MESSAGES)
                return [_place(0, n) for n in range(len(lines))], decode_messages(lines)
            if isinstance(feed.table, ScheduledTable):
                database = table_databases.opened(feed.table, open_secret)
                cursor, _ = cursor_and_disorder(view)
                messages = newest_rows(database, feed.table.table, cursor, MESSAGES)
                return _places(messages), decode_messages([each.value for each in messages])
            topic = topic_of(name, feed, "test")
            messages = self._read(opened(topic.db, open_secret), topic.topic, MESSAGES)
            decode = decoder_of(topic.format, open_secret)
            return _places(messages), decode([message.value for message in messages])

        unusables = (
            *(ExternalKafkaUnusable, ExternalBucketUnusable, *TableUnusable),
            *(ExternalStreamUnusable, StreamThrottled, IteratorExpired),
            *(
                ChangeEngineFailed,
                ExternalTableUnusable,
                SchemaRegistryUnusable,
                SecretUnreadable,
                SourceError,
            ),
        )
        try:
            # A system that does not respond has a thread of its own, and none of those all share.
            places, decoded = await asyncio.wait_for(in_daemon_thread(read, "try"), TRIED_S)
        except unusables as unusable:
            raise SourceNotReadable(name, str(unusable)) from unusable
        except TimeoutError as late:
            raise SourceNotReadable(name, f"nothing came in {TRIED_S:.0f} s") from late
        code = f"sources@{branches.version}"
        callbacks = Callbacks(
            secret=lambda secret: self._secret(workspace, code, secret),
            workspace=workspace,
            version=code,
        )
        validator = Validator(self._executors, callbacks)
        datasets = await try_messages(validator, view, branches.erased, places, decoded)
        return {"source": name, "messages": len(places), "datasets": datasets}


async def try_messages(
    validator: Validator,
    view: SourceView,
    erased: Erased,
    places: Sequence[Place],
    decoded: DecodedMessages,
) -> list[dict[str, Any]]:
    """Return what would become of the messages in each dataset that the source feeds.

    Raises `SourceCodeFailed` where user code could not be run.
    """
    found = []
    for binding, branches in view.bindings.values():
        outcomes: dict[int, dict[str, Any]] = {
            number: {"error": each.reason}
            for each in decoded.unreadable
            if not is_expected(each.reason, binding.source)
            for number in each.numbers
        }
        if decoded.rows:
            good, dead = await validator.validate_or_dead_letter(
                binding, _payload(decoded), erased.get(binding.dataset, ()), attempts=None
            )
            for letter in dead:
                outcomes |= {
                    int(number): {"error": letter.reason} for number in letter.payload.numbers
                }
            for rows in good:
                gone = rows.kind is RowKind.DELETE
                named = (*binding.schema.key_names, binding.schema.timestamp)
                values = {
                    field.name: encode_column(rows.frame.get_column(field.name), field.dtype)
                    for field in binding.schema.fields
                    if not gone or field.name in named
                }
                for place, number in enumerate(rows.numbers.tolist()):
                    row = {name: column[place] for name, column in values.items()}
                    outcomes[number] = {"deleted" if gone else "row": row}
        found.append(
            {
                "dataset": binding.dataset,
                "branches": sorted(branches),
                "fields": _types(binding.schema),
                "messages": [
                    place | outcomes.get(number, {"left_out": True})
                    for number, place in enumerate(places)
                ],
            }
        )
    return found


def _place(partition: int, offset: int) -> Place:
    return {"partition": partition, "offset": offset}


def _places(messages: Sequence[ExternalMessage]) -> list[Place]:
    return [_place(message.partition, message.offset) for message in messages]


def _payload(decoded: DecodedMessages) -> Payload:
    return Payload(json_table(decoded.rows).columns, decoded.numbers.astype(np.int64))


def _types(schema: Schema) -> dict[str, str]:
    return {field.name: dtypes.show(field.dtype) for field in schema.fields}
