"""The writer of rows that have no offsets: each batch names the place that it follows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from fennel_core.ingest.store import ProducerRecord
from fennel_core.sources import positions, read_rows
from fennel_core.sources.errors import ReaderSuperseded, SourceRewound, StreamReplaced
from fennel_core.sources.messages import MESSAGE_BYTES
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.read_rows import (
    ArrowRows,
    MessageRows,
    RowBatch,
    StreamPlace,
    UnreadableRows,
)
from fennel_core.vocab.dead_letters import origin_of
from fennel_core.vocab.versions import decode
from fennel_core.wire.arrow_json import json_columns
from tests.support.ingest_world import DAY_US, catalog
from tests.support.source_world import (
    AT_US,
    LOST_AFTER,
    LOST_BEFORE,
    ORIGIN,
    POSITIONS,
    Fault,
    SourceWorld,
    batch,
    message,
    partition,
    row_batch,
    stream_source,
    users,
)


@pytest.fixture
async def sources() -> AsyncIterator[SourceWorld]:
    made = SourceWorld()
    made.world.commit(main=catalog(stream_source()))
    yield made
    await made.world.close()


def ages(sources: SourceWorld) -> list[int]:
    assert sorted(r["age"] for r in sources.read()) == sorted(
        r["age"] for r in sources.world.rows("w.topic.users.1")
    )
    return [row["age"] for row in sources.read()]


async def test_rows_their_request_and_the_cursor_are_in_one_transaction(
    sources: SourceWorld,
) -> None:
    writer = sources.writer()
    assert await writer.position() is None
    position = await writer.write_rows(row_batch(0, 3))
    assert (position.next, position.cursor) == (3, "row 3")
    await writer.write_rows(row_batch(3, 2))
    assert ages(sources) == [0, 1, 2, 3, 4]
    again = await sources.writer().position()
    assert again is not None
    assert (again.next, again.cursor) == (5, "row 5")


@pytest.mark.parametrize("fault", [LOST_AFTER, LOST_BEFORE])
async def test_a_batch_is_written_once_whatever_becomes_of_its_responses(
    sources: SourceWorld, fault: Fault
) -> None:
    faults = [fault]
    sources.fault = lambda: faults.pop() if faults else None
    await sources.writer().write_rows(row_batch(0, 2))
    await sources.writer().write_rows(row_batch(0, 2))
    assert ages(sources) == [0, 1]


async def test_a_reader_that_was_superseded_writes_nothing(sources: SourceWorld) -> None:
    first, second = sources.writer(), sources.writer()
    await first.write_rows(row_batch(0, 2))
    # As many rows of another file: the ordinals agree, and the cursor does not.
    await second.write_rows(row_batch(2, 3))
    other = replace(row_batch(2, 3), end=StreamPlace(5, "other file"))
    with pytest.raises(ReaderSuperseded, match=r"is at row 5.* follow row 2"):
        await first.write_rows(other)
    with pytest.raises(ReaderSuperseded):
        await first.write_rows(replace(row_batch(5, 1), after=StreamPlace(5, "other file")))
    assert ages(sources) == [0, 1, 2, 3, 4]


async def test_a_superseded_reader_begins_again_at_the_position_of_that_moment(
    sources: SourceWorld,
) -> None:
    first, second = sources.writer(), sources.writer()
    await second.write_rows(row_batch(0, 2))
    with pytest.raises(ReaderSuperseded):
        await first.write_rows(row_batch(5, 1))
    await second.write_rows(row_batch(2, 3))
    position = await first.position()
    assert position is not None
    assert (position.next, position.cursor) == (5, "row 5")


async def test_a_file_without_rows_moves_the_cursor(sources: SourceWorld) -> None:
    empty = RowBatch(StreamPlace(), StreamPlace(0, "file a"), ())
    position = await sources.writer().write_rows(empty)
    assert (position.next, position.cursor) == (0, "file a")
    await sources.writer().write_rows(replace(row_batch(0, 2), after=empty.end))
    assert ages(sources) == [0, 1]


async def test_what_a_source_remembers_is_written_with_its_rows(sources: SourceWorld) -> None:
    note = partition().note("file/1", b"seen")
    await sources.writer().write_rows(replace(row_batch(0, 2), remembered=(note,)))
    kept = [record.key for _, record in sources.world.messages(POSITIONS)]
    assert sorted(kept) == [b"0", b"0/file/1"]
    writer = sources.writer()
    assert (await writer.position()) is not None
    assert writer.notes() == {"file/1": b"seen"}


async def test_a_record_that_could_be_taken_for_a_position_is_not_remembered(
    sources: SourceWorld,
) -> None:
    for key in (b"0", b"1", b"file"):
        note = ProducerRecord(POSITIONS, 0, b"seen", (), key)
        with pytest.raises(AssertionError, match="key of a note"):
            await sources.writer().write_rows(replace(row_batch(0, 2), remembered=(note,)))
    assert sources.world.messages(POSITIONS) == []


async def test_rows_of_the_first_read_are_not_late(sources: SourceWorld) -> None:
    def old(first: int, **changes: object) -> RowBatch:
        part = users(first, 1)
        times = pa.array([AT_US - 400 * DAY_US], pa.timestamp("us", "UTC"))
        rows = part.rows.set_column(2, "at", times)
        return row_batch(first, 1, parts=(replace(part, rows=rows),), **changes)

    writer = sources.writer()
    for first in (0, 1):
        await writer.write_rows(row_batch(first, 1, never_late=True))
    await writer.write_rows(old(2, never_late=True))
    position = await writer.write_rows(old(3))
    counts = position.datasets[stream_source().identity]
    assert (counts.accepted, counts.late) == (3, 1)


async def test_parts_without_rows_are_dead_letters_with_their_place(sources: SourceWorld) -> None:
    lines = batch([message(user="bob", age=7, at=AT_US // 1000), b"broken"], first=40)
    places = np.array([7], dtype=np.int64)
    parts = (
        users(0, 2),
        MessageRows("file `b`", lines),
        UnreadableRows("file `c`", "no Parquet", ["c.parquet"], places),
    )
    position = await sources.writer().write_rows(row_batch(0, 5, parts=parts))
    assert [row["age"] for row in sources.read()] == [0, 1, 7]
    letters = [record for _, record in sources.world.messages("w.dead.1")]
    assert [origin_of(each.headers).source for each in letters] == [
        "file `b` at 41",
        "file `c` at 7",
    ]
    texts = [decode(each.value).get_column("row")[0] for each in letters]
    assert texts == ['{"value":"broken"}', '{"value":"c.parquet"}']
    assert position.datasets[stream_source().identity].dead == 2


async def test_a_table_is_cut_until_its_requests_fit(sources: SourceWorld) -> None:
    long = "x" * (MESSAGE_BYTES // 3)
    rows = pa.record_batch(
        {"user": [long, "u", long, long + long + long], "age": [0, 1, 2, 3], "at": [AT_US] * 4}
    )
    part = ArrowRows("file `a`", rows, np.arange(4))
    position = await sources.writer().write_rows(row_batch(0, 4, parts=(part,)))
    assert [row["age"] for row in sources.read()] == [0, 1, 2]
    assert position.datasets[stream_source().identity].dead == 1


async def test_bytes_that_are_no_text_cost_only_their_row(sources: SourceWorld) -> None:
    rows = pa.record_batch({"user": [b"a", b"\xff", b"c"], "age": [0, 1, 2], "at": [AT_US] * 3})
    part = ArrowRows("file `a`", rows, np.arange(3))
    await sources.writer().write_rows(row_batch(0, 3, parts=(part,)))
    assert sorted(row["age"] for row in sources.world.rows("w.topic.users.1")) == [0, 2]
    ((_, letter),) = sources.world.messages("w.dead.1")
    assert "Expected type str, got dict" in origin_of(letter.headers).reason


async def test_values_out_of_range_cost_only_their_row(sources: SourceWorld) -> None:
    times = pa.array([AT_US, 2**63 - 1, AT_US], pa.timestamp("us", "No/Where"))
    rows = pa.record_batch({"user": ["a", "b", "c"], "age": [0, 1, 2], "at": times})
    part = ArrowRows("file `a`", rows, np.arange(3))
    await sources.writer().write_rows(row_batch(0, 3, parts=(part,)))
    assert [row["age"] for row in sources.read()] == [0, 2]
    assert len(sources.world.messages("w.dead.1")) == 1


async def test_a_type_nested_too_deeply_is_one_letter(sources: SourceWorld) -> None:
    kind = pa.int64()
    for _ in range(2000):
        kind = pa.list_(kind)
    part = ArrowRows("file `a`", pa.record_batch([pa.nulls(3, kind)], ["user"]), np.arange(3))
    await sources.writer().write_rows(row_batch(0, 3, parts=(part,)))
    ((_, letter),) = sources.world.messages("w.dead.1")
    assert "none of 3 rows was read" in origin_of(letter.headers).reason


async def test_a_schema_without_a_json_form_is_one_letter(sources: SourceWorld) -> None:
    rows = pa.record_batch({"user": pa.nulls(1000, pa.month_day_nano_interval())})
    part = ArrowRows("file `a`", rows, np.arange(1000))
    await sources.writer().write_rows(row_batch(0, 1000, parts=(part,)))
    ((_, letter),) = sources.world.messages("w.dead.1")
    assert "none of 1000 rows was read" in origin_of(letter.headers).reason


async def test_a_dictionary_of_long_texts_is_cut_before_it_is_decoded(
    sources: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def counted(rows: pa.RecordBatch) -> dict:
        decoded.append(rows.num_rows)
        return json_columns(rows)

    monkeypatch.setattr(read_rows, "json_columns", counted)
    users = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array(["x" * 2**20]))
    rows = pa.record_batch({"user": users, "age": range(64), "at": [AT_US] * 64})
    part = ArrowRows("file `a`", rows, np.arange(64))
    await sources.writer().write_rows(row_batch(0, 64, parts=(part,)))
    assert [row["age"] for row in sources.read()] == list(range(64))
    assert max(decoded) <= MESSAGE_BYTES // 2**20


async def test_a_name_that_is_no_text_is_a_letter(sources: SourceWorld) -> None:
    rows = pa.record_batch([pa.array([1])], schema=pa.schema([pa.field(b"\xff", pa.int64())]))
    part = ArrowRows("file `a`", rows, np.arange(1))
    await sources.writer().write_rows(row_batch(0, 1, parts=(part,)))
    ((_, letter),) = sources.world.messages("w.dead.1")
    assert "is not UTF-8" in origin_of(letter.headers).reason


async def test_a_reader_of_another_stream_or_before_a_rewind_gets_no_position(
    sources: SourceWorld,
) -> None:
    await sources.writer().write_rows(row_batch(0, 1))
    with pytest.raises(StreamReplaced):
        await sources.writer(origin="other").position()
    with pytest.raises(SourceRewound):
        await sources.writer(rewinds=1).position()


def test_positions_of_earlier_releases_are_read() -> None:
    old = b'{"datasets":{},"next":42,"origin":"cluster/topic","rewinds":3}'
    assert positions.decode(old) == SourcePosition(42, "cluster/topic", rewinds=3)
    new = SourcePosition(1, ORIGIN, cursor="file a, row 7")
    assert positions.decode(positions.encode(new)) == new


async def test_sources_of_rows_that_are_left_out_were_read_and_those_of_a_cursor_were_not() -> None:
    sources, read = SourceWorld(), []
    left_out = stream_source(since_us=AT_US + DAY_US)
    sources.world.commit(main=catalog(left_out))
    writer = sources.writer()
    writer._on_commit = lambda _, of: read.append(list(of))
    await writer.write_rows(row_batch(0, 2))
    place = row_batch(0, 2).end
    await writer.write_rows(RowBatch(place, replace(place, cursor="file b"), ()))
    assert read == [[left_out], []]
    assert sources.world.rows("w.topic.users.1") == []
    await sources.world.close()
