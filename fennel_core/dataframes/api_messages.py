"""Messages between a reader without keys of the stores and the API (`routes.py`).

They are msgpack. Classes that are stored elsewhere have their stored form (`blueprints`).
"""

from __future__ import annotations

import msgspec

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import DatasetView, Job
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.dataframes.log_source import LogSource
from fennel_core.dataframes.parts import TopicInput
from fennel_core.dataframes.planning import DatasetSource
from fennel_core.vocab.ids import Offset


class _Source(msgspec.Struct):
    view: bytes
    job: bytes | None
    topic: TopicInput
    erased: tuple[ErasedKeys, ...]
    comments: dict[str, str]


class TailPage(msgspec.Struct):
    """Records of a tail, each with its offset. `following`: where the next page begins."""

    records: list[tuple[Offset, bytes]]
    following: Offset


def encode_source(source: DatasetSource) -> bytes:
    """Return a source as a message."""
    job = None if source.job is None else stored_names.dumps(source.job)
    view = stored_names.dumps(source.view)
    return msgspec.msgpack.encode(_Source(view, job, source.topic, source.erased, source.comments))


def decode_source(message: bytes) -> DatasetSource:
    """Return the source in a message."""
    found = msgspec.msgpack.decode(message, type=_Source)
    view = stored_names.loads(found.view, DatasetView)
    job = None if found.job is None else stored_names.loads(found.job, Job)
    return DatasetSource(view, job, found.topic, found.erased, found.comments)


def encode_log(source: LogSource) -> bytes:
    """Return what there is of a query log as a message."""
    return msgspec.msgpack.encode(source)


def decode_log(message: bytes) -> LogSource:
    """Return what there is of a query log in a message."""
    return msgspec.msgpack.decode(message, type=LogSource)


def encode_page(page: TailPage) -> bytes:
    """Return a page as a message."""
    return msgspec.msgpack.encode(page)


def decode_page(message: bytes) -> TailPage:
    """Return the page in a message."""
    return msgspec.msgpack.decode(message, type=TailPage)
