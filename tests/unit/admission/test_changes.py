"""Change events become rows and deletes, or are refused with a reason."""

import asyncio
import base64
import datetime as dt
from dataclasses import replace

import numpy as np
import pytest

from fennel_core.admission.changes import DELETED_US, PLACEHOLDER, changes_of
from fennel_core.admission.payload import Payload
from fennel_core.admission.validator import RowKind, Validator
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.vocab.keys import key_bytes
from fennel_core.wire.connectors import Cdc, FromPayload, Sampling
from fennel_core.wire.json_data import json_table
from tests.support.ingest_world import KEYED, NoExecutors, binding, source

AT = 1_700_000_000_000_000
ROW = {"user": "ann", "age": 3, "at": AT}
MADE = {"source": {"ts_us": AT + 5}, "ts_ms": AT // 1000 + 9}
DEBEZIUM = binding(of=source(cdc=Cdc.DEBEZIUM))


def events(*rows: dict) -> Payload:
    return Payload(json_table(list(rows)).columns, np.arange(len(rows), dtype=np.int64))


def changed(*rows: dict, of=DEBEZIUM, erased=()):
    validator = Validator(NoExecutors(), None)  # type: ignore[arg-type]  # no user code
    return asyncio.run(validator.validate_or_dead_letter(of, events(*rows), erased, attempts=None))


def reasons(*rows: dict, of=DEBEZIUM) -> list[tuple[str, list[int]]]:
    found = changes_of(events(*rows), of.source, of.schema).refused
    return [(each.reason, each.places.tolist()) for each in found]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"op": "t", **MADE}, "truncate of the table"),
        ({"op": "m", **MADE}, "logical decoding message"),
        ({"op": "x", **MADE}, "`op` that is not known"),
        ({"op": 1, **MADE}, "`op` that is not known"),
        ({"user": "ann"}, "has no `op`"),
        ({"op": "c", "after": None, **MADE}, "no row in `after`"),
        ({"op": "u", "after": [1], **MADE}, "no row in `after`"),
        ({"op": "d", "before": None, **MADE}, "no row in `before`"),
        ({"op": "d", "before": ROW}, "does not say when"),
        ({"op": "d", "before": ROW, "ts_ms": "soon"}, "does not say when"),
        ({"op": "d", "before": ROW, "ts_ms": 10**18}, "does not say when"),
        ({"op": "u", "before": ROW, "after": ROW | {"user": "bob"}, **MADE}, "key field `user`"),
        ({"op": "u", "after": ROW | {"age": PLACEHOLDER}, **MADE}, "column `age` is unchanged"),
        ({"payload": {"op": "t"}, "schema": {}}, "truncate of the table"),
    ],
)
def test_what_changes_no_row_is_refused_with_the_reason(event, text) -> None:
    fine = {"op": "c", "before": None, "after": ROW, **MADE}
    ((reason, places),) = reasons(fine, event, fine)
    assert text in reason
    assert places == [1]
    good, dead = changed(fine, event, fine)
    assert [each.numbers.tolist() for each in good] == [[0, 2]]
    assert [each.payload.numbers.tolist() for each in dead] == [[1]]
    assert dead[0].payload.columns["op"][0] == event.get("op")


@pytest.mark.parametrize(
    "value",
    [
        base64.b64encode(PLACEHOLDER.encode()).decode(),
        PLACEHOLDER.encode().hex(),
        [PLACEHOLDER],
        ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
        list(PLACEHOLDER.encode()),
        {PLACEHOLDER: PLACEHOLDER},
        '{"__debezium_unavailable_value":"__debezium_unavailable_value"}',
    ],
)
def test_a_placeholder_of_any_type_is_seen(value) -> None:
    ((reason, _),) = reasons({"op": "u", "after": ROW | {"age": value}, **MADE})
    assert "column `age` is unchanged" in reason


def test_a_column_that_the_dataset_does_not_read_may_be_unavailable() -> None:
    assert reasons({"op": "u", "after": ROW | {"text": PLACEHOLDER}, **MADE}) == []


