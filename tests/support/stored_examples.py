"""An example commit that uses every step, and the classes that a stored value can hold."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

from fennel_core.blueprints.commit_plan import asset_id
from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.logical import AssetKind, Compiled
from fennel_core.blueprints.resolve import resolve_catalog, resolve_job
from fennel_core.blueprints.source_replays import with_needed_replays
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.vocab import dtypes
from fennel_core.vocab.ids import DatasetName, WorkspaceId
from fennel_core.wire import connectors, expr
from fennel_core.wire import operators as wire
from tests.support.compiler_inputs import code, derived, node, schema, sourced, webhook

SHOP = WorkspaceId("shop")
EVENTS = schema("", "user amount city:str")
USERS = schema("user", "city:str")
DAY_US = 86_400_000_000
DAILY = wire.Sum("total", wire.Tumbling(DAY_US, 0), "amount")


def example_datasets() -> list[DatasetInput]:
    """Return datasets that together need one job of every kind of step."""
    users = webhook(
        "users",
        cdc=connectors.Cdc.UPSERT,
        preproc=(("city", connectors.Constant("Rome", dtypes.Str())),),
        sampling=connectors.Sampling(0.5, ("user",)),
    )
    events = node("e", wire.DatasetRef(DatasetName("Events")), EVENTS)
    ref = node("u", wire.DatasetRef(DatasetName("Users")), USERS)
    results: dict[str, tuple[Any, wire.OperatorKind]] = {
        "Doubled": (schema("", "user amount city:str twice"), wire.AssignExpr("e", (_twice(),))),
        "Coded": (EVENTS, wire.Filter("e", code("def f(df): ..."))),
        "Daily": (
            schema("user", "total"),
            wire.Aggregate("e", ("user",), (DAILY,), None, wire.Emit.FINAL),
        ),
        "Newest": (schema("user", "amount city:str"), wire.Latest("e", ("user",))),
        "Once": (EVENTS, wire.Dedup("e", ("user",), None)),
        "Sessions": (
            schema("user window:str", "total"),
            wire.WindowOp("e", wire.Session(DAY_US), ("user",), "window", (DAILY,)),
        ),
        "Changes": (
            schema("", "user city:str deleted"),
            wire.Changelog("u", "deleted", True),
        ),
        "Cities": (
            schema("city:str", "users"),
            wire.Aggregate(
                "u",
                ("city",),
                (wire.Count("users", wire.Forever(), None, False, False, False),),
                None,
                wire.Emit.EAGER,
            ),
        ),
        "Joined": (
            schema("", "user amount city:str home:str"),
            wire.Join("e", "u", (("user", "user"),), wire.JoinHow.LEFT, None, 0, ()),
        ),
    }
    return [
        sourced("Events", EVENTS),
        sourced("Users", USERS, source=users, online=True),
        *(
            derived(name, output, [events, ref, node("last", kind, output)], online=output.keyed)
            for name, (output, kind) in results.items()
        ),
    ]


def _twice() -> tuple[str, expr.Expr, dtypes.Dtype]:
    amount = expr.Binary(expr.BinaryOp.MUL, expr.Ref("amount"), expr.Literal("2", dtypes.Int()))
    return ("twice", amount, dtypes.Int())


def example() -> tuple[Compiled, tuple[Job, ...], Catalog]:
    """Return the example commit as blueprints, as jobs and as a catalog."""
    compiled = compile_datasets(example_datasets(), 4)
    raw = {t.key for t in compiled.topics if t.key.kind is AssetKind.RAW}
    compiled = with_needed_replays(compiled, raw)
    names = {b.key: asset_id(SHOP, b.key, 1) for b in compiled.blueprints}
    jobs = tuple(resolve_job(job, SHOP, names) for job in compiled.jobs)
    return compiled, jobs, resolve_catalog(compiled, SHOP, names)


def reachable(*roots: Any) -> set[type]:
    """Return the dataclasses and enums that a value of one of the `roots` (types) can hold."""
    found: set[type] = set()
    left = list(roots)
    while left:
        one = left.pop()
        if isinstance(one, typing.NewType):
            left.append(one.__supertype__)
        elif typing.get_origin(one) is not None or isinstance(one, types.UnionType):
            left.extend(typing.get_args(one))
        elif not isinstance(one, type) or one in found:
            continue
        elif issubclass(one, enum.Enum):
            found.add(one)
        elif dataclasses.is_dataclass(one):
            found.add(one)
            hints = typing.get_type_hints(one)
            left.extend(hints[field.name] for field in dataclasses.fields(one))
    return found
