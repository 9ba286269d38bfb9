"""Messages of raw topics: requests survive the trip and look like batches of a keyless dataset."""

import io

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.history import parquet
from fennel_core.history.topics import RAW_LAYOUT
from fennel_core.vocab import raw_batches
from fennel_core.vocab.ids import DatasetName, Micros, Offset, TopicName
from fennel_core.vocab.raw_batches import RawRequest
from fennel_core.vocab.versions import arrow_schema, decode

REQUESTS = st.lists(
    st.builds(
        RawRequest,
        st.binary(max_size=9_000),
        st.integers(1, 9),
        st.frozensets(st.sampled_from([TopicName("w.topic.a.1"), TopicName("w.topic.b.2")])),
        st.dictionaries(
            st.sampled_from([DatasetName("Users"), DatasetName("Orders")]),
            st.lists(st.integers(0, 8), min_size=1),
        ),
        st.integers(0, 2**50).map(Micros),
        st.binary(min_size=14, max_size=14),
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=50)
@given(REQUESTS)
def test_a_message_returns_the_requests_it_was_made_of(requests):
    assert raw_batches.requests_of(decode(raw_batches.encode(requests))) == requests


@settings(deadline=None, max_examples=20)
@given(REQUESTS)
def test_history_returns_the_requests_in_their_order(requests):
    messages = [(Offset(2 * n), raw_batches.encode([each])) for n, each in enumerate(requests)]
    file = parquet.encode_file(parquet.file_frame(messages, RAW_LAYOUT.keys))
    assert raw_batches.requests_of(parquet.decode_file(file)) == requests


def test_the_columns_are_those_of_a_keyless_dataset():
    request = RawRequest(b"{}", 1, frozenset(), {}, Micros(0), b"p" * 14)
    stream = pa.ipc.open_stream(io.BytesIO(raw_batches.encode([request])))
    assert stream.schema.equals(arrow_schema(raw_batches.SCHEMA))
