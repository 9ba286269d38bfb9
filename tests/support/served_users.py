"""A query server that serves users, and queries of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Float, Int, List, Optional, Str, Timestamp
from fennel_core.wire import entities as wire
from fennel_core.wire.expr import Binary, BinaryOp, DateTimeFn, Now, Ref, SinceEpoch, TimeUnit
from tests.support.featuresets import USERS, dataset, extractor, list_lookup, lookup, request
from tests.support.query_world import World, running_world, table_view

RICH = dataset(
    "Rich",
    {"id": Str()},
    {
        "when": Timestamp(),
        "price": dtypes.Decimal(2),
        "day": dtypes.Date(),
        "raw": dtypes.Bytes(),
        "tags": dtypes.Map(Int()),
        "ratio": Float(),
        "times": List(Timestamp()),
    },
)
FEATURES = {
    "User.uid": Int(),
    "User.age": Int(),
    "User.name": Optional(Str()),
    "User.next": Int(),
    "User.now": Int(),
    "Many.uids": List(Int()),
    "Many.ages": List(Int()),
}
EXTRACTORS = [
    extractor("User.age", lookup("Users", "age", default="-1"), "User.uid"),
    extractor("User.name", lookup("Users", "name", Optional(Str())), "User.uid"),
    extractor(
        "User.next",
        wire.ExprExtractor(Binary(BinaryOp.ADD, Ref("age"), Ref("uid"))),
        "User.age",
        "User.uid",
    ),
    extractor("User.now", wire.ExprExtractor(DateTimeFn(Now(), SinceEpoch(TimeUnit.SECOND)))),
    extractor("Many.ages", list_lookup("Users", "age", Int(), default="0"), "Many.uids"),
]


def query(inputs: list[str], outputs: list[str], data: dict[str, list[Any]]) -> dict[str, Any]:
    return {"inputs": inputs, "outputs": outputs, "data": data, "log": False}


@asynccontextmanager
async def serving_users(folder: Path, helper_silence_s: float = 10.0) -> AsyncIterator[World]:
    """Serve ten users from one slot."""
    async with running_world(folder, helper_silence_s) as made:
        definitions = request(FEATURES, EXTRACTORS, [USERS, RICH])
        users = table_view(USERS, erase_keys=("uid",))
        made.platform.serve(definitions, [users, table_view(RICH)])
        for name in ("Users", "Rich"):
            made.registry.own(made.slot, f"job-{name}", 4)
        for uid in range(10):
            made.slot.put("job-Users", [uid], 1000 + uid, [20 + uid, f"user {uid}"])
        yield made
