"""Times that are converted as columns are those that the library reads one by one."""

import io

import fastavro
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fennel_core.sources.avro import CONVERTED, UNREADABLE, compile_avro
from fennel_core.sources.framed import FramedDecoder
from fennel_core.sources.times import FIRST_DAY, FIRST_US, LAST_DAY, LAST_US
from tests.support.schema_registry import MemoryRegistry, framed

REGISTRY = MemoryRegistry()
DECODE = FramedDecoder(REGISTRY, compile_avro)
EDGES = {
    "timestamp-millis": (FIRST_US // 1000, LAST_US // 1000),
    "timestamp-micros": (FIRST_US, LAST_US),
    "timestamp-nanos": (2 - 2**63, 2**63 - 3),  # a long has no more
    "date": (FIRST_DAY, LAST_DAY),
}


def one_by_one(schema: object, body: bytes) -> object:
    try:
        return msgspec.to_builtins(fastavro.schemaless_reader(io.BytesIO(body), schema, None))
    except UNREADABLE:
        return None


@st.composite
def cases(draw) -> tuple[str, list[int | None]]:
    logical = draw(st.sampled_from(sorted(CONVERTED)))
    first, last = EDGES[logical]
    bits = 31 if logical == "date" else 63
    number = st.one_of(
        st.integers(first, last),
        st.integers(-(2**bits), 2**bits - 1),
        *(st.integers(edge - 2, edge + 2) for edge in (first, 0, last)),
        st.none(),
    )
    return logical, draw(st.lists(number, min_size=1, max_size=6))


@settings(deadline=None)
@given(cases(), st.booleans())
@example(("timestamp-micros", [1, FIRST_US - 1, None, LAST_US + 1]), True)
@example(("date", [FIRST_DAY - 1, 1]), False)
def test_each_time_is_what_the_library_reads(case, null_first) -> None:
    logical, numbers = case
    kind = "int" if logical == "date" else "long"
    time = {"type": kind, "logicalType": logical}

    def record(of: object) -> dict:
        union = ["null", of] if null_first else [of, "null"]
        return {"type": "record", "name": "R", "fields": [{"name": "at", "type": union}]}

    number = REGISTRY.add(record(time))
    bodies = []
    for each in numbers:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, record(kind), {"at": each})
        bodies.append(stream.getvalue())
    found = DECODE([framed(number, body) for body in bodies])
    expected = [one_by_one(record(time), body) for body in bodies]
    assert list(found.numbers) == [n for n, row in enumerate(expected) if row is not None]
    assert found.rows == [row for row in expected if row is not None]
    assert [msgspec.json.decode(text) for text in found.texts] == found.rows
