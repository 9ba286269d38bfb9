"""Measure for how long a large write batch and a large key hold the interpreter of a slot.

    .venv/bin/python -m benchmarks.write_batches [KEYS]

Another thread counts time; the longest gap between two of its turns is how long nothing of the slot
ran: no lease was renewed and no lookup was served. A large key is read in pieces, between which the
slot gives way. Decisions 0053 and 0045 have the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
from rocksdict import Cache

from fennel_core.engine import state_progress
from fennel_core.engine.state_progress import PartitionState
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.hangar.store import WriteBatch, in_order
from fennel_core.operators.aggregate.read_time import ReadTimeAggregateStep
from fennel_core.operators.gradual import Gradual
from fennel_core.operators.spec import AggregateSpec
from fennel_core.operators.step import Outcome
from fennel_core.vocab.dtypes import Field, Int, List, Str
from fennel_core.vocab.ids import Epoch, Micros, Offset
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN
from fennel_core.wire import operators as wire

KEYS = 500_000
VALUE = b"v" * 40
TICK_S = 0.001
INPUT = Schema((), (Field("k", Str()), Field("v", Int())), "t")
OUTPUT = Schema((Field("k", Str()),), (Field("d", List(Int())),), "t")


def measured(name: str, work: Callable[[], object]) -> float:
    """Run `work`, print its duration and its longest stop, and return the stop, s."""
    longest, done = 0.0, threading.Event()

    def tick() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not done.wait(TICK_S):
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        longest = max(longest, time.perf_counter() - last)

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    done.set()
    thread.join()
    print(f"{name:42} {took:7.2f} s in all, longest stop {longest:6.3f} s")
    return longest


def batch_of(keys: int, tag: bytes) -> WriteBatch:
    return WriteBatch({b"%s%012d" % (tag, number * 7 % keys): VALUE for number in range(keys)})


def write_batches(folder: Path, keys: int) -> None:
    """Compare one write of a batch with its staged write, and what an open view keeps."""
    store = RocksHangar(folder / "state", Cache(64 * 1024 * 1024))
    plain, staged = batch_of(keys, b"a"), batch_of(keys, b"b")
    once = measured("one write", lambda: store.write(plain))
    measured("staged", lambda: store.stage(staged))
    ingested = measured("ingested", lambda: store.write(staged))
    print(f"ratio of the longest stops, one write to ingestion: {once / ingested:.1f}")
    state = PartitionState(store, Epoch(1))

    def with_view() -> None:
        with state.view():
            outcome = Outcome(puts=dict.fromkeys(plain.puts, b"w" * 40))
            asyncio.run(state.apply(1, outcome, 0, {}, Offset(0)))

    measured("staged write while a long read is open", with_view)
    whole = measured("keys sorted at once", lambda: sorted(plain.puts))
    parts = measured("keys sorted in parts", lambda: list(in_order(plain.puts)))
    print(f"ratio of the longest stops, at once to in parts: {whole / parts:.1f}")
    measured("digest", lambda: state_progress.mutations_digest(Outcome(puts=plain.puts)))
    store.close()


def large_keys(counts: tuple[int, ...]) -> None:
    """Read one key with many distinct values."""
    spec = wire.Distinct("d", wire.Forever(), "v", False)
    for count in counts:
        step = ReadTimeAggregateStep(AggregateSpec(INPUT, ("k",), (spec,), None, True, OUTPUT))
        state = MemoryHangar()
        for first in range(0, count, 10_000):
            outcome = step.apply(state, 0, events(first, min(first + 10_000, count)))
            state.write(WriteBatch(outcome.puts, outcome.deletes))
        (key,) = key_bytes(pl.DataFrame({"k": ["a"]}), ["k"])
        now = [Micros(count * 1_000_000)]
        pieces = durations_s(step.lookup_gradually(state, [key], now))
        print(
            f"read of {count:,} distinct values: {sum(pieces):.3f} s of CPU time "
            f"in {len(pieces):,} pieces, the longest {max(pieces):.3f} s"
        )


def durations_s(work: Gradual[object]) -> list[float]:
    """Do all of the work and return the CPU time of each piece."""
    found = []
    while True:
        began = time.thread_time()
        try:
            next(work)
        except StopIteration:
            return [*found, time.thread_time() - began]
        found.append(time.thread_time() - began)


def events(first: int, end: int) -> pl.DataFrame:
    numbers = range(first, end)
    return pl.DataFrame(
        {
            "k": ["a"] * len(numbers),
            "v": [number * 7919 % 1_000_003 for number in numbers],
            "t": pl.Series([n * 1_000_000 for n in numbers]).cast(pl.Datetime("us", "UTC")),
            POS: [b"\x01" + number.to_bytes(13, "big") for number in numbers],
            SIGN: pl.Series([1] * len(numbers), dtype=pl.Int8),
            IS_TOMBSTONE: [False] * len(numbers),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("keys", metavar="KEYS", type=int, nargs="?", default=KEYS)
    keys = parser.parse_args().keys
    with tempfile.TemporaryDirectory() as folder:
        write_batches(Path(folder), keys)
    large_keys((10_000, 100_000, 300_000))


if __name__ == "__main__":
    main()
