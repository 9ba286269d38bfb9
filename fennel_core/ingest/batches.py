"""Build the records of one transaction from validated requests: positions, lateness, partitions.

All requests of a transaction share its stamp and their rows are numbered consecutively, so a
position is unique and follows the order of requests. A row has the same number in every dataset it
feeds. Keyed rows go to the partition of their key bytes, where lookups expect them. Keyless rows
may go anywhere: a whole request goes to one partition, round-robin, which keeps records few. The
endpoint's raw topic receives each request as it was sent, with its position and everything that was
decided about its rows here (`vocab.raw_batches`), so a later version of a dataset can be recomputed
from it. Requests of one transaction share raw records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from fennel_core.admission.dead_letters import dead_letter_frame
from fennel_core.admission.validator import DeadLetter, RowKind, TypedRows
from fennel_core.blueprints.spec import SourceBinding
from fennel_core.ingest.acceptance import (
    SourceAdvance,
    SourceProgress,
    has_ended,
    needs_recording,
    oldest_accepted,
)
from fennel_core.ingest.catalogs import EndpointTarget
from fennel_core.ingest.store import CatalogVersion, ProducerRecord, TransactionStart
from fennel_core.vocab import raw_batches
from fennel_core.vocab.dead_letters import (
    INGEST,
    DeadLetterKind,
    DeadLetterOrigin,
    DeadLetterTarget,
)
from fennel_core.vocab.ids import DatasetName, Identity, Micros, TopicName
from fennel_core.vocab.keys import KEY_GROUPS, key_bytes, partition_of
from fennel_core.vocab.position import stamp
from fennel_core.vocab.raw_batches import RawRequest
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import FORMAT_HEADER, IS_TOMBSTONE, POS, SIGN, encode_frame

RAW_RECORD_BYTES = 1 << 20
"""Bodies per raw record, unless one request is larger."""
ROWS_PER_TRANSACTION = 1 << 32
ADDED = pl.Series(SIGN, [1], dtype=pl.Int8)
PRESENT = pl.Series(IS_TOMBSTONE, [False])
DELETED = pl.Series(IS_TOMBSTONE, [True])
Feed = tuple[Identity, TopicName]
"""A source and a topic that it feeds: several, if branches share the source but not the dataset."""


NAMED_PLACES = 20
"""Places in a source that the headers of a dead letter name; a batch may have thousands."""


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Where the rows of a request come from: a partition of a source, and the place of each row."""

    title: str
    """For people: `Kafka topic `orders`[3]`."""
    places: npt.NDArray[np.int64]
    """Per row: its offset in the partition."""
    names: Sequence[str] = ()
    """Per row: what people know its place by; empty where that is its offset."""

    def text(self, numbers: npt.NDArray[np.int64]) -> str:
        """Return where the rows with these numbers are, for people."""
        first = numbers[:NAMED_PLACES].tolist()
        named = ", ".join(self.names[n] if self.names else str(self.places[n]) for n in first)
        rest = len(numbers) - NAMED_PLACES
        return f"{self.title} at {named}" + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The rows of a request for one target."""

    target: EndpointTarget
    rows: TypedRows


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One validated request: what a client logged, or a batch that a source read.

    It has `count` rows. `round_robin` chooses the partition of rows without a key, and of raw
    records.
    """

    version: CatalogVersion
    body: bytes
    count: int
    round_robin: int
    raw: tuple[tuple[TopicName, int], ...]
    """Raw topics of the endpoint, with their partitions."""
    judged_for: frozenset[TopicName]
    """Topics of every target of the endpoint."""
    entries: tuple[TargetRows, ...]
    dead: tuple[tuple[EndpointTarget, DeadLetter], ...]
    source: SourceRows | None = None
    """Where a source read the rows; None for rows that were logged."""


@dataclass(frozen=True, slots=True)
class LateRows:
    """Late rows of one source: how many, and the event time of the last."""

    binding: SourceBinding
    rows: int
    last_us: Micros


@dataclass(frozen=True, slots=True)
class AcceptedRows:
    """Rows of one source that enter, and their largest event time; None if all are deletes.

    Deletes have the database's time and not that of an event, so they make no row late.
    """

    binding: SourceBinding
    rows: int
    latest_us: Micros | None


@dataclass(frozen=True, slots=True)
class IngestTransaction:
    """The records of one transaction, and its effect on sources and metrics."""

    messages: tuple[ProducerRecord, ...]
    advances: tuple[SourceAdvance, ...]
    discarded: tuple[LateRows, ...]
    accepted: tuple[AcceptedRows, ...]
    dead: tuple[tuple[SourceBinding, int], ...]
    """Dead-lettered rows per source."""


