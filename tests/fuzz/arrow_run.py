"""Read mutated Arrow messages: `make fuzz-arrow MESSAGES=1000000`.

Laws: no message ends the process that reads it, raises anything but `ArrowRefused`, or shows bytes
that lie beside it in memory. Each part of the messages is read in a child process, whose exit
status must be 0, with known bytes before and after the message; what is accepted is converted as
the platform converts it, with Polars and to Python.

Prints the number of messages that were accepted, and exits with 1 if a law does not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import traceback
from typing import Final

import polars as pl

from fennel_core.executors.hostile_arrow import read_batch
from fennel_core.executors.internal_errors import ArrowRefused
from tests.fuzz.arrow import SCHEMA, TABLE, mutated, plain_batch

PART: Final = 10_000
"""Messages that one child process reads."""
CANARY: Final = b"\xc3\xa4canary-beside-the-buffer\xc3\xa4" * 64
SHOWN: Final = "canary-beside"


def shows_its_surroundings(payload: bytes) -> bool | None:
    """Read a message between known bytes; return whether they appear, None if it is refused."""
    around = memoryview(CANARY + payload + CANARY)
    try:
        table = read_batch(around[len(CANARY) : -len(CANARY)], SCHEMA, TABLE.num_rows)
    except ArrowRefused:
        return None
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return SHOWN in repr(frame.to_dicts()) or SHOWN in repr(table.to_pylist())


def read_part(seed: int, messages: int) -> int:
    """Read mutated messages; return how many were accepted. Raises if a law does not hold."""
    numbers, plain, accepted = random.Random(seed), plain_batch(), 0  # noqa: S311  # repeatable, and no secret
    for _ in range(messages):
        payload = mutated(plain, numbers)
        shown = shows_its_surroundings(payload)
        if shown:
            raise AssertionError(f"a message shows what lies beside it: {payload.hex()}")
        accepted += shown is not None
    return accepted


def in_child(seed: int, messages: int) -> tuple[int, int]:
    """Return the exit status of a child that reads one part, and how many it accepted."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, str(read_part(seed, messages)).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as accepted:
        counted = accepted.read()
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended), int(counted or b"0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    accepted = 0
    for part in range(-(-given.messages // PART)):
        status, some = in_child(given.seed * 1_000_003 + part, PART)
        accepted += some
        if status:
            print(f"the process that read part {part} of seed {given.seed} ended with {status}")
            return 1
    print(f"{given.messages} messages, {accepted} accepted, all others refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
