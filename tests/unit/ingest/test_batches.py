"""Messages of a transaction: partitions, raw requests, dead letters."""

import polars as pl
import pytest

from fennel_core.ingest.batches import split
from fennel_core.vocab.keys import key_bytes, partition_of


@pytest.mark.parametrize("partitions", [1, 3, 4, 128])
def test_whole_columns_go_where_single_keys_are_looked_up(partitions):
    frame = pl.DataFrame({"user": [f"u{i % 50}" for i in range(200)], "n": range(200)})
    shares = list(split(frame, ["user"], partitions))
    assert sorted(n for _, share in shares for n in share["n"]) == list(range(200))
    for partition, share in shares:
        assert share["n"].is_sorted()
        assert {partition_of(key, partitions) for key in key_bytes(share, ["user"])} == {partition}


def test_one_row_gets_the_partition_it_has_among_many():
    frame = pl.DataFrame({"user": ["ann", "bob", "cid"]})
    many = {
        user: partition for partition, share in split(frame, ["user"], 4) for user in share["user"]
    }
    for row in range(3):
        ((partition, share),) = split(frame[row : row + 1], ["user"], 4)
        assert many[share["user"][0]] == partition