def build_transaction(
    requests: Sequence[PreparedRequest], start: TransactionStart, server: int
) -> IngestTransaction:
    """Build the transaction that writes `requests` in their order, with its effect on sources.

    `server` is this process's number in positions.
    """
    messages: list[ProducerRecord] = []
    taken: dict[Feed, list[tuple[int, pl.DataFrame]]] = {}
    targets: dict[Feed, EndpointTarget] = {}
    discarded: list[LateRows] = []
    raw = _RawRecords()
    first = 0
    for request in requests:
        positions = stamp(start.hlc, server, request.count, first)
        first += request.count
        assert first < ROWS_PER_TRANSACTION, "rows of a transaction have 32-bit numbers"
        messages += _dead_letters(request, positions)
        judged: dict[DatasetName, _Judged] = {}
        for entry in request.entries:
            binding = entry.target.binding
            frame, late = _in_time(entry.rows, binding, start)
            judged.setdefault(binding.dataset, _Judged()).add(entry.rows, frame)
            if late is not None:
                discarded.append(late)
            if len(frame.frame):
                targets[_feed(binding)] = entry.target
                taken.setdefault(_feed(binding), []).append(
                    (request.round_robin, versions_of(frame, binding.schema, positions))
                )
        if request.count:
            raw.add(request, _raw_request(request, judged, start, positions))
    messages += raw.messages()
    accepted = []
    for feed, parts in taken.items():
        target = targets[feed]
        messages += typed_messages(target, parts)
        accepted.append(_accepted(target.binding, [part for _, part in parts]))
    dead = tuple(
        (target.binding, len(rejected.payload))
        for request in requests
        for target, rejected in request.dead
    )
    return IngestTransaction(
        tuple(messages),
        _advances(start, requests, accepted, discarded),
        tuple(discarded),
        tuple(accepted),
        dead,
    )


def _feed(binding: SourceBinding) -> Feed:
    return binding.identity, binding.topic


def _accepted(binding: SourceBinding, parts: Sequence[pl.DataFrame]) -> AcceptedRows:
    latest = [
        present.get_column(binding.schema.timestamp).to_physical().max()
        for part in parts
        if len(present := part.filter(~pl.col(IS_TOMBSTONE)))
    ]
    rows = sum(map(len, parts))
    return AcceptedRows(binding, rows, Micros(max(latest)) if latest else None)  # type: ignore[arg-type,type-var]  # integers: no part is empty


def _in_time(
    rows: TypedRows, binding: SourceBinding, start: TransactionStart
) -> tuple[TypedRows, LateRows | None]:
    """Drop late rows, or all rows if the source has ended.

    Rows after the end do not belong to the source and are not counted as late.
    """
    progress = start.progress.get(binding.identity, SourceProgress())
    # A partition of a stream that is silent does not say that the others are: its reader decides.
    if binding.positions is None and has_ended(progress, binding.source, start.now_us):
        return replace(rows, frame=rows.frame.clear(), numbers=rows.numbers[:0]), None
    if rows.kind is not RowKind.EVENT:
        return rows, None
    oldest = oldest_accepted(progress, binding.source, start.now_us)
    if oldest is None:
        return rows, None
    times = rows.frame.get_column(binding.schema.timestamp).to_physical()
    if not len(times) or int(times.min()) >= oldest:  # type: ignore[arg-type]  # an integer column's minimum is an int
        return rows, None
    keep = times >= oldest
    late = times.filter(~keep)
    return rows.filter(keep), LateRows(binding, len(late), Micros(late[-1]))


def versions_of(rows: TypedRows, schema: Schema, positions: pa.Array) -> pl.DataFrame:
    """Return the versions of rows; `positions[n]` belongs to the row with number n."""
    own = (
        positions if len(rows.numbers) == len(positions) else positions.take(pa.array(rows.numbers))
    )
    count = len(rows.numbers)
    assert rows.frame.columns == list(schema.names), "rows come in the order of the schema"
    return rows.frame.hstack(
        [
            pl.Series(POS, own, dtype=pl.Binary),
            ADDED.new_from_index(0, count),
            (DELETED if rows.kind is RowKind.DELETE else PRESENT).new_from_index(0, count),
        ]
    )


