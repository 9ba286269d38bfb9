"""Ask systems of users whether a commit may use them: in threads of their own, with one deadline.

A system that does not respond keeps a thread for as long as its client waits. So these threads are
not those in which the server decodes and compiles commits, what is asked of one system is asked in
one thread, and a commit waits for all answers together for `REACHED_S`. What has not begun by then
does not begin any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final, TypeVar

T = TypeVar("T")
REACHED_S: Final = 30.0
"""How long a client waits for the systems of its commit."""
THREADS: Final = 16
"""Systems that are asked at once, of all commits."""


async def answers(
    questions: Sequence[Callable[[], T]], within_s: float = REACHED_S
) -> list[T | None]:
    """Return what each of the functions returns; None for one that has not ended `within_s`.

    Each of them blocks for a bounded time, and is about a system of its own. Raises what they
    raise.
    """
    if not questions:
        return []
    loop = asyncio.get_running_loop()
    asked = [loop.run_in_executor(_threads(), question) for question in questions]
    try:
        await asyncio.wait(asked, timeout=within_s)
        return [each.result() if each.done() else None for each in asked]
    finally:
        for each in asked:
            each.cancel()


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="external-check")
