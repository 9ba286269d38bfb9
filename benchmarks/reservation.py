"""Measure the work of T1 that happens under the lock of a workspace: plan, resolve, encode.

    .venv/bin/python -m benchmarks.reservation [DATASETS ...]

Source datasets with one endpoint each, without a ledger: of a first commit, and of one that changes
nothing. Decision 0054 has the figures.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.commit_plan import BankFacts, plan_commit, with_replays
from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.logical import AssetKey, Compiled
from fennel_core.blueprints.resolve import resolve_catalog
from fennel_core.vocab.ids import AssetId, WorkspaceId
from fennel_core.wire.connectors import Cdc
from tests.support.compiler_inputs import schema, sourced, webhook

SIZES = (200, 500, 1_000)
PARTITIONS = 4
SHOP = WorkspaceId("shop")
T = TypeVar("T")


def dataset(number: int) -> DatasetInput:
    """Return a keyed source dataset with an endpoint of its own."""
    source = webhook(f"e{number}", cdc=Cdc.UPSERT)
    shape = schema("user", "city:str age")
    return sourced(f"Dataset{number}", shape, source=source, online=True, looked_up=True)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result and how long it took, ms."""
    began = time.perf_counter()
    result = work()
    return result, (time.perf_counter() - began) * 1_000


def planned(facts: BankFacts, compiled: Compiled) -> tuple[Compiled, dict[AssetKey, AssetId]]:
    """Return the commit with the replays that it needs, and the names of its plan."""
    needed = with_replays(facts, compiled)
    return needed, plan_commit(facts, needed).ids()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", metavar="DATASETS", type=int, nargs="*", default=SIZES)
    print("datasets  commit     plan and replays, ms  resolve, ms  encode, ms  encode's part")
    for size in parser.parse_args().sizes:
        compiled = compile_datasets([dataset(number) for number in range(size)], PARTITIONS)
        facts = BankFacts(SHOP, 1)
        for kind in ("first", "unchanged"):
            (needed, ids), plan_ms = timed(lambda f=facts, c=compiled: planned(f, c))
            catalog, resolve_ms = timed(lambda n=needed, i=ids: resolve_catalog(n, SHOP, i))
            _, encode_ms = timed(lambda c=catalog: stored_names.dumps(c))
            part = encode_ms / (plan_ms + resolve_ms + encode_ms)
            print(
                f"{size:8}  {kind:9}  {plan_ms:20.0f}  {resolve_ms:11.0f}  {encode_ms:10.0f}"
                f"  {part:13.0%}"
            )
            facts = BankFacts(SHOP, 2, alive=ids, mine=frozenset(ids.values()), before=catalog)


if __name__ == "__main__":
    main()
