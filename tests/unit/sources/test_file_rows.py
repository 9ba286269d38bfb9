"""Files of each format are read from any row on, and what is no row is named."""

from __future__ import annotations

import datetime as dt
import gzip
import io
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fennel_core.connections.external_s3 import FileChanged
from fennel_core.connections.ranged_file import RangedFile
from fennel_core.sources.file_rows import (
    BLOCK_BYTES,
    FileFormat,
    FilePiece,
    FileUnreadable,
    file_pieces,
)
from fennel_core.sources.messages import TRANSACTION_ROWS
from fennel_core.sources.read_rows import ArrowRows, MessageRows, UnreadableRows

CSV, JSON, PARQUET = FileFormat("csv"), FileFormat("json"), FileFormat("parquet")


class Content(RangedFile):
    """A file in memory that counts what is read, and fails after `until` bytes."""

    def __init__(self, content: bytes, until: int = 1 << 60) -> None:
        super().__init__(len(content))
        self.content, self.until, self.read_bytes = content, until, 0

    def fetch(self, first: int, size: int) -> bytes:
        if first + size > self.until:
            raise FileChanged("the file was overwritten while it was read")
        self.read_bytes += size
        return self.content[first : first + size]


def read(form: FileFormat, content: bytes, first: int = 0, name: str = "f") -> list[FilePiece]:
    return list(file_pieces(form, "file", name, Content(content), first))


def rows(pieces: list[FilePiece]) -> dict[int, object]:
    """Return the row or the reason at each place."""
    found: dict[int, object] = {}
    for piece in pieces:
        for part in piece.parts:
            match part:
                case ArrowRows():
                    new = dict(zip(part.places.tolist(), part.rows.to_pylist(), strict=True))
                case MessageRows(_, messages):
                    new = dict(zip(messages.offsets.tolist(), messages.values, strict=True))
                case UnreadableRows():
                    new = {int(at): part.reason for at in part.places}
            assert not new.keys() & found.keys()
            found |= new
    return found


def parquet(count: int, group: int) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"n": range(count), "s": [f"s{n}" for n in range(count)]})
    pq.write_table(table, sink, row_group_size=group)
    return sink.getvalue()


CASES = [
    (CSV, b"n,s\n" + b"".join(b"%d,s%d\n" % (n, n) for n in range(25_000)), "f.csv"),
    (JSON, b"".join(b'{"n": %d}\n' % n for n in range(25_000)), "f.json"),
    (JSON, gzip.compress(b"".join(b'{"n": %d}\n' % n for n in range(25_000))), "f.json.gz"),
    (PARQUET, parquet(25_000, 7_000), "f.parquet"),
]


@pytest.mark.parametrize(("form", "content", "name"), CASES, ids=[c[2] for c in CASES])
@pytest.mark.parametrize("first", [0, 1, 9_999, 10_000, 14_001, 24_999, 25_000])
def test_rows_from_any_row_on(form: FileFormat, content: bytes, name: str, first: int) -> None:
    pieces = read(form, content, first, name)
    assert list(rows(pieces)) == list(range(first, 25_000))
    whole = rows(read(form, content, 0, name))
    assert rows(pieces) == {at: whole[at] for at in range(first, 25_000)}
    ends = [first, *(piece.end for piece in pieces)]
    assert all(0 < b - a <= TRANSACTION_ROWS for a, b in pairwise(ends))
    assert ends[-1] == 25_000


def test_row_groups_that_were_passed_are_not_read() -> None:
    body = Content(parquet(400_000, 50_000))
    assert sum(p.end > 0 for p in file_pieces(PARQUET, "file", "f", body, 399_990)) == 1
    assert body.read_bytes < len(body.content) / 2


def test_lines_of_csv_with_other_fields_are_named_and_the_rest_is_read() -> None:
    content = b"a,b\n1,2\n1,2,3\n4,5\nx\n6,7\n8\n"
    found = rows(read(CSV, content))
    assert found == {
        0: {"a": b"1", "b": b"2"},
        1: "the line has 3 fields, not 2",
        2: {"a": b"4", "b": b"5"},
        3: "the line has 1 fields, not 2",
        4: {"a": b"6", "b": b"7"},
        5: "the line has 1 fields, not 2",
    }
    for first in range(7):
        left = rows(read(CSV, content, first))
        assert left == {at: value for at, value in found.items() if at >= first}


def test_csv_has_quotes_nulls_delimiters_and_headers() -> None:
    form = FileFormat("csv", "|", ("a", "b"))
    content = '\ufeff1|"x|\ny"\n2|\n3|""\n'.encode("utf-8")[3:]
    assert list(rows(read(form, content)).values()) == [
        {"a": b"1", "b": b"x|\ny"},
        {"a": b"2", "b": None},
        {"a": b"3", "b": b""},
    ]
    marked = "\ufeffa,b\n1,2\n".encode()
    assert rows(read(CSV, marked)) == {0: {"a": b"1", "b": b"2"}}


