"""How a slot knows that its predecessor is dead, so that it need not wait for its lease.

Theory. A lease protects against a process that cannot be seen: it may only be slow. Here it can be
seen: every life of a slot on one machine holds a lock on the same file, and the kernel lets go of
it when the process ends, however it ends. Whoever gets the lock knows that all who named themselves
after it are dead. The name is of the lock, not of the slot: the file's identity and the machine's
boot. So the same slot number on another machine, or in another container with its own files, is
nobody's heir, and a machine that was started anew inherits nothing either; there the leases lapse,
as they do when a predecessor is only paused.
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
    """The lock of one slot number on this machine. `id_prefix`: how the ids of all its lives begin.
    `predecessor_is_dead`: every earlier one is dead.
    """

    def __init__(self, file: Path, name: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(
            file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
        )  # the file stays for ever: its identity is the point
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
