"""Worlds for the offline law: datasets with random histories, and a program over them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

from fennel_core.blueprints.spec import DatasetView
from fennel_core.connections.erasures import ErasableKeys, ErasedKeys
from fennel_core.executors.calls import ExecutorCall, ExtractCall
from fennel_core.executors.client import NO_CALLBACKS, Callbacks
from fennel_core.executors.errors import UserCodeFailed
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.offline.code_lookups import CallLookups
from fennel_core.offline.planned_query import PlannedQuery
from fennel_core.operators.build import as_lookup_step, build
from fennel_core.operators.spec import AggregateSpec, StepSpec, TableSpec, with_validity
from fennel_core.plans.absent_keys import NULL, AbsentValue
from fennel_core.plans.feature_index import FeatureIndex
from fennel_core.plans.planner import make_plan
from fennel_core.query.erasures import erasure_rules
from fennel_core.query.lookups import EncodedRows, JobLookup, ReadOutcome
from fennel_core.query.program import QueryProgram, ServedDataset
from fennel_core.vocab.dtypes import Dtype, Field, Float, Int, List, Optional, Str, Timestamp
from fennel_core.vocab.ids import JobId, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import entities
from fennel_core.wire import operators as wire
from fennel_core.wire.expr import Binary, BinaryOp, Now, Ref, StringFn, StringUnary
from tests.laws.offline import looking_code
from tests.support.each_row import EachRow
from tests.support.featuresets import CODE, dataset, extractor, list_lookup, lookup, request
from tests.support.histories import History, as_frame, histories, run

SECOND = 1_000_000
WORKSPACE = WorkspaceId("w")
OPTIONAL = Optional(Int())
TIMES = st.sampled_from([n * SECOND for n in (-5, 0, 2, 3, 12)])
KEYS = st.integers(0, 1)
"""Few, so that most lookups find several versions. `F.v` may be 2, too: no key has that value."""
VALUES = st.integers(0, 2)

USERS = dataset("Users", {"k": Int()}, {"v": OPTIONAL, "tags": List(Int())})
PAIRS = dataset("Pairs", {"k": Int(), "n": OPTIONAL}, {"s": Optional(Str())})
EVENTS = Schema((), (Field("k", Int()), Field("x", Int()), Field("paid", Timestamp())), "t")
TOTALS = dataset("Totals", {"k": Int()}, {"c": Int(), "s": Int(), "a": Float(), "l": List(Int())})
BY_TIME = dataset("ByTime", {"k": Int()}, {"m": OPTIONAL})
VALID = with_validity(Schema((Field("id", Int()),), (Field("k", Int()), Field("x", Int())), "t"))
CURRENT = dataset("Current", {"k": Int()}, {"c": Int(), "s": Int()})

SPECS: Mapping[str, StepSpec] = {
    "Users": TableSpec(USERS.schema),
    "Pairs": TableSpec(PAIRS.schema),
    "Totals": AggregateSpec(
        EVENTS,
        ("k",),
        (
            wire.Count("c", wire.Forever(), None, False, False, False),
            wire.Sum("s", wire.Sliding(2 * SECOND), "x"),
            wire.Average("a", wire.Sliding(10 * SECOND), "x", -1.0),
            wire.LastK("l", wire.Forever(), "x", 2, False, False),
        ),
        None,
        True,
        TOTALS.schema,
    ),
    "ByTime": AggregateSpec(
        EVENTS,
        ("k",),
        (wire.Max("m", wire.Sliding(3 * SECOND), "x", None),),
        "paid",
        True,
        BY_TIME.schema,
    ),
    "Current": AggregateSpec(
        VALID,
        ("k",),
        (
            wire.Count("c", wire.Forever(), None, False, False, False),
            wire.Sum("s", wire.Sliding(3 * SECOND), "x"),
        ),
        None,
        True,
        CURRENT.schema,
    ),
}
INPUTS = {
    "Users": USERS.schema,
    "Pairs": PAIRS.schema,
    "Totals": EVENTS,
    "ByTime": EVENTS,
    "Current": VALID,
}
ABSENT = {
    "Users": (NULL, NULL),
    "Pairs": (NULL,),
    "Totals": (
        AbsentValue(0, declared=False),
        AbsentValue(0, declared=False),
        AbsentValue(-1.0, declared=True),
        AbsentValue((), declared=False),
    ),
    "ByTime": (NULL,),
    "Current": (AbsentValue(0, declared=False), AbsentValue(0, declared=False)),
}
_TOMBSTONE = st.sampled_from([False, False, False, True])
_EVENT = {"k": KEYS, "x": st.integers(-3, 3)}
ROWS: Mapping[str, st.SearchStrategy[dict[str, Any]]] = {
    "Users": st.fixed_dictionaries(
        {
            "k": KEYS,
            "v": st.none() | VALUES,
            "tags": st.lists(st.integers(0, 2), max_size=2),
            "ts": TIMES,
            "__tombstone": _TOMBSTONE,
        }
    ),
    "Pairs": st.fixed_dictionaries(
        {
            "k": KEYS,
            "n": st.none() | KEYS,
            "s": st.none() | st.sampled_from("1x"),
            "ts": TIMES,
            "__tombstone": _TOMBSTONE,
        }
    ),
    "Totals": st.fixed_dictionaries({**_EVENT, "t": TIMES, "paid": TIMES}),
    "ByTime": st.fixed_dictionaries({**_EVENT, "t": TIMES, "paid": TIMES}),
    "Current": st.fixed_dictionaries(
        {**_EVENT, "id": st.integers(0, 3), "t": TIMES, "__valid_to": st.none() | TIMES}
    ).map(lambda row: row | {"__valid_to": _later(row["t"], row["__valid_to"])}),
}

TYPES: Mapping[str, Dtype] = {
    "F.k": Int(),
    "F.n": OPTIONAL,
    "F.ks": Optional(List(Int())),
    "F.ns": List(OPTIONAL),
    "F.v": OPTIONAL,
    "F.v7": Int(),
    "F.tags": Optional(List(Int())),
    "F.at": Optional(Timestamp()),
    "F.next": OPTIONAL,
    "F.s": Optional(Str()),
    "F.c": Int(),
    "F.sum": Int(),
    "F.mean": Float(),
    "F.last": List(Int()),
    "F.when": Optional(Timestamp()),
    "F.max": OPTIONAL,
    "F.cc": Int(),
    "F.cs": Int(),
    "F.vs": List(OPTIONAL),
    "F.sums": List(Int()),
    "F.pairs": List(Optional(Str())),
    "F.alias": Int(),
    "F.plus": OPTIONAL,
    "F.strict": OPTIONAL,
    "F.now": Timestamp(),
    "F.score": OPTIONAL,
    "F.deep": OPTIONAL,
    "F.code": OPTIONAL,
    "F.friend": OPTIONAL,
    "F.earlier": Optional(Timestamp()),
    "F.later": Optional(Timestamp()),
    "F.total": Int(),
    "F.pair": Optional(Str()),
    "F.after": OPTIONAL,
    "F.dedupe": OPTIONAL,
    "F.broadcast": OPTIONAL,
    "F.loop": OPTIONAL,
    "F.many": OPTIONAL,
}
CALLING: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "F.code": (("Users",), ("F.k",)),
    "F.friend": (("Users",), ("F.k",)),
    "F.earlier": (("Users",), ("F.k",)),
    "F.later": (("Users",), ("F.k",)),
    "F.total": (("Totals",), ("F.k",)),
    "F.pair": (("Users", "Pairs"), ("F.k", "F.n")),
    "F.dedupe": (("Users",), ("F.k",)),
    "F.broadcast": (("Users",), ("F.k",)),
    "F.loop": (("Users",), ("F.k",)),
    "F.many": (("Users",), ("F.k",)),
}
"""Features whose code (`looking_code`) looks datasets up, and its inputs."""
GIVEN = ("F.k", "F.n", "F.ks", "F.ns")


def features() -> list[entities.Extractor]:
    """Every kind of node; `F.strict` fails where `F.s` is "x", and `F.score` where `F.v` is 2."""
    number = StringFn(Ref("s"), StringUnary.TO_INT)
    plus = Binary(BinaryOp.ADD, Ref("v"), Ref("k"))
    return [
        extractor("F.v", lookup("Users", "v", OPTIONAL), "F.k"),
        extractor("F.v7", lookup("Users", "v", OPTIONAL, "7"), "F.k"),
        extractor("F.tags", lookup("Users", "tags", List(Int())), "F.k"),
        extractor("F.at", lookup("Users", "ts", Timestamp()), "F.k"),
        extractor("F.next", lookup("Users", "v", OPTIONAL), "F.v"),
        extractor("F.s", lookup("Pairs", "s", Optional(Str())), "F.k", "F.n"),
        extractor("F.c", lookup("Totals", "c", Int()), "F.k"),
        extractor("F.sum", lookup("Totals", "s", Int()), "F.k"),
        extractor("F.mean", lookup("Totals", "a", Float(), "9.5"), "F.k"),
        extractor("F.last", lookup("Totals", "l", List(Int())), "F.k"),
        extractor("F.when", lookup("Totals", "ts", Timestamp()), "F.k"),
        extractor("F.max", lookup("ByTime", "m", OPTIONAL), "F.k"),
        extractor("F.cc", lookup("Current", "c", Int()), "F.k"),
        extractor("F.cs", lookup("Current", "s", Int()), "F.k"),
        extractor("F.vs", list_lookup("Users", "v", OPTIONAL), "F.ks"),
        extractor("F.sums", list_lookup("Totals", "s", Int()), "F.ks"),
        extractor("F.pairs", list_lookup("Pairs", "s", Optional(Str())), "F.ks", "F.ns"),
        extractor("F.alias", entities.Alias("5"), "F.v"),
        extractor("F.plus", entities.ExprExtractor(plus), "F.v", "F.k"),
        extractor("F.strict", entities.ExprExtractor(number), "F.s"),
        extractor("F.now", entities.ExprExtractor(Now())),
        extractor("F.score", entities.PyFunc(CODE), "F.v", "F.k"),
        extractor("F.deep", lookup("Users", "v", OPTIONAL), "F.score"),
        *(
            extractor(name, entities.PyFunc(CODE), *inputs, datasets=datasets)
            for name, (datasets, inputs) in CALLING.items()
        ),
        extractor("F.after", lookup("Users", "v", OPTIONAL), "F.friend"),
    ]


def _later(time: int, end: int | None) -> int | None:
    return None if end is None else max(end, time + SECOND)


@dataclass(frozen=True)
class World:
    """Histories by dataset, and the erased keys of `Users`."""

    histories: Mapping[str, History]
    erased: frozenset[int]

    def versions(self) -> dict[JobId, pl.DataFrame]:
        """Return every signed version, by job."""
        return {
            job_of(name): as_frame(INPUTS[name], [c for b in history.batches for c in b])
            for name, history in self.histories.items()
        }

    def erasures(self) -> dict[ErasableKeys, Any]:
        keys = key_bytes(pl.DataFrame({"k": sorted(self.erased)}, schema={"k": pl.Int64}), ["k"])
        rules = erasure_rules(("k",), [ErasedKeys(("k",), frozenset(keys))])
        return {tables()[USERS.name].erasable: rules}


FEATURES: Mapping[str, tuple[str, ...]] = {
    "Users": (
        *("F.v", "F.v7", "F.tags", "F.at", "F.next", "F.vs"),
        *("F.alias", "F.plus", "F.now", "F.score", "F.deep"),
        *("F.code", "F.friend", "F.earlier", "F.later", "F.after"),
        *("F.dedupe", "F.broadcast", "F.loop"),
    ),
    "Pairs": ("F.s", "F.pairs", "F.strict", "F.pair"),
    "Totals": ("F.c", "F.sum", "F.mean", "F.last", "F.when", "F.sums", "F.total"),
    "ByTime": ("F.max",),
    "Current": ("F.cc", "F.cs"),
}


@st.composite
def worlds(draw: st.DrawFn, *filled: str) -> tuple[World, list[str]]:
    """A world with one or two datasets that have rows (`filled`), and the features that read them.

    More rows exceed what Hypothesis draws for one example, and it would keep the worlds without.
    """
    some = st.lists(st.sampled_from(sorted(ROWS)), min_size=1, max_size=2, unique=True)
    filled = filled or tuple(draw(some))
    world = World(
        {
            name: draw(histories(rows, max_rows=10)) if name in filled else History([])
            for name, rows in ROWS.items()
        },
        draw(st.frozensets(KEYS, max_size=1)),
    )
    return world, [name for dataset_name in filled for name in FEATURES[dataset_name]]


def job_of(name: str) -> JobId:
    return JobId(f"job-{name}")


def tables() -> dict[Any, ServedDataset]:
    found = {}
    for one in (USERS, PAIRS, TOTALS, BY_TIME, CURRENT):
        view = DatasetView(
            one.name, 1, one.schema, None, job_of(one.name), True, True, (), is_source=True
        )
        found[one.name] = ServedDataset(WORKSPACE, view, 1, ABSENT[one.name])
    return found


def planned(outputs: Sequence[str]) -> PlannedQuery:
    datasets = [USERS, PAIRS, TOTALS, BY_TIME, CURRENT]
    index = FeatureIndex.of(request(dict(TYPES), features(), datasets))
    return PlannedQuery(make_plan(index, GIVEN, tuple(outputs)), tables())


def program(outputs: Sequence[str]) -> QueryProgram:
    return planned(outputs).program()


class StateLookups:
    """The lookups of the online path, over the states that the steps of the live path reach."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps = {job_of(name): build(spec) for name, spec in SPECS.items()}
        self._states: dict[JobId, MemoryHangar] = {
            job_of(name): run(
                self._steps[job_of(name)],
                world.histories[name],
                INPUTS[name],
                canonical=False,
            )[0]
            for name in SPECS
        }

    async def fetch(self, lookups: Sequence[JobLookup], outcome: ReadOutcome) -> list[EncodedRows]:
        del outcome
        return [self._rows(each) for each in lookups]

    def _rows(self, each: JobLookup) -> EncodedRows:
        step = as_lookup_step(self._steps[each.job])
        assert step is not None
        times = [each.as_of] * len(each.keys) if isinstance(each.as_of, int) else each.as_of
        rows = step.lookup(self._states[each.job], each.keys, times)  # type: ignore[arg-type]  # microseconds
        rules = self._world.erasures().get(each.erasable, ())
        return [
            None if any(rule.hides(key) for rule in rules) else row
            for key, row in zip(each.keys, rows, strict=True)
        ]


def score(v: int | None, k: int) -> int | None:
    """Return what the extractor of `F.score` computes."""
    if v == 2:
        raise UserCodeFailed("extractor `_score`: v is 2", "F._score", "v is 2", "")
    return None if v is None else (v + k) % 3


class Code(EachRow):
    """The user code, online and offline."""

    def run(self, call: ExtractCall, rows: pa.Table, lookups: CallLookups | None) -> pl.DataFrame:
        if lookups is not None:
            return asyncio.run(looking_code.run(call, rows, lookups))
        v, k = (rows.column(i).to_pylist() for i in (1, 2))
        values = [score(*pair) for pair in zip(v, k, strict=True)]
        return pl.DataFrame({call.outputs[0].name: pl.Series(values, dtype=pl.Int64)})


class OnlineCode:
    async def run(
        self, call: ExecutorCall, rows: pa.Table, *, callbacks: Callbacks = NO_CALLBACKS
    ) -> pa.Table:
        assert isinstance(call, ExtractCall)
        if call.datasets:
            assert callbacks.lookup is not None
            made = await looking_code.run(call, rows, callbacks.lookup)
        else:
            made = Code().run(call, rows, None)
        return made.to_arrow(compat_level=pl.CompatLevel.oldest())
