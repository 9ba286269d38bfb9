import polars as pl
import pyarrow as pa
import pytest

from fennel_core.vocab.versions import encode, encode_frame, row_count


@pytest.mark.parametrize("count", [0, 1, 63, 64, 5_000])
def test_the_rows_of_a_message_are_counted_without_decoding_it(count: int) -> None:
    frame = pl.DataFrame(
        {
            "number": range(count),
            "text": [str(n) for n in range(count)],
            "list": [[n, n] for n in range(count)],
        },
        schema={"number": pl.Int64, "text": pl.String, "list": pl.List(pl.Int64)},
    )
    assert row_count(encode_frame(frame)) == count
    assert row_count(encode(frame.to_arrow())) == count


def test_the_rows_of_all_batches_count() -> None:
    chunked = pa.concat_tables([pa.table({"a": [1, 2]}), pa.table({"a": [3]})])
    assert row_count(encode(chunked)) == 3
