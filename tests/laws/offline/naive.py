"""The naive oracle: every feature of one row as of its time, from the rows that were not retracted.

It knows no plans, timelines or tiles.
"""

from __future__ import annotations

from typing import Any

from tests.laws.offline.worlds import SECOND, World, score
from tests.laws.operators.aggregate import oracle


class Failed(Exception):
    """The row has no features."""


def latest(world: World, name: str, keys: dict[str, Any], at: int) -> dict[str, Any] | None:
    past = [
        row
        for row in world.histories[name].left_over()
        if row["ts"] <= at and all(row[field] == value for field, value in keys.items())
    ]
    last = max(past, key=lambda row: (row["ts"], row["__pos"]), default=None)
    gone = last is None or last["__tombstone"] or (name == "Users" and keys["k"] in world.erased)
    return None if gone else last


def user(world: World, k: int | None, at: int, field: str, default: Any = None) -> Any:
    row = latest(world, "Users", {"k": k}, at)
    return default if row is None or row[field] is None else row[field]


def events(world: World, name: str, k: int, at: int, seconds: int | None, time: str) -> list[Any]:
    rows = [{**row, "t": row[time]} for row in world.histories[name].left_over()]
    return oracle.in_window(rows, k, at, None if seconds is None else seconds * SECOND)


def total(world: World, k: int, at: int) -> int:
    return sum(row["x"] for row in events(world, "Totals", k, at, 2, "t"))


def last_change(world: World, k: int, at: int) -> int | None:
    """Return the time of the last event, or of the last that left one of the windows."""
    times = [row["t"] for row in events(world, "Totals", k, at, None, "t")]
    left = [t + (window + 1) * SECOND for t in times for window in (2, 10)]
    return max([*times, *(time for time in left if time <= at)], default=None)


def counted(world: World, k: int, at: int, window: Any) -> list[Any]:
    rows = [row for row in world.histories["Current"].left_over() if row["k"] == k]
    return oracle.counting(rows, at, window)


def pair(world: World, k: int, n: int | None, at: int) -> Any:
    row = latest(world, "Pairs", {"k": k, "n": n}, at)
    return None if row is None else row["s"]


def feature(world: World, name: str, row: dict[str, Any], at: int) -> Any:
    k, n, ks, ns = (row[given] for given in ("F.k", "F.n", "F.ks", "F.ns"))
    match name:
        case "F.v" | "F.dedupe" | "F.broadcast" | "F.loop" | "F.many":
            return user(world, k, at, "v")
        case "F.v7":
            return user(world, k, at, "v", 7)
        case "F.tags":
            return user(world, k, at, "tags")
        case "F.at":
            return user(world, k, at, "ts")
        case "F.next":
            return user(world, user(world, k, at, "v"), at, "v")
        case "F.s":
            return pair(world, k, n, at)
        case "F.c":
            return len(events(world, "Totals", k, at, None, "t"))
        case "F.sum":
            return total(world, k, at)
        case "F.mean":
            inside = events(world, "Totals", k, at, 10, "t")
            return oracle.average([r["x"] for r in inside], -1.0)
        case "F.last":
            return [r["x"] for r in reversed(events(world, "Totals", k, at, None, "t"))][:2]
        case "F.when":
            return last_change(world, k, at)
        case "F.max":
            inside = events(world, "ByTime", k, at, 3, "paid")
            return max((r["x"] for r in inside), default=None)
        case "F.cc":
            return len(counted(world, k, at, ("forever",)))
        case "F.cs":
            return sum(r["x"] for r in counted(world, k, at, ("sliding", 3 * SECOND)))
        case "F.vs":
            return [user(world, one, at, "v") for one in _list(ks)]
        case "F.sums":
            return [total(world, one, at) for one in _list(ks)]
        case "F.pairs":
            if len(_list(ks)) != len(ns):
                raise Failed
            return [pair(world, one, two, at) for one, two in zip(ks, ns, strict=True)]
        case "F.alias":
            return user(world, k, at, "v", 5)
        case "F.plus":
            v = user(world, k, at, "v")
            return None if v is None else v + k
        case "F.strict":
            s = pair(world, k, n, at)
            if s == "x":
                raise Failed
            return None if s is None else int(s)
        case "F.now":
            return at
        case "F.score":
            return _score(world, k, at)
        case "F.deep":
            return user(world, _score(world, k, at), at, "v")
        case "F.code" | "F.friend" | "F.earlier" | "F.later" | "F.total" | "F.pair" | "F.after":
            return _of_code(world, name, k, n, at)
    raise AssertionError(f"no such feature: {name}")


def _of_code(world: World, name: str, k: int, n: int | None, at: int) -> Any:
    """Return what user code computes from rows that it looks up."""
    row = latest(world, "Users", {"k": k}, at)
    match name:
        case "F.code":
            if row is not None and row["v"] == 1:
                raise Failed
            return -1 if row is None else row["v"]
        case "F.friend":
            v = user(world, k, at, "v")
            return -2 if v is None else user(world, v, at, "v")
        case "F.after":
            return user(world, _of_code(world, "F.friend", k, n, at), at, "v")
        case "F.earlier":
            return 0 if k == 1 else user(world, k, at - 3 * SECOND, "ts")
        case "F.later":
            return user(world, k, at, "ts")
        case "F.total":
            if k == 2:
                raise Failed
            return 100 * len(events(world, "Totals", k, at, None, "t")) + total(world, k, at)
    return "missing" if row is None else pair(world, k, n, at)


def _score(world: World, k: int, at: int) -> int | None:
    v = user(world, k, at, "v")
    if v == 2:
        raise Failed
    return score(v, k)


def _list(values: Any) -> Any:
    if values is None:
        raise Failed
    return values
