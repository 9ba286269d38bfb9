"""Files of each format are read from any row on, and what is no row is named."""

from __future__ import annotations

import gzip
import io
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fennel_core.connections.external_s3 import FileChanged
from fennel_core.connections.ranged_file import RangedFile
from fennel_core.sources.file_rows import FileFormat, FilePiece, FileUnreadable, file_pieces
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
