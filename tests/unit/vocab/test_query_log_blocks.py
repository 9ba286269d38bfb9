"""Blocks of logged queries keep every type, and leave out what was erased."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import msgspec
import polars as pl

from fennel_core.vocab import query_log_blocks as blocks
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.versions import decode

START = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
USERS = DatasetName("Users")
ONE, TWO = (blocks.subject(USERS, ("uid",), bytes([n])) for n in (1, 2))


def rows(
    ids: list[str],
    features: dict[str, pl.Series] | None = None,
    *,
    of_rows: list[list[bytes]] | None = None,
    of_requests: list[list[bytes]] | None = None,
) -> pl.DataFrame:
    count = len(ids)
    own = {
        blocks.REQUEST_ID: ids,
        blocks.ROW: list(range(count)),
        blocks.TIMESTAMP: [START + dt.timedelta(seconds=n) for n in range(count)],
        blocks.ROW_SUBJECTS: of_rows or [[]] * count,
        blocks.REQUEST_SUBJECTS: of_requests or [[]] * count,
    }
    frame = pl.DataFrame(own, schema=blocks.ROW_COLUMNS)
    return frame.with_columns(**(features or {"F.id": pl.Series(range(count), dtype=pl.Int64)}))


def block(frame: pl.DataFrame, workflow: str = "fraud") -> blocks.LogBlock:
    return blocks.block_of(frame, workflow=workflow, branch="main", commit="c1", sampling_rate=0.5)


def test_blocks_of_different_features_share_a_message_and_keep_their_types() -> None:
    features = {
        "F.amount": pl.Series([Decimal("1.25"), None], dtype=pl.Decimal(38, 2)),
        "F.tags": pl.Series([["a", None], []], dtype=pl.List(pl.String())),
        "F.place": pl.Series([{"city": "Rom", "at": [1.5]}, None]),
        "F.at": pl.Series([START, None], dtype=pl.Datetime("us", "UTC")),
        "F.raw": pl.Series([b"\xff", b""]),
        "F.score": pl.Series([float("nan"), None], dtype=pl.Float64),
    }
    first, second = rows(["r1", "r2"], features), rows(["r3"])
    sent = [block(first), block(second, "ads")]
    found = blocks.blocks_of(decode(blocks.encode(sent)))
    assert found == sent
    dropped = [blocks.ROW_SUBJECTS, blocks.REQUEST_SUBJECTS]
    for each, original in zip(found, (first, second), strict=True):
        assert blocks.rows_of(each).equals(original.drop(dropped), null_equal=True)
        names = blocks.schema_of(each.features).names
        assert names == original.columns[len(blocks.ROW_COLUMNS) :]
    assert found[0].last_us - found[0].first_us == 1_000_000


def test_a_row_is_left_out_if_a_key_that_it_was_computed_from_is_erased() -> None:
    made = block(rows(["r", "r", "r"], of_rows=[[ONE], [TWO, ONE], [TWO]]))
    assert blocks.rows_of(made, {ONE})["F.id"].to_list() == [2]
    assert blocks.rows_of(made, {ONE, TWO}).is_empty()
    assert blocks.rows_of(made, {b"other"}).height == 3


def test_a_key_that_user_code_looked_up_counts_for_every_row_of_its_request() -> None:
    made = block(rows(["r1", "r1", "r2"], of_requests=[[ONE], [], []]))
    assert blocks.rows_of(made, {ONE})["request_id"].to_list() == ["r2"]
    assert blocks.rows_of(made, {TWO}).height == 3


def test_subjects_differ_by_dataset_columns_and_key() -> None:
    others = [
        blocks.subject(DatasetName("Orders"), ("uid",), b"\x01"),
        blocks.subject(USERS, ("name",), b"\x01"),
        blocks.subject(USERS, ("uid", "name"), msgspec.msgpack.encode([1, "ann"])),
    ]
    assert len({ONE, TWO, *others}) == 5
