"""The first rows of the newest files of a source: to show what would become of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fennel_core.connections.external_delta import source_place
from fennel_core.connections.external_s3 import (
    ExternalBucket,
    FileChanged,
    FileRefused,
    ListedFile,
    OpenSecret,
)
from fennel_core.graph.delta_keys import DELTA
from fennel_core.graph.s3_paths import file_path
from fennel_core.settings.model import Settings
from fennel_core.sources.bucket_files import opened_bucket, pieces_of
from fennel_core.sources.delta_changes import DeltaChanges
from fennel_core.sources.delta_tables import delta_store
from fennel_core.sources.file_rows import FileUnreadable
from fennel_core.sources.files import plan
from fennel_core.sources.messages import DecodedMessages, MessageBatch, decoded_messages
from fennel_core.sources.read_rows import (
    ArrowRows,
    MessageRows,
    ReadPart,
    RefusedRows,
    UnreadableRows,
    requests_of,
)
from fennel_core.wire.connectors import S3Table

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PAGES: Final = 20
"""Of a listing, 1000 objects each: the newest of them are looked at, not of a million."""
FILES: Final = 5
"""Files that are opened: some may have no rows."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row of a file: its values, or why there are none (a str)."""

    key: str
    number: int
    row: dict[str, Any] | str


def newest_file_rows(
    settings: Settings, table: S3Table, open_secret: OpenSecret, count: int
) -> list[FileRow]:
    """Return up to `count` of the first rows of the files that are read last; blocks.

    Of a Delta table, of its newest version. Raises `ExternalBucketUnusable`,
    `ExternalTableUnusable`, `SourceError` and `SecretUnreadable`.
    """
    bucket = opened_bucket(table, settings, open_secret)
    if table.format == DELTA:
        return _first_table_rows(bucket, table, count)
    client, path = bucket.client(), file_path(table.prefix, table.suffix)
    listed = [
        file
        for page in islice(bucket.files(client, table.prefix), PAGES)
        for file in page
        if path.matches(file.key)
    ]
    left = plan(listed, path, {}, None, presorted=table.presorted, rewinds=0)
    found: list[FileRow] = []
    for file in left.files[: -FILES - 1 : -1]:
        if len(found) == count:
            break
        found += _first_rows(bucket, client, table, file, count - len(found))
    return found


def decoded_rows(rows: list[FileRow]) -> DecodedMessages:
    """Return the rows as those of messages are."""
    texts = [None if isinstance(each.row, str) else _encode(each.row) for each in rows]
    return decoded_messages([each.row for each in rows], texts)


def _first_table_rows(bucket: ExternalBucket, table: S3Table, count: int) -> list[FileRow]:
    """Return the first rows of the newest version of a Delta table."""
    place = source_place(bucket, table)
    changes = DeltaChanges(delta_store(place), place.head().shape.table_id, (), None)
    found: list[FileRow] = []
    for piece in changes.pieces():
        for part in piece.parts:
            found += _rows_of(place.path, part, count - len(found))
        if len(found) >= count:
            break
    return found


def _first_rows(
    bucket: ExternalBucket, client: S3Client, table: S3Table, file: ListedFile, count: int
) -> list[FileRow]:
    found: list[FileRow] = []
    try:
        for piece in pieces_of(bucket, client, table, file):
            for part in piece.parts:
                rows = _rows_of(file.key, part, count - len(found))
                # What is no row comes behind the rows of its part.
                found += sorted(rows, key=lambda each: each.number)
                if len(found) >= count:
                    return found
    except (FileUnreadable, FileRefused, FileChanged) as wrong:
        found.append(FileRow(file.key, len(found), f"the file cannot be read: {wrong}"))
    return found


def _rows_of(key: str, part: ReadPart, count: int) -> Iterator[FileRow]:
    """Yield the first rows of a part, carried as the source carries them."""
    for request in requests_of("", "", _start_of(part, count)):
        places = request.source.places.tolist()
        if isinstance(request, RefusedRows):
            yield from (FileRow(key, place, request.reason) for place in places)
            continue
        columns = request.payload.columns
        for at, place in enumerate(places):
            yield FileRow(key, place, {name: each[at] for name, each in columns.items()})


def _start_of(part: ReadPart, count: int) -> ReadPart:
    match part:
        case ArrowRows(title, rows, places):
            return ArrowRows(title, rows.slice(0, count), places[:count])
        case MessageRows(title, messages):
            cut = MessageBatch(messages.offsets[:count], messages.values[:count])
            return MessageRows(title, cut)
        case UnreadableRows(title, reason, texts, places):
            return UnreadableRows(title, reason, texts[:count], places[:count])
