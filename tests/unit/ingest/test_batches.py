"""Messages of a transaction: partitions, raw requests, dead letters."""

import asyncio

import polars as pl
import pytest

from fennel_core.ingest import batches
from fennel_core.ingest.batches import split
from fennel_core.vocab import raw_batches
from fennel_core.vocab.keys import key_bytes, partition_of
from fennel_core.vocab.versions import POS, decode
from tests.support.ingest_world import (
    KEYLESS,
    MAIN,
    WORKSPACE,
    ScriptedProducer,
    World,
    binding,
    body,
    catalog,
    source,
)

AT_MS = 1_700_000_000_000


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


# --- raw requests


async def test_a_raw_request_names_its_position_and_the_topics_it_was_judged_for():
    world = World()
    users, orders = binding(), binding(KEYLESS, "Orders", "orders")
    world.commit(main=catalog(users), dev=catalog(orders))
    sent = body(user=["ann", "bob"], age=[1, 2], at=[AT_MS, AT_MS], more=[[1], None])
    await world.server().log(WORKSPACE, MAIN, sent)
    (raw,) = world.raw(users.raw_topic)
    # Nothing fits `Orders`: it was judged all the same, and its dead letters are written already.
    assert (raw.body, raw.rows, raw.judged_for) == (sent, 2, {users.topic, orders.topic})
    assert raw.position == min(row[POS] for row in world.rows(users.topic))
    assert (raw.received_us, raw.late) == (world.now_us(), {})
    await world.close()


async def test_a_raw_request_names_the_rows_that_were_late_for_every_source_of_a_dataset():
    world = World()
    strict = binding(KEYLESS, "Orders", "strict", of=source("Orders", disorder_us=0))
    lenient = binding(KEYLESS, "Orders", "lenient", of=source("Orders", disorder_us=50_000))
    world.commit(main=catalog(strict), dev=catalog(lenient))
    server = world.server()
    for at in ([AT_MS], [AT_MS + 1], [AT_MS - 100, AT_MS, AT_MS - 10]):
        rows = {"user": ["ann"] * len(at), "amount": [1] * len(at), "at": at}
        await server.log(WORKSPACE, MAIN, body(**rows))
    assert [raw.late for raw in world.raw(strict.raw_topic)] == [{}, {}, {"Orders": [0]}]
    assert len(world.rows(strict.topic)) == 3
    assert len(world.rows(lenient.topic)) == 4
    await world.close()


async def test_requests_of_one_transaction_share_raw_records_up_to_a_size(monkeypatch):
    monkeypatch.setattr(batches, "RAW_RECORD_BYTES", 250)
    world = World()
    world.commit(main=catalog(binding()))
    server = world.server([ScriptedProducer(world.log, turns=lambda: 3)])
    sent = [body(user=[f"u{n}"], age=[n], at=[AT_MS]) for n in range(9)]
    await asyncio.gather(*(server.log(WORKSPACE, MAIN, each) for each in sent))
    await world.close()
    records = [
        len(raw_batches.requests_of(decode(m.value))) for _, m in world.messages("w.raw.e.1")
    ]
    assert sum(records) == 9
    assert max(records) == 250 // len(sent[0])
    stored = sorted(world.raw("w.raw.e.1"), key=lambda raw: raw.position)
    assert [raw.body for raw in stored] == sent
