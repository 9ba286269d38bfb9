"""The writer of a source partition over in-memory stores."""

import pytest

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.sources.errors import FeedRemoved, RowsNotWritten, StreamReplaced
from fennel_core.sources.messages import DecodedMessages
from fennel_core.vocab.dead_letters import origin_of
from fennel_core.vocab.versions import decode
from tests.support.ingest_world import DAY_US, KEYLESS, binding, catalog
from tests.support.source_world import (
    LOST_AFTER,
    LOST_BEFORE,
    POSITIONS,
    RAW,
    Fault,
    SourceWorld,
    batch,
    message,
    stream_source,
)

AT = 1_700_000_000_000
DAY_MS = DAY_US // 1000


@pytest.fixture
async def sources():
    made = SourceWorld()
    made.world.commit(main=catalog(stream_source()))
    yield made
    await made.world.close()


def ann(age: int, at: int = AT) -> bytes:
    return message(user="ann", age=age, at=at)


async def test_rows_raw_rows_and_the_position_are_in_one_transaction(sources: SourceWorld) -> None:
    position = await sources.writer(3).write(batch([ann(1), ann(2)], first=40))
    assert position is not None
    assert position.next == 42
    assert [row["age"] for row in sources.world.rows("w.topic.users.1")] == [1, 2]
    assert [row["age"] for row in sources.read()] == [1, 2]
    ((at, record),) = sources.world.messages(POSITIONS)
    assert (at, record.key) == (3, b"3")


async def test_messages_before_the_position_are_skipped(sources: SourceWorld) -> None:
    await sources.writer().write(batch([ann(1), ann(2)]))
    await sources.writer().write(batch([ann(1), ann(2), ann(3)]))
    assert [row["age"] for row in sources.read()] == [1, 2, 3]


@pytest.mark.parametrize("fault", [LOST_AFTER, LOST_BEFORE])
async def test_a_lost_response_is_settled_by_the_position(
    sources: SourceWorld, fault: Fault
) -> None:
    faults = [fault]
    sources.fault = lambda: faults.pop() if faults else None
    await sources.writer().write(batch([ann(1), ann(2)]))
    assert [row["age"] for row in sources.read()] == [1, 2]


async def test_a_fenced_writer_commits_nothing_and_continues_behind_its_successor(
    sources: SourceWorld,
) -> None:
    first, second = sources.writer(), sources.writer()
    await first.write(batch([ann(1)]))
    await second.write(batch([ann(2)], first=1))
    await first.write(batch([ann(2), ann(3)], first=1))
    assert [row["age"] for row in sources.read()] == [1, 2, 3]


async def test_rows_that_do_not_fit_are_dead_letters_with_their_place(sources: SourceWorld) -> None:
    orders = stream_source("Orders")
    sources.world.commit("2", main=catalog(orders))
    broken = [message(user="bob", age="many", at=AT), b"no json", None, b"[1]", b"\xff{}"]
    await sources.writer(2).write(batch([ann(1), *broken, ann(2)], first=10))
    assert [row["age"] for row in sources.world.rows(orders.topic)] == [1, 2]
    letters = [m for _, m in sources.world.messages("w.dead.1")]
    found = {origin_of(m.headers).source: origin_of(m.headers).reason for m in letters}
    assert [key.removeprefix("Kafka topic `orders`[2] at ") for key in found] == [
        *("11", "12", "13", "14", "15")
    ]
    assert "many" in found["Kafka topic `orders`[2] at 11"]
    assert "has no value" in found["Kafka topic `orders`[2] at 13"]
    position = (await sources.writer(2).write(batch([ann(3)], first=17))) or None
    assert position is not None
    counts = position.datasets[orders.identity]
    assert (counts.accepted, counts.late, counts.dead) == (3, 0, 5)
    assert decode(letters[0].value).height == 1


