"""History that is written in the test's process, and reads by a Spark program beside it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tests.e2e.history.reads import MARK
from tests.e2e.history.world import World
from tests.support.own_history import read_rows, roll_topics


async def read(world: World, options: dict[str, str]) -> list[tuple[Any, ...]]:
    """Read as Spark does, without Spark."""
    return await asyncio.to_thread(read_rows, world.settings, options)


async def answers(world: World, *wanted: dict[str, str]) -> list[dict[str, Any]]:
    """Return what the program `reads` prints for each of `wanted`."""
    program = (sys.executable, "-m", "tests.e2e.history.reads")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *program, env=world.environment(), stdin=pipe, stdout=pipe, stderr=pipe
    )
    out, errors = await process.communicate(json.dumps(wanted).encode())
    assert process.returncode == 0, errors.decode()[-4000:]
    found: list[dict[str, Any]] = json.loads(
        next(line for line in out.decode().splitlines() if line.startswith(MARK))[len(MARK) :]
    )
    return found


async def roll_all(world: World) -> int:
    """Bring everything that is on the topics into history; return the number of new files."""
    return await roll_topics(world.settings, world.pool)
