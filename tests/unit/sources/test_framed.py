"""Messages with a header: schemas are read once, and what is wrong is the message's or not."""

import pytest

from fennel_core.connections.schema_registry import SchemaRegistryUnusable
from fennel_core.sources.avro import compile_avro
from fennel_core.sources.framed import ASKED_AGAIN, SCHEMAS, UNKNOWN_S, FramedDecoder
from fennel_core.sources.messages import EMPTY, decode_messages
from tests.support.schema_registry import MemoryRegistry, framed

INT = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


class World:
    def __init__(self) -> None:
        self.registry, self.now_s, self.slept = MemoryRegistry(), 0.0, 0
        self.decode = FramedDecoder(
            self.registry, compile_avro, clock=lambda: self.now_s, sleep=self.sleep
        )

    def sleep(self, _: float) -> None:
        self.slept += 1


def reasons(decoded) -> dict[int, str]:
    return {n: each.reason for each in decoded.unreadable for n in each.numbers}


def test_a_message_without_header_or_value_is_unreadable() -> None:
    world = World()
    one = world.registry.add(INT)
    found = world.decode([b"{}", None, framed(one, b"\x02"), b"", b"\0\0\0\0", framed(one, b"")])
    assert found.rows == [{"a": 1}]
    assert found.texts == [b'{"a":1}']
    assert list(found.numbers) == [2]
    texts = reasons(found)
    assert texts[1] == EMPTY
    assert all("header" in texts[n] for n in (0, 3, 4))
    assert "does not fit" in texts[5]


def test_a_schema_is_read_once() -> None:
    world = World()
    one = world.registry.add(INT)
    for _ in range(3):
        world.decode([framed(one, b"\x02")] * 5)
    assert world.registry.reads == 1


def test_an_unknown_schema_is_asked_for_twice_and_then_not_for_a_time() -> None:
    world = World()
    (reason,) = set(reasons(world.decode([framed(9, b"")] * 3)).values())
    assert "schema 9" in reason
    assert (world.registry.reads, world.slept) == (2, 1)
    world.decode([framed(9, b"")])
    assert world.registry.reads == 2
    for _ in range(9):
        world.registry.add(INT | {"name": f"R{world.registry.reads}{len(world.registry.schemas)}"})
    world.now_s = UNKNOWN_S + 1
    assert world.decode([framed(9, b"\x02")]).rows == [{"a": 1}]


def test_refusals_that_are_known_use_up_no_patience() -> None:
    world = World()
    world.decode([framed(100 + n, b"") for n in range(ASKED_AGAIN + 1)])
    world.slept = 0
    world.decode([*(framed(100 + n, b"") for n in range(ASKED_AGAIN + 1)), framed(9, b"")])
    assert world.slept == 1


def test_random_bytes_do_not_hold_up_a_batch() -> None:
    world = World()
    world.decode([framed(1000 + n, b"") for n in range(SCHEMAS + 5)])
    assert world.slept == ASKED_AGAIN
    assert world.registry.reads == SCHEMAS + 5 + ASKED_AGAIN


def test_a_registry_that_is_away_ends_the_batch_and_loses_nothing() -> None:
    world = World()
    one = world.registry.add(INT)
    world.registry.away = True
    with pytest.raises(SchemaRegistryUnusable):
        world.decode([framed(one, b"\x02")])
    world.registry.away = False
    assert world.decode([framed(one, b"\x02")]).rows == [{"a": 1}]


def test_a_known_schema_needs_no_registry() -> None:
    world = World()
    one = world.registry.add(INT)
    world.decode([framed(one, b"\x02")])
    world.registry.away = True
    assert world.decode([framed(one, b"\x04")]).rows == [{"a": 2}]


def test_rows_whose_text_is_large_are_cut_into_several_requests() -> None:
    decoded = decode_messages([b'{"a":"%s"}' % (b"x" * 90)] * 10)
    cuts = list(decoded.tables(size_bytes=300))
    assert [len(decoded.rows[cut]) for cut in cuts] == [3, 3, 3, 1]