@pytest.mark.parametrize(
    ("form", "content"),
    [(CSV, b""), (CSV, b"a,b\n"), (FileFormat("csv", ",", ("a",)), b""), (JSON, b"")],
)
def test_a_file_without_rows_is_read(form: FileFormat, content: bytes) -> None:
    assert rows(read(form, content)) == {}


def test_an_empty_line_is_no_row() -> None:
    assert rows(read(JSON, b'{"n":0}\n\n{"n":1}\n\n')) == {0: b'{"n":0}', 2: b'{"n":1}'}


@pytest.mark.parametrize(
    ("form", "content", "name"),
    [
        (PARQUET, parquet(100, 100)[:-20], "f.parquet"),
        (PARQUET, b"", "f.parquet"),
        (PARQUET, b"PAR1 no parquet PAR1", "f.parquet"),
        (CSV, gzip.compress(b"a,b\n" + b"1,2\n" * 9000)[:-30], "f.csv.gz"),
        (JSON, b"no gzip", "f.json.gz"),
        (CSV, b"a,a\n1,2\n", "f.csv"),
    ],
)
def test_a_file_that_is_not_of_its_format_is_unreadable(
    form: FileFormat, content: bytes, name: str
) -> None:
    with pytest.raises(FileUnreadable):
        read(form, content, name=name)


@pytest.mark.parametrize(("form", "content", "name"), CASES, ids=[c[2] for c in CASES])
def test_a_file_that_changes_is_not_called_unreadable(
    form: FileFormat, content: bytes, name: str
) -> None:
    with pytest.raises(FileChanged):
        list(file_pieces(form, "file", name, Content(content, until=len(content) - 9), 0))


A_ROW = {0: {"a": b"1", "b": b"2"}}


@pytest.mark.parametrize("begin", [b"\n", b"\r\n\n", b"\xef\xbb\xbf\n", b"\n" * 2_000_000])
def test_empty_lines_before_the_header_of_csv_are_left_out(begin: bytes) -> None:
    assert rows(read(CSV, begin + b"a,b\n1,2\n")) == A_ROW
    assert rows(read(FileFormat("csv", ",", ("a", "b")), begin + b"1,2\n")) == A_ROW


@pytest.mark.parametrize("members", [(b"", b"a,b\n1,2\n"), (b"a,", b"b\n", b"", b"1,2\n", b"")])
def test_every_member_of_a_gzip_is_read(members: tuple[bytes, ...]) -> None:
    content = b"".join(gzip.compress(member) for member in members)
    assert rows(read(CSV, content, name="f.gz")) == A_ROW
    lines = b"".join(gzip.compress(each) for each in (b"", b'{"n":0}\n{"n"', b":1}"))
    assert rows(read(JSON, lines, name="f.gz")) == {0: b'{"n":0}', 1: b'{"n":1}'}


@pytest.mark.parametrize("open_row", ['3,"4', '"3', '3,"4""', '3,4,"5', '3,"'])
def test_a_quote_that_is_not_closed_is_named_from_its_row_on(open_row: str) -> None:
    content = f"a,b\n1,2\n{open_row}\n5,6\n7,8\n".encode()
    pieces = read(CSV, content)
    reason = "a quote that this row opens is not closed by the end of the file"
    assert rows(pieces) == A_ROW | {1: reason}
    (refused,) = (part for part in pieces[-1].parts if isinstance(part, UnreadableRows))
    assert "7" in refused.texts[0]
    assert "end of file" not in refused.texts[0]
    assert rows(read(CSV, content, 1)) == {1: reason}
    assert rows(read(CSV, content, 2)) == {}
    one = rows(read(FileFormat("csv", ",", ("a",)), b'1\n"2\n3\n'))
    assert one == {0: {"a": b"1"}, 1: reason}


def test_the_last_line_of_csv_may_end_with_the_file() -> None:
    for end in (b"", b"\n", b"\r\n", b"\n\n"):
        assert rows(read(CSV, b'a,b\n1,"2"' + end)) == A_ROW
        assert rows(read(FileFormat("csv", ",", ("a",)), b"1" + end)) == {0: {"a": b"1"}}


@pytest.mark.parametrize("letter", ["x", "\u00e4"])
@pytest.mark.parametrize("size", [1_100_000, 3_900_000])
def test_a_field_of_csv_may_be_as_large_as_a_row(letter: str, size: int) -> None:
    long = (letter * size).encode()
    content = b"a,b\n1,2\n3," + long + b"\nragged\n5,6\n"
    found = rows(read(CSV, content))
    assert found == A_ROW | {
        1: {"a": b"3", "b": long},
        2: "the line has 1 fields, not 2",
        3: {"a": b"5", "b": b"6"},
    }
    assert rows(read(CSV, content, 2)) == {at: found[at] for at in (2, 3)}


