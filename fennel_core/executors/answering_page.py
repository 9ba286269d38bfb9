"""A page of memory in which a worker notes that it responds.

It is set before the first byte of a response, so the router knows, after a crash, whether it may
still respond in the worker's place. The file behind the page is sealed: a worker that shortened it
would crash the router at its next look.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

_SEALS: Final = 0x0001 | 0x0002 | 0x0004
"""F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW."""
_ADD_SEALS: Final = 1033


def new_answering_page() -> int:
    """Return a descriptor of a new page."""
    page = os.memfd_create("answering", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(page, mmap.PAGESIZE)
    fcntl.fcntl(page, _ADD_SEALS, _SEALS)
    return page


def map_answering(page: int) -> mmap.mmap:
    """Map a page that another process may have created."""
    return mmap.mmap(page, mmap.PAGESIZE)