def typed_messages(
    target: EndpointTarget, parts: Sequence[tuple[int, pl.DataFrame]]
) -> Iterator[ProducerRecord]:
    """Yield the records of versions; each part has the number that chooses its partition."""
    topic, keys = target.binding.topic, target.binding.schema.key_names
    if keys:
        frame = (
            parts[0][1]
            if len(parts) == 1
            else pl.concat([part for _, part in parts], how="vertical")
        )
        for partition, share in split(frame, keys, target.partitions):
            yield ProducerRecord(topic, partition, encode_frame(share), (FORMAT_HEADER,))
        return
    shares: dict[int, list[pl.DataFrame]] = {}
    for round_robin, part in parts:
        shares.setdefault(round_robin % target.partitions, []).append(part)
    for partition, frames in shares.items():
        yield ProducerRecord(
            topic,
            partition,
            encode_frame(frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical")),
            (FORMAT_HEADER,),
        )


def split(
    frame: pl.DataFrame, keys: Sequence[str], partitions: int
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield the non-empty parts of `frame` by the partition of the key; rows keep their order."""
    if len(frame) == 1 or partitions == 1:
        yield partition_of(key_bytes(frame[:1], keys)[0], partitions), frame
        return
    hashes = np.fromiter(map(crc32, key_bytes(frame, keys)), dtype=np.int64, count=len(frame))
    # As vocab.keys.partition_of, for a whole column.
    targets = hashes % KEY_GROUPS * partitions // KEY_GROUPS
    for target in np.unique(targets).tolist():
        yield target, frame.filter(pl.Series(targets == target))


@dataclass(slots=True)
class _Judged:
    """Row numbers of a request that sources of one dataset took, and those that they dropped."""

    taken: list[npt.NDArray[np.int64]] = field(default_factory=list)
    dropped: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, before: TypedRows, after: TypedRows) -> None:
        self.taken.append(after.numbers)
        if len(after.numbers) < len(before.numbers):
            self.dropped.append(np.setdiff1d(before.numbers, after.numbers))

    def late(self) -> list[int]:
        """Return the rows that no source of the dataset took in time, and at least one dropped."""
        if not self.dropped:
            return []
        late: list[int] = np.setdiff1d(
            np.concatenate(self.dropped), np.concatenate(self.taken)
        ).tolist()
        return late


def _raw_request(
    request: PreparedRequest,
    judged: Mapping[DatasetName, _Judged],
    start: TransactionStart,
    positions: pa.Array,
) -> RawRequest:
    late = {dataset: rows for dataset, each in judged.items() if (rows := each.late())}
    return RawRequest(
        request.body,
        request.count,
        request.judged_for,
        late,
        start.now_us,
        positions[0].as_py(),
    )


@dataclass(slots=True)
class _RawRecords:
    """The raw records of a transaction: few, because each holds as many requests as fit."""

    groups: dict[TopicName, list[tuple[int, list[RawRequest]]]] = field(default_factory=dict)
    """Per topic: partition and requests of each record."""
    sizes: dict[TopicName, int] = field(default_factory=dict)
    """Bytes in the last record of each topic."""

    def add(self, request: PreparedRequest, raw: RawRequest) -> None:
        size = len(raw.body)
        for topic, partitions in request.raw:
            records = self.groups.setdefault(topic, [])
            if not records or self.sizes[topic] + size > RAW_RECORD_BYTES:
                records.append((request.round_robin % partitions, []))
                self.sizes[topic] = 0
            records[-1][1].append(raw)
            self.sizes[topic] += size

    def messages(self) -> Iterator[ProducerRecord]:
        for topic, records in self.groups.items():
            for partition, requests in records:
                yield ProducerRecord(
                    topic, partition, raw_batches.encode(requests), raw_batches.HEADERS
                )


def _dead_letters(request: PreparedRequest, positions: pa.Array) -> Iterator[ProducerRecord]:
    for target, dead in request.dead:
        source = "" if request.source is None else request.source.text(dead.payload.numbers)
        # Only messages that are no rows have no body: nothing of them is in a raw request.
        kind = DeadLetterKind.NOT_ADMITTED if request.body else DeadLetterKind.UNREADABLE
        yield dead_letter_record(
            target, dead, positions, request.round_robin % target.partitions, kind, source
        )


def dead_letter_record(
    target: EndpointTarget,
    dead: DeadLetter,
    positions: pa.Array,
    partition: int,
    kind: DeadLetterKind,
    source: str,
) -> ProducerRecord:
    """Return the record of a letter; `positions[n]` belongs to the row with number n."""
    binding = target.binding
    origin = DeadLetterOrigin(
        kind,
        INGEST,
        binding.dataset,
        dead.reason,
        source,
        DeadLetterTarget(binding.topic, binding.identity, f"{binding.webhook}/{binding.endpoint}"),
        dead.kind,
    )
    return ProducerRecord(
        binding.dead_letters,
        partition,
        encode_frame(dead_letter_frame(binding.dataset, dead, positions)),
        origin.headers(),
    )


def _advances(
    start: TransactionStart,
    requests: Sequence[PreparedRequest],
    accepted: Sequence[AcceptedRows],
    discarded: Sequence[LateRows],
) -> tuple[SourceAdvance, ...]:
    """Return the advances to record; none for a source whose progress is unchanged."""
    bindings = {
        e.target.binding.identity: e.target.binding for request in requests for e in request.entries
    }
    latest = {a.binding.identity: a.latest_us for a in accepted}
    dropped: dict[Feed, int] = {}
    for late in discarded:
        feed = _feed(late.binding)
        dropped[feed] = dropped.get(feed, 0) + late.rows
    # A source drops the same rows for each of its topics.
    late_rows = {identity: rows for (identity, _), rows in dropped.items()}
    advances = [
        SourceAdvance(identity, latest.get(identity), late_rows.get(identity, 0))
        for identity in bindings
    ]
    return tuple(
        a
        for a in advances
        if needs_recording(
            start.progress.get(a.identity, SourceProgress()), a, bindings[a.identity].source
        )
    )