def test_a_row_of_csv_that_is_too_large_keeps_those_before_it() -> None:
    content = b"a,b\n" + b"1,2\n" * 20_000 + b"3," + b"x" * 40_000_000 + b"\n"
    found: list[FilePiece] = []
    with pytest.raises(FileUnreadable):
        found += file_pieces(CSV, "file", "f", Content(content), 0)
    assert list(rows(found)) == list(range(20_000))


def test_lines_of_csv_that_are_no_utf8_lose_nothing() -> None:
    content = b"a,b\n\xe4,\xc3\xa4\nx\xe4\n,\n5,\xff6\n"
    found = rows(read(CSV, content))
    assert found == {
        0: {"a": b"\xe4", "b": b"\xc3\xa4"},
        1: "the line has 1 fields, not 2",
        2: {"a": None, "b": None},
        3: {"a": b"5", "b": b"\xff6"},
    }


def test_lines_of_csv_that_are_all_invalid_come_in_pieces() -> None:
    pieces = read(FileFormat("csv", ",", ("a", "b")), b"x\n" * 1_200_000)
    ends = [0, *(piece.end for piece in pieces)]
    assert all(0 < b - a <= TRANSACTION_ROWS for a, b in pairwise(ends))
    assert ends[-1] == 1_200_000
    assert sum(len(part.places) for piece in pieces for part in piece.parts) == 1_200_000


@pytest.mark.parametrize("before", range(BLOCK_BYTES - 12, BLOCK_BYTES + 1))
def test_a_line_end_in_a_field_is_kept_where_blocks_meet(before: int) -> None:
    lines = b"a,b\r\n" + b"1,2\r\n" * (before // 5 - 20)
    filler = b"x" * (before - len(lines) - 4)
    content = lines + filler + b',"y\r\n\r\nz"\r\n3,4\r\n'
    found = list(rows(read(CSV, content)).values())
    assert found[-2:] == [{"a": filler, "b": b"y\r\n\r\nz"}, {"a": b"3", "b": b"4"}]


@pytest.mark.parametrize("cut", range(9_000, 9_012))
def test_rows_of_csv_before_damage_are_read(cut: int) -> None:
    content = gzip.compress(b"a,b\n" + b"".join(b"%d,%d\n" % (n, -n) for n in range(9_000)))
    found: list[FilePiece] = []
    with pytest.raises(FileUnreadable):
        found += file_pieces(CSV, "file", "f.gz", Content(content[:-cut]), 0)
    expected = {n: {"a": b"%d" % n, "b": b"%d" % -n} for n in range(found[-1].end)}
    assert len(expected) > 100
    assert rows(found) == expected


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_rows_of_json_before_damage_are_read(damage: str) -> None:
    whole = gzip.compress(b"".join(b'{"n":%d,"m":"%d"}\n' % (n, -n) for n in range(9_000)))
    content = whole[:-2_000] if damage == "cut" else whole + b"garbage"
    found: list[FilePiece] = []
    with pytest.raises(FileUnreadable):
        found += file_pieces(JSON, "file", "f.gz", Content(content), 0)
    read_rows = rows(found)
    assert read_rows == {n: b'{"n":%d,"m":"%d"}' % (n, -n) for n in range(len(read_rows))}
    assert len(read_rows) > 5_000
    assert len(read_rows) == 9_000 or damage == "cut"


def test_a_byte_order_mark_is_no_part_of_json() -> None:
    assert rows(read(JSON, b'\xef\xbb\xbf{"n":0}\n{"n":1}\n')) == {0: b'{"n":0}', 1: b'{"n":1}'}


def test_timestamps_of_int96_have_all_years() -> None:
    noon = dt.datetime(2024, 1, 2, 12, 0, 0, 6, dt.UTC).replace(tzinfo=None)
    times = [noon.replace(year=year) for year in (1, 1600, 2024, 2300, 9999)]
    sink = io.BytesIO()
    table = pa.table({"at": pa.array([*times, None], pa.timestamp("us"))})
    pq.write_table(table, sink, use_deprecated_int96_timestamps=True)
    found = rows(read(PARQUET, sink.getvalue()))
    assert [row["at"] for row in found.values()] == [*times, None]


def test_rows_of_parquet_that_are_large_are_read_in_small_batches() -> None:
    sink = io.BytesIO()
    table = pa.table({"s": [f"{n:07}" * 15_000 for n in range(500)]})
    pq.write_table(table, sink, write_batch_size=10, use_dictionary=False)
    del table
    before = pa.total_allocated_bytes()
    most = end = 0
    for piece in file_pieces(PARQUET, "file", "f", Content(sink.getvalue()), 0):
        most, end = max(most, pa.total_allocated_bytes() - before), piece.end
    assert end == 500
    assert most < 30_000_000


def test_memory_that_is_used_up_says_nothing_about_the_file() -> None:
    class NoMemory(RangedFile):
        def fetch(self, first: int, size: int) -> bytes:
            raise pa.ArrowMemoryError("malloc of size 1 failed")

    for form in (CSV, JSON, PARQUET):
        with pytest.raises(MemoryError):
            list(file_pieces(form, "file", "f", NoMemory(100), 0))
