"""Events as Debezium writes them: JSON without schemas.

A keyed change is a message whose key is the JSON object of the key fields, and whose value is

    {"before": …, "after": …, "source": {…}, "op": "c" | "u" | "d", "ts_ms": …}

`before` and `after` are rows or null. A change of a dataset without keys has no message key. After
the delete of an erased key follows the key without a value, with which Kafka's compaction forgets
it. After other deletes nothing follows: a message cannot know whether it is about the latest row.

`source` says where the change is from: `db` is the workspace, `table` the dataset, `ts_ms` and
`ts_us` the event time of the row, `position` the order among rows with the same event time, and
`partition` and `offset` the message of the platform. `withdrawn` is null, or the `ts_us` and the
`position` of the version that is not valid any more. `retraction` says that nothing replaces it;
otherwise the event adds a version, `after`, or a delete at its time. The current row of a key is
that of the version with the largest (`ts_us`, `position`) of those that were not withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import polars as pl

from fennel_core.operators.rows import columns_of, decode_rows
from fennel_core.sinks.changes import MESSAGE
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import POS
from fennel_core.wire.json_encode import DEBEZIUM, encode_column

CONNECTOR: Final = "fennel"
VERSION: Final = ("ts_us", "position")
"""What names a version of a key."""
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """A message for a sink. Without a `key`, `part` chooses the partition: it keeps the order.

    `part` and `offset`: the message of the dataset's topic; None for an erasure.
    """

    key: bytes | None
    value: bytes | None
    part: int = 0
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ChangeSource:
    """Whose changes are written: names for the `source` of each event."""

    connector: str
    workspace: str
    dataset: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class DebeziumForm:
    """See `store.SinkForm`. `now_ms`: the time of writing, as in `change_records`."""

    of: ChangeSource
    now_ms: Callable[[], int | None]

    def changes(
        self, versions: pl.DataFrame, events: pl.DataFrame, written: int
    ) -> list[SinkRecord]:
        del written
        return change_records(versions, events, self.of, self.now_ms())

    def deletes(self, keys: Sequence[bytes]) -> list[SinkRecord]:
        return erasure_records(keys, self.of, self.now_ms())

    def rewound(self, following: Mapping[int, int]) -> None:
        """Take nothing back: what was sent is not the platform's any more."""


def change_records(
    versions: pl.DataFrame, events: pl.DataFrame, of: ChangeSource, now_ms: int | None
) -> list[SinkRecord]:
    """Return the messages of events (`changes.events_of`), which refer to rows of `versions`.

    `now_ms`: the time of writing; None for messages that are the same whenever they are written.
    """
    written = {} if now_ms is None else {"ts_ms": now_ms}
    schema = of.schema
    values = [encode_column(versions[f.name], f.dtype, DEBEZIUM) for f in schema.fields]
    rows = [dict(zip(schema.names, row, strict=True)) for row in zip(*values, strict=True)]
    keys = list(map(_encode, _rows(schema.key_names, values))) if schema.keyed else None
    sources = _sources(versions, of)
    parts, offsets = (versions[name].to_list() for name in MESSAGE)
    found: list[SinkRecord] = []
    for op, before, after, added, retracted in events.rows():
        at = retracted if added is None else added
        old = None if retracted is None else sources[retracted]
        withdrawn = old and {name: old[name] for name in VERSION}
        key = None if keys is None else keys[at]
        found.append(
            SinkRecord(
                key,
                _encode(
                    {
                        "before": None if before is None else rows[before],
                        "after": None if after is None else rows[after],
                        "source": sources[at]
                        | {"withdrawn": withdrawn, "retraction": added is None},
                        "op": op,
                        **written,
                    }
                ),
                parts[at],
                offsets[at],
            )
        )
    return found


def _rows(names: Sequence[str], values: Sequence[list[Any]]) -> list[dict[str, Any]]:
    own = values[: len(names)]
    return [dict(zip(names, row, strict=True)) for row in zip(*own, strict=True)]


def _sources(versions: pl.DataFrame, of: ChangeSource) -> list[dict[str, Any]]:
    us = versions[of.schema.timestamp].to_physical()
    frame = versions.select(
        (us // 1000).alias("ts_ms"),
        us.alias("ts_us"),
        pl.col(POS).bin.encode("hex").alias("position"),
        pl.col(MESSAGE[0]).alias("partition"),
        pl.col(MESSAGE[1]).alias("offset"),
    )
    names = {"connector": CONNECTOR, "name": of.connector, "snapshot": "false"}
    names |= {"db": of.workspace, "table": of.dataset}
    return [names | row for row in frame.to_dicts()]


def erasure_records(
    keys: Sequence[bytes], of: ChangeSource, now_ms: int | None
) -> list[SinkRecord]:
    """Return a delete of each erased key, given as key bytes (`vocab.keys`), and its tombstone."""
    schema = of.schema
    frame = decode_rows(list(keys), columns_of(schema, schema.key_names))
    values = [encode_column(frame[f.name], f.dtype, DEBEZIUM) for f in schema.keys]
    source = {"connector": CONNECTOR, "name": of.connector, "snapshot": "false"}
    source |= {"db": of.workspace, "table": of.dataset}
    found: list[SinkRecord] = []
    for own in _rows(schema.key_names, values):
        key = _encode(own)
        body = {
            "before": dict.fromkeys(schema.names) | own,
            "after": None,
            "source": source,
            "op": "d",
        } | ({} if now_ms is None else {"ts_ms": now_ms})
        found += [SinkRecord(key, _encode(body)), SinkRecord(key, None)]
    return found
