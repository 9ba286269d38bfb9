"""Any request is served or fails with an API error, never with an internal error."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from fennel_core.executors.client import Executors
from fennel_core.query.lookups import Lookups
from fennel_core.query.owners import Owners
from fennel_core.query.service import QueryLimits, QueryService
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.query.view import Views
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import (
    Bool,
    Bytes,
    Date,
    Dtype,
    Embedding,
    Field,
    Float,
    Int,
    List,
    Map,
    Optional,
    Str,
    Struct,
    Timestamp,
)
from fennel_core.vocab.errors import ApiError
from fennel_core.wire import entities as wire
from tests.support.fake_slots import FakeRegistry, FakeSlot, nothing_hidden
from tests.support.featuresets import dataset, extractor, list_lookup, lookup, request
from tests.support.query_world import PARTITIONS, FakePlatform, branch, table_view

POINT = Struct("Point", (Field("x", Int()), Field("at", Optional(Timestamp()))))
KEYS: dict[str, Dtype] = {
    "int": Int(),
    "text": Str(),
    "flag": Bool(),
    "raw": Bytes(),
    "when": Timestamp(),
    "day": Date(),
    "price": dtypes.Decimal(2),
    "point": POINT,
    "real": Float(),
    "between": dtypes.Between(Int(), 0, 9),
}
DATASETS = [dataset(f"By_{name}", {"k": dtype}, {"v": Int()}) for name, dtype in KEYS.items()]
FEATURES: dict[str, Dtype] = {
    **{f"F.{name}": dtype for name, dtype in KEYS.items()},
    **{f"F.out_{name}": Optional(Int()) for name in KEYS},
    "F.list": List(Int()),
    "F.outs": List(Optional(Int())),
    "F.map": Map(Float()),
    "F.vector": Embedding(2),
    "F.same": Optional(Map(Float())),
}
EXTRACTORS = [
    *(
        extractor(f"F.out_{name}", lookup(f"By_{name}", "v", Optional(Int())), f"F.{name}")
        for name in KEYS
    ),
    extractor("F.outs", list_lookup("By_int", "v", Optional(Int())), "F.list"),
    extractor("F.same", wire.Alias(None), "F.map"),
]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["2024-01-01", "2024-01-01T00:00:00Z", "NaN", "1.5", "-7", "1e400", "\ud800"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "at", "key", "value", ""]), inner, max_size=2),
    ),
    max_leaves=4,
)
names = st.sampled_from([*FEATURES, "F", "G", "F.", ".", "", "A.b.c"])
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "int": st.one_of(st.integers(-(2**64), 2**64), st.sampled_from([1.0, "3", True])),
    "text": st.one_of(st.text(max_size=3), st.sampled_from(["\ud800", 7, 1.5])),
    "flag": st.sampled_from([True, False, 0, 1, "true"]),
    "raw": st.one_of(st.text(max_size=3), st.just("\ud800")),
    "when": st.one_of(
        st.integers(-(2**63), 2**63),
        st.sampled_from(
            ["2024-01-01", "2024-01-01 01:02:03.5+02:00", 1e15, "0001-01-01", "9999-12-31"]
        ),
    ),
    "day": st.one_of(
        st.integers(-(2**45), 2**45), st.sampled_from(["2024-01-01", "0001-01-01", "9999-12-31"])
    ),
    "price": st.one_of(
        st.floats(-1e30, 1e30), st.integers(-(10**30), 10**30), st.sampled_from(["1.5", 0.1])
    ),
    "point": st.fixed_dictionaries(
        {"x": st.integers(-5, 5)}, optional={"at": st.one_of(st.none(), st.integers(0, 2**40))}
    ),
    "real": st.one_of(st.floats(), st.integers(-(2**70), 2**70)),
    "between": st.integers(-20, 20),
}
bodies = st.one_of(
    values,
    st.fixed_dictionaries(
        {
            "inputs": st.one_of(st.lists(names, max_size=3), values),
            "outputs": st.lists(names, max_size=3),
            "data": st.one_of(
                st.dictionaries(names, st.lists(values, min_size=1, max_size=2), max_size=4), values
            ),
        },
        optional={"workflow": values},
    ),
)
likely = st.sampled_from(list(KEYS)).flatmap(
    lambda name: st.lists(PLAUSIBLE[name], min_size=1, max_size=3).map(
        lambda column: {
            "inputs": [f"F.{name}"],
            "outputs": [f"F.out_{name}", f"F.{name}"],
            "data": {f"F.{name}": column},
        }
    )
)
moments = st.one_of(PLAUSIBLE["when"], values)
lookups = st.sampled_from(list(KEYS)).flatmap(
    lambda name: st.lists(
        st.tuples(st.one_of(PLAUSIBLE[name], PLAUSIBLE[name], values), moments), max_size=3
    ).flatmap(
        lambda rows: st.fixed_dictionaries(
            {"keys": st.just([{"k": key} for key, _ in rows])},
            optional={
                "timestamps": st.just([at for _, at in rows]),
                "fields": st.sampled_from([[], ["v"], ["k", "ts"], ["zip"], 7]),
            },
        ).map(lambda body: (f"By_{name}", body))
    )
)


async def ask(path: str, dataset_name: str, body: bytes) -> bytes:
    platform = FakePlatform()
    platform.serve(request(FEATURES, EXTRACTORS, DATASETS), [table_view(each) for each in DATASETS])
    with tempfile.TemporaryDirectory() as folder:
        async with FakeSlot(Path(folder) / "s") as slot:
            registry, slots = FakeRegistry(), SlotConnections()
            for each in DATASETS:
                registry.own(slot, f"job-{each.name}", PARTITIONS)
            service = QueryService(
                views=Views(platform),
                lookups=Lookups(slots, Owners(registry), 1.0, nothing_hidden),
                executors=Executors(Path(folder) / "none", time_limit_ms=10_000),
                inspector=None,  # type: ignore[arg-type]  # not used by these routes
                barrier=None,  # type: ignore[arg-type]  # not used by these routes
                secret=None,  # type: ignore[arg-type]  # not used by these routes
                now_us=lambda: 10**15,
                bounds=QueryLimits(100, 60.0, 1.0),
            )
            try:
                if path == "query":
                    return (await service.query(branch("main"), body)).body
                return (await service.lookup(branch("main"), dataset_name, body)).body
            finally:
                await slots.close()


def expect_response(path: str, dataset_name: str, body: Any) -> None:
    status = 0
    try:
        json.loads(asyncio.run(ask(path, dataset_name, json.dumps(body).encode())))
    except ApiError as error:
        status = error.status
    event(f"{status}")
    assert status in (0, 400, 404, 413)


@settings(max_examples=250, deadline=None)
@given(st.one_of(bodies, likely, likely))
def test_any_query_succeeds_or_fails_with_an_api_error(body: Any) -> None:
    expect_response("query", "", body)


@settings(max_examples=150, deadline=None)
@given(lookups)
def test_any_lookup_succeeds_or_fails_with_an_api_error(lookup_request: tuple[str, Any]) -> None:
    expect_response("lookup", *lookup_request)
