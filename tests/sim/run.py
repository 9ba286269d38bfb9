"""`make sim WORLD=engine SEEDS=300`: many seeds of a simulated world; stops at the first that
breaks a law and says how to see it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.engine.world import World


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=["engine"], default="engine")
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="say which share of the lines under test these seeds reach",
    )
    parser.add_argument("--story", action="store_true", help="tell what happened in each run")
    asked = parser.parse_args()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before Polars is imported

    from tests.sim.engine.world import quiet, simulate

    with quiet():
        if asked.coverage:
            from tests.sim.engine.line_coverage import covered

            for name, percent in covered(range(asked.first, asked.first + asked.seeds)).items():
                print(f"{percent:5.1f}% {name}")
            return 0
        return run(asked, simulate)


def run(asked: argparse.Namespace, simulate: Callable[[int], World]) -> int:
    began = time.monotonic()
    for done, seed in enumerate(range(asked.first, asked.first + asked.seeds), 1):
        try:
            world = simulate(seed)
        except Exception as broken:  # noqa: BLE001  # whatever it is, it is this run's result
            traceback.print_exception(broken)
            print(
                f"seed {seed} fails: python -m tests.sim.run --world {asked.world} "
                f"--first {seed} --seeds 1 --story"
            )
            return 1
        if asked.story:
            print(f"seed {seed}", *world.story, sep="\n")
        elif done % 50 == 0:
            print(f"{done} seeds")
    took = time.monotonic() - began
    print(f"{asked.seeds} seeds hold: {asked.seeds / took:.1f} per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
