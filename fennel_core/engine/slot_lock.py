"""Detect that the previous process of a slot is dead, so that its leases need not lapse first.

Theory. A lease protects against a process that cannot be observed: it may only be slow. On the same
machine it can be observed. Every process of a slot locks the same file, and the kernel releases the
lock when the process ends, however it ends. A process that gets the lock knows that all earlier
processes whose slot id begins with the lock's prefix are dead.

The prefix identifies the lock, not the slot number: it contains the file's identity and the
machine's boot id. The same slot number on another machine, or in a container with files of its own,
has another prefix, and so has a slot after a reboot. In these cases, and while a predecessor is
only paused, leases lapse as usual.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import AbstractContextManager
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class SlotLock(AbstractContextManager["SlotLock"]):
    """The lock of one slot number on this machine.

    `id_prefix`: first part of the ids of all processes of this slot. `predecessor_is_dead`: True if
    this process holds the lock, so that no earlier one is alive.
    """

    def __init__(self, file: Path, name: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        # The file is never deleted: its identity is part of the prefix.
        self._lock = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        there = os.fstat(self._lock)
        boot = BOOT_ID.read_bytes() if BOOT_ID.exists() else b""
        identity = blake2b(
            b"%d %d %s" % (there.st_dev, there.st_ino, boot), digest_size=4
        ).hexdigest()
        self.id_prefix = f"{name}-{identity}-"
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.predecessor_is_dead = False
        else:
            self.predecessor_is_dead = bool(boot)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._lock)