async def test_lateness_is_judged_per_partition_and_survives_a_restart(
    sources: SourceWorld,
) -> None:
    old = AT - 40 * DAY_MS
    await sources.writer(0).write(batch([ann(1)]))
    await sources.writer(0).write(batch([ann(2)], first=1))
    # Another partition that is far behind is not late.
    await sources.writer(1).write(batch([ann(3, old)]))
    position = await sources.writer(0).write(batch([ann(4, old)], first=2))
    assert sorted(row["age"] for row in sources.world.rows("w.topic.users.1")) == [1, 2, 3]
    assert position is not None
    assert position.datasets[stream_source().identity].late == 1
    assert [raw.late for raw in sources.world.raw(RAW) if raw.late] == [{"Users": [0]}]


async def test_a_batch_is_cut_into_transactions_of_bounded_size(sources: SourceWorld) -> None:
    await sources.writer().write(batch([ann(n) for n in range(10_001)]))
    assert [raw.rows for raw in sources.world.raw(RAW)] == [10_000, 1]
    assert len(sources.world.messages(POSITIONS)) == 2


async def test_rows_with_different_fields_enter_as_several_requests(
    sources: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecodedMessages.tables, "__defaults__", (12, 10**6))
    wide = [message(user="ann", age=n, at=AT, **{f"f{n}": n}) for n in range(4)]
    await sources.writer().write(batch([*wide, b"no json"]))
    assert [raw.rows for raw in sources.world.raw(RAW)] == [2, 2]
    rows = sources.world.rows("w.topic.users.1")
    assert sorted(row["age"] for row in rows) == [0, 1, 2, 3]
    assert len(sources.world.messages(POSITIONS)) == 1


async def test_a_commit_in_between_prepares_the_rows_again(sources: SourceWorld) -> None:
    writer = sources.writer()
    await writer.write(batch([ann(1)]))
    users, dev = stream_source(), stream_source("Others")
    sources.world.commit("2", main=catalog(users), dev=catalog(dev))
    await writer.write(batch([ann(2)], first=1))
    assert [row["age"] for row in sources.world.rows(dev.topic)] == [2]


async def test_a_removed_source_is_not_read(sources: SourceWorld) -> None:
    sources.world.commit("2", main=catalog(binding(KEYLESS)))
    with pytest.raises(FeedRemoved):
        await sources.writer().write(batch([ann(1)]))
    assert sources.world.log == {}


async def test_log_does_not_reach_a_stream_by_its_name(sources: SourceWorld) -> None:
    table = await sources.writer()._catalogs.get(stream_source().topic.partition(".")[0])
    assert table.targets == {}
    assert set(table.feeds) == {RAW}


async def test_another_stream_under_the_same_name_is_refused(sources: SourceWorld) -> None:
    await sources.writer().write(batch([ann(1)]))
    with pytest.raises(StreamReplaced, match="`other`"):
        await sources.writer(origin="other").write(batch([ann(2)], first=1))


async def test_rows_that_cannot_be_written_end_in_an_error(sources: SourceWorld) -> None:
    sources.fault = lambda: LOST_BEFORE
    with pytest.raises(RowsNotWritten):
        await sources.writer().write(batch([ann(1)]))
    sources.fault = lambda: Fault(SystemUnavailable("Kafka is away"), committed=False)
    with pytest.raises(SystemUnavailable):
        await sources.writer().write(batch([ann(1)]))
    assert sources.world.log == {}


async def test_a_partition_of_a_bounded_stream_takes_rows_after_any_silence(
    sources: SourceWorld,
) -> None:
    """Its reader decides when it has ended, over all partitions."""
    bounded = stream_source(bounded=True, idleness_us=1)
    sources.world.commit(main=catalog(bounded))
    await sources.writer().write(batch([ann(1)]))
    later = sources.world.clock.now_us() + DAY_US
    sources.world.clock.now_us = lambda: later
    await sources.writer().write(batch([ann(2)], 1))
    assert [row["age"] for row in sources.world.rows("w.topic.users.1")] == [1, 2]
