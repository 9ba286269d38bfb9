"""Run many seeds of a simulated world: `make sim WORLD=engine SEEDS=300`, or `WORLD=commit`.

Stops at the first seed that violates a law and prints the command to reproduce it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol


class Simulated(Protocol):
    """A finished run of any world."""

    @property
    def events(self) -> Sequence[str]: ...


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=["engine", "commit"], default="engine")
    parser.add_argument("--seeds", type=int, default=300, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="print the line coverage of the simulated classes",
    )
    parser.add_argument("--events", action="store_true", help="print the events of each run")
    arguments = parser.parse_args()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before Polars is imported

    from tests.sim.engine.world import quiet, simulate

    if arguments.world == "commit":
        from tests.sim.commit import world as commit_world

        if arguments.coverage:
            parser.error("--coverage: only the engine's world measures it")
        with commit_world.quiet():
            return run(arguments, commit_world.simulate)
    with quiet():
        if arguments.coverage:
            from tests.sim.engine.line_coverage import covered

            for name, percent in covered(
                range(arguments.first, arguments.first + arguments.seeds)
            ).items():
                print(f"{percent:5.1f}% {name}")
            return 0
        return run(arguments, simulate)


def run(arguments: argparse.Namespace, simulate: Callable[[int], Simulated]) -> int:
    began = time.monotonic()
    for done, seed in enumerate(range(arguments.first, arguments.first + arguments.seeds), 1):
        try:
            world = simulate(seed)
        except Exception as broken:  # noqa: BLE001  # any failure is the result of this run
            traceback.print_exception(broken)
            print(
                f"seed {seed} fails: python -m tests.sim.run --world {arguments.world} "
                f"--first {seed} --seeds 1 --events"
            )
            return 1
        if arguments.events:
            print(f"seed {seed}", *world.events, sep="\n")
        elif done % 50 == 0:
            print(f"{done} seeds")
    took = time.monotonic() - began
    print(f"{arguments.seeds} seeds hold: {arguments.seeds / took:.1f} per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