def test_a_renamed_key_is_compared_and_a_placeholder_of_its_column_is_seen() -> None:
    of = replace(
        DEBEZIUM, source=source(cdc=Cdc.DEBEZIUM, preproc=(("user", FromPayload("id[of]")),))
    )
    old, new = ({"id": {"of": name}, "age": 3, "at": AT} for name in ("ann", "bob"))
    ((reason, _),) = reasons({"op": "u", "before": old, "after": new, **MADE}, of=of)
    assert "key field `user`" in reason
    (rows,), dead = changed({"op": "d", "before": old, **MADE}, of=of)
    assert dead == []
    assert rows.frame["user"].to_list() == ["ann"]


def test_a_row_keeps_its_number_and_kind() -> None:
    good, dead = changed(
        {"op": "r", "after": ROW, **MADE},
        {"op": "d", "before": ROW, **MADE},
        {"op": "u", "before": None, "after": ROW | {"age": 4}, **MADE},
    )
    assert dead == []
    assert {each.kind: each.numbers.tolist() for each in good} == {
        RowKind.EVENT: [2],
        RowKind.SNAPSHOT: [0],
        RowKind.DELETE: [1],
    }


@pytest.mark.parametrize(
    ("before", "made", "time"),
    [
        (ROW, MADE, AT + 5),
        (ROW | {"at": AT + 70}, MADE, AT + 70),
        ({"user": "ann", "age": 0, "at": None}, MADE, AT + 5),
        ({"user": "ann"}, {"ts_ms": AT // 1000}, AT + 999),
        ({"user": "ann"}, {"ts_us": AT + 7, "ts_ms": 1}, AT + 7),
        ({"user": "ann"}, {"source": {"ts_ms": AT // 1000}, "ts_ms": 1}, AT + 999),
    ],
)
def test_a_delete_is_made_by_the_database_but_not_before_its_row(before, made, time) -> None:
    (rows,), dead = changed({"op": "d", "before": before, **made})
    assert dead == []
    assert rows.frame.columns == list(KEYED.names)
    assert rows.frame["at"].to_physical().to_list() == [time]
    assert rows.frame["age"].to_list() == [None]


def test_a_delete_with_a_wrong_key_is_a_dead_letter_with_the_event() -> None:
    event = {"op": "d", "before": {"user": None, "age": 1, "at": AT}, **MADE}
    good, (letter,) = changed(event, {"op": "d", "before": ROW, **MADE})
    assert [each.numbers.tolist() for each in good] == [[1]]
    assert letter.payload.columns["before"] == [event["before"]]
    assert DELETED_US not in letter.payload.columns


def test_bounds_and_erased_keys_hold_for_deletes_and_a_sample_of_values_does_not() -> None:
    delete = {"op": "d", "before": ROW, **MADE}
    late = replace(DEBEZIUM, source=source(cdc=Cdc.DEBEZIUM, until_us=AT))
    (rows,), _ = changed(delete, of=late)
    assert len(rows.frame) == 0
    keys = key_bytes(changed(delete)[0][0].frame, ["user"])
    (rows,), _ = changed(delete, erased=(ErasedKeys(("user",), frozenset(keys)),))
    assert len(rows.frame) == 0
    none = replace(DEBEZIUM, source=source(cdc=Cdc.DEBEZIUM, sampling=Sampling(0.0, ("age",))))
    (rows,), _ = changed(delete, of=none)
    assert len(rows.frame) == 1
    by_key = replace(DEBEZIUM, source=source(cdc=Cdc.DEBEZIUM, sampling=Sampling(0.0, ("user",))))
    (rows,), _ = changed(delete, of=by_key)
    assert len(rows.frame) == 0


def schema(**types: object) -> dict:
    fields = [{"field": name, "name": kind} for name, kind in types.items()]
    return {"fields": [{"field": image, "fields": fields} for image in ("before", "after")]}


@pytest.mark.parametrize(
    ("kind", "value", "meant"),
    [
        ("io.debezium.time.Timestamp", 5_000, "1970-01-01T00:00:05.000000Z"),
        ("io.debezium.time.MicroTimestamp", -1, "1969-12-31T23:59:59.999999Z"),
        ("io.debezium.time.NanoTimestamp", 5_001, "1970-01-01T00:00:00.000005Z"),
        ("org.apache.kafka.connect.data.Timestamp", 1, "1970-01-01T00:00:00.001000Z"),
        ("io.debezium.time.Date", 19_000, "2022-01-08"),
        ("org.apache.kafka.connect.data.Date", -1, "1969-12-31"),
        ("io.debezium.time.Date", None, None),
        ("io.debezium.time.Date", 2_932_896, "9999-12-31"),
        ("io.debezium.time.Date", -719_162, "0001-01-01"),
        *[
            (f"io.debezium.time.{kind}", number, {"out of range": number})
            for kind, numbers in {
                "MicroTimestamp": (9_223_372_036_825_200_000, -9_223_372_036_832_400_000),
                "Timestamp": (9_223_372_036_825_200, 253_402_300_800_000),
                "NanoTimestamp": (2**63, -(2**80)),
                "Date": (10**8, 2_932_897, -719_163, 2**40),
            }.items()
            for number in numbers
        ],
        ("io.debezium.time.Date", "soon", "soon"),
        ("io.debezium.time.ZonedTimestamp", "2022-01-08T00:00:00Z", "2022-01-08T00:00:00Z"),
        ("io.debezium.data.VariableScaleDecimal", {"scale": 2, "value": "BNI="}, "12.34"),
        ("io.debezium.data.VariableScaleDecimal", {"scale": 0, "value": "/w=="}, "-1"),
        ("io.debezium.data.VariableScaleDecimal", {"scale": 0, "value": "!"}, "!"),
        ("some.Type", 3, 3),
    ],
)
def test_the_schema_of_an_event_says_what_its_values_mean(kind, value, meant) -> None:
    row = {"user": "ann", "x": value, "at": AT}
    wrapped = {
        "schema": schema(x=kind),
        "payload": {"op": "c", "before": None, "after": row, **MADE},
    }
    plain = {"op": "c", "before": None, "after": row, **MADE}
    found = changes_of(events(wrapped, plain), DEBEZIUM.source, DEBEZIUM.schema).put
    assert found.columns["x"] == [meant, value]
    assert row["x"] == value, "the event stays as it was"


def test_a_time_out_of_range_is_a_dead_letter_only_where_it_is_read() -> None:
    infinity = 9_223_372_036_825_200_000
    kind = "io.debezium.time.MicroTimestamp"
    rows = [ROW | {"at": infinity}, ROW | {"until": infinity}]
    made = [
        {"schema": schema(at=kind, until=kind), "payload": {"op": "c", "after": row, **MADE}}
        for row in rows
    ]
    good, (letter,) = changed(*made)
    assert [each.numbers.tolist() for each in good] == [[1]]
    assert letter.payload.numbers.tolist() == [0]


@pytest.mark.parametrize(("scale", "meant"), [("3", "123.456"), ("9" * 5000, "AeJA")])
def test_a_decimal_has_the_scale_of_its_schema(scale, meant) -> None:
    parameters = {"scale": scale, "connect.decimal.precision": "10"}
    name = "org.apache.kafka.connect.data.Decimal"
    fields = [{"field": "x", "name": name, "parameters": parameters}]
    wrapped = {
        "schema": {"fields": [{"field": "after", "fields": fields}]},
        "payload": {"op": "c", "after": {"user": "a", "x": "AeJA", "at": AT}, **MADE},
    }
    found = changes_of(events(wrapped), DEBEZIUM.source, DEBEZIUM.schema).put
    assert found.columns["x"] == [meant]


def test_the_time_of_a_wrapped_row_is_exact() -> None:
    kind = "io.debezium.time.Timestamp"
    event = {
        "schema": schema(at=kind),
        "payload": {"op": "c", "after": {"user": "a", "age": 1, "at": 86_400_000}, **MADE},
    }
    (rows,), dead = changed(event)
    assert dead == []
    assert rows.frame["at"].to_list() == [dt.datetime(1970, 1, 2, tzinfo=dt.UTC)]
