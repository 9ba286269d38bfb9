"""Read the change events of Debezium: which row each of them puts, or which key it deletes.

Theory. An event has the row `before` and `after` a change of a table, what the change was (`op`),
and when the database made it. Rows of a dataset are versions in event time, so a delete is one,
too: a tombstone. Its time is that of the change, but not before the time of the row that it
deletes, which a clock ahead of the database's may have written. Of this time and its position it
follows the row, so it wins, whatever the order of arrival.

    op      meaning             needs       becomes
    c, u    insert, update      `after`     a row
    r       read by a snapshot  `after`     a row that is never late: a snapshot is in no order
    d       delete              `before`    a tombstone, never late: the row would stay for ever
    t, …    truncate and others             refused, by name

An event may be wrapped as `{"schema": …, "payload": event}`. The schema says what numbers mean, as
microseconds or days (`change_types.py`).

What is not known must not be guessed: of a column that Postgres did not send because it is large
and unchanged, an event has a placeholder only, and it is refused if the dataset reads the column.
A row whose key changes would need two versions at one position. If the key is the primary key of
the table, Debezium sends a delete and an insert; otherwise the update is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from fennel_core.admission.change_types import converters
from fennel_core.admission.payload import Payload, descend, root_of
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import EvalCode, EvalExpr, FromPayload, Source
from fennel_core.wire.json_data import json_table

DELETED_US: Final = "__deleted_us"
"""A column of deletes: when the database made the change, in µs."""
PUT, READ, DELETE, REFUSED = range(4)
_KIND: Final = {"c": PUT, "u": PUT, "r": READ, "d": DELETE}
NAMED: Final = {
    "t": "a truncate of the table, which names no rows; rewind the source or delete the rows",
    "m": "a logical decoding message, which is no change of a row",
}
UNWRAPPED: Final = (
    "the message is no change event of Debezium: it has no `op`; "
    "use cdc `upsert` for rows that a transformation has flattened"
)
PLACEHOLDER: Final = "__debezium_unavailable_value"
_PLACEHOLDER_BYTES: Final = PLACEHOLDER.encode()
PLACEHOLDERS: Final = (
    PLACEHOLDER,
    base64.b64encode(_PLACEHOLDER_BYTES).decode(),
    _PLACEHOLDER_BYTES.hex(),
    [PLACEHOLDER],
    [
        str(
            uuid.UUID(
                bytes=hashlib.md5(_PLACEHOLDER_BYTES, usedforsecurity=False).digest(), version=3
            )
        )
    ],
    list(_PLACEHOLDER_BYTES),
    {PLACEHOLDER: PLACEHOLDER},
    json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":")),
)
"""What Debezium writes for text, bytes, arrays and hstore (a map or its JSON)."""
MAX_US: Final = 253_402_300_800 * 10**6
"""The year 10000."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class RefusedEvents:
    """Events that change no row, for one reason; `places` in the payload."""

    reason: str
    places: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows of a payload of change events, with the row numbers of their events."""

    put: Payload
    read: Payload
    deleted: Payload
    """Rows as they were, as far as known, with the column `DELETED_US`."""
    refused: tuple[RefusedEvents, ...]


def changes_of(payload: Payload, source: Source, schema: Schema) -> Changes:
    """Return the changes that a payload of events makes to a dataset; never raises."""
    events, schemas = _unwrapped(payload)
    count = len(payload)
    nulls: Sequence[Any] = [None] * count
    ops = events.get("op", nulls)
    before = _typed(_objects(events.get("before", nulls)), schemas, "before")
    after = _typed(_objects(events.get("after", nulls)), schemas, "after")
    kinds = np.fromiter(
        (_KIND.get(op, REFUSED) if isinstance(op, str) else REFUSED for op in ops),
        dtype=np.int8,
        count=count,
    )
    refusals = _Refusals(kinds)
    for place in np.flatnonzero(kinds == REFUSED).tolist():
        refusals.add(_unknown(ops[place]), place)
    for place in np.flatnonzero((kinds == PUT) | (kinds == READ)).tolist():
        if after[place] is None:
            refusals.add(f"the change event `{ops[place]}` has no row in `after`", place)
    times = _delete_times(events, before, refusals)
    _refuse_unavailable(after, read_columns(source, schema), refusals)
    _refuse_moved_keys(before, after, source, schema, refusals)
    deleted = np.flatnonzero(kinds == DELETE)
    return Changes(
        _images(payload, after, np.flatnonzero(kinds == PUT)),
        _images(payload, after, np.flatnonzero(kinds == READ)),
        _images(payload, before, deleted).having(DELETED_US, times[deleted].tolist()),
        refusals.found(),
    )


class _Refusals:
    """Collects refused events; one that is refused has no other kind any more."""

    def __init__(self, kinds: npt.NDArray[np.int8]) -> None:
        self.kinds = kinds
        self._found: dict[str, list[int]] = {}

    def add(self, reason: str, place: int) -> None:
        self.kinds[place] = REFUSED
        self._found.setdefault(reason, []).append(place)

    def found(self) -> tuple[RefusedEvents, ...]:
        return tuple(
            RefusedEvents(reason, np.array(places, dtype=np.int64))
            for reason, places in self._found.items()
        )


def _unknown(op: object) -> str:
    if op is None:
        return UNWRAPPED
    if isinstance(op, str) and op in NAMED:
        return f"the change event is {NAMED[op]}"
    return "the change event has an `op` that is not known; c, u, r and d are"


def _unwrapped(payload: Payload) -> tuple[Mapping[str, Sequence[Any]], list[Any] | None]:
    """Return the columns of the events, and the schema of each; None if no event has one."""
    columns = payload.columns
    if "payload" not in columns:
        return columns, None
    nulls: Sequence[Any] = [None] * len(payload)
    schemas, ops = columns.get("schema", nulls), columns.get("op", nulls)
    events, found = [], []
    for place, inner in enumerate(columns["payload"]):
        wrapped = ops[place] is None and isinstance(inner, dict)
        events.append(inner if wrapped else {name: columns[name][place] for name in columns})
        found.append(schemas[place] if wrapped else None)
    return json_table(events).columns, found


def _objects(values: Sequence[Any]) -> list[dict[str, Any] | None]:
    return [value if isinstance(value, dict) else None for value in values]


def _typed(
    rows: list[dict[str, Any] | None], schemas: list[Any] | None, image: str
) -> list[dict[str, Any] | None]:
    """Return the rows with the values that their schemas describe in another form."""
    if schemas is None:
        return rows
    groups: dict[bytes, list[int]] = {}
    for place, schema in enumerate(schemas):
        if schema is not None and rows[place] is not None:
            groups.setdefault(_encode(schema), []).append(place)
    typed = list(rows)
    for text, places in groups.items():
        changed = converters(text, image)
        if not changed:
            continue
        # Copies: a dead letter has the event as it was.
        own = [dict(rows[place] or {}) for place in places]
        for name, convert in changed.items():
            for row, value in zip(own, convert([row.get(name) for row in own]), strict=True):
                if name in row:
                    row[name] = value
        for place, row in zip(places, own, strict=True):
            typed[place] = row
    return typed


def _delete_times(
    events: Mapping[str, Sequence[Any]],
    before: Sequence[dict[str, Any] | None],
    refusals: _Refusals,
) -> npt.NDArray[np.int64]:
    """Return when the changes of deletes were made, in µs; refuse those that do not say so."""
    times = np.zeros(len(before), dtype=np.int64)
    nulls: Sequence[Any] = [None] * len(before)
    sources, micros, millis = (events.get(name, nulls) for name in ("source", "ts_us", "ts_ms"))
    for place in np.flatnonzero(refusals.kinds == DELETE).tolist():
        if before[place] is None:
            refusals.add(
                "the delete has no row in `before`; give the table a primary key, or in Postgres "
                "REPLICA IDENTITY FULL",
                place,
            )
            continue
        origin = sources[place] if isinstance(sources[place], dict) else {}
        at = _micros(origin.get("ts_us"), origin.get("ts_ms"))
        at = _micros(micros[place], millis[place]) if at is None else at
        if at is None:
            refusals.add("the delete does not say when it was made: no `ts_ms`", place)
        else:
            times[place] = at
    return times


def _micros(micros: object, millis: object) -> int | None:
    """Return a time in µs; of milliseconds the last µs, as the row is of the same one at most."""
    for value, unit in ((micros, 1), (millis, 1000)):
        if type(value) is int and 0 < value * unit < MAX_US:
            return value * unit + unit - 1
    return None


def _refuse_unavailable(
    rows: Sequence[dict[str, Any] | None], read: frozenset[str], refusals: _Refusals
) -> None:
    for name in sorted(read):
        for place, row in enumerate(rows):
            value = None if row is None else row.get(name)
            if (
                isinstance(value, str | list | dict)
                and value in PLACEHOLDERS
                and refusals.kinds[place] in (PUT, READ)
            ):
                reason = (
                    f"column `{name}` is unchanged and was not sent; in Postgres, set "
                    "REPLICA IDENTITY FULL on the table"
                )
                refusals.add(reason, place)


def _refuse_moved_keys(
    before: Sequence[dict[str, Any] | None],
    after: Sequence[dict[str, Any] | None],
    source: Source,
    schema: Schema,
    refusals: _Refusals,
) -> None:
    places = [
        place
        for place in np.flatnonzero(refusals.kinds == PUT).tolist()
        if before[place] is not None and after[place] is not None
    ]
    if not places:
        return
    steps = dict(source.preproc)
    old = _payload([before[place] or {} for place in places])
    new = _payload([after[place] or {} for place in places])
    for key in schema.key_names:
        step = steps.get(key)
        path = step.path if isinstance(step, FromPayload) else key if step is None else None
        if path is None:
            continue  # computed by code or constant: not comparable without running it
        was, now = descend(old, path), descend(new, path)
        for place, earlier, later in zip(places, was or (), now or (), strict=False):
            if (
                earlier is not None
                and earlier != later
                and PLACEHOLDER not in (earlier, later)
                and refusals.kinds[place] == PUT
            ):
                reason = (
                    f"the update changes key field `{key}`, so two rows change; make the fields "
                    "of the primary key the keys of the dataset"
                )
                refusals.add(reason, place)


def read_columns(source: Source, schema: Schema) -> frozenset[str]:
    """Return the columns of the table that a source reads."""
    steps = dict(source.preproc)
    read = {name for name in schema.names if name not in steps}
    for step in (*steps.values(), source.where):
        match step:
            case FromPayload(path):
                read |= {path, root_of(Payload({}, np.zeros(0, dtype=np.int64)), path)}
            case EvalExpr(schema=extra) | EvalCode(schema=extra):
                read |= {field.name for field in extra}
            case _:
                pass
    return frozenset(read)


def _payload(rows: list[dict[str, Any]]) -> Payload:
    return Payload(json_table(rows).columns, np.arange(len(rows), dtype=np.int64))


def _images(
    payload: Payload, rows: Sequence[dict[str, Any] | None], places: npt.NDArray[np.int64]
) -> Payload:
    images = [rows[place] or {} for place in places.tolist()]
    return Payload(json_table(images).columns, payload.numbers[places])
