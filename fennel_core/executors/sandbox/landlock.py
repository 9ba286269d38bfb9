"""The files that user code may read: a Landlock rule set.

Landlock refuses every kind of access that a rule set names, except below the paths with a rule.
What it can name grew with Linux: access to files (5.13), shortening them (6.2, ABI 3), TCP (6.7,
ABI 4), requests to devices (6.10, ABI 5), signals and abstract Unix sockets (6.12, ABI 6). A rule
set of an older machine names less; the seccomp filter closes what is missing.

A rule holds for an open folder, not for a path: a process that wants to read its own `/proc/self`
applies the rules itself.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fennel_core.executors.sandbox.syscalls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
    system_call,
)

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
READ: Final = EXECUTE | READ_FILE | READ_DIR
ON_FILES: Final = EXECUTE | READ_FILE
"""Rights that a rule about a file, not a folder, may name. Executing is a right of libraries, which
are mapped; the seccomp filter refuses to start programs.
"""
WRITABLE: Final = Path("/dev/null")
"""The only file that may also be written."""
FILE_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of rights to files by ABI version."""
NEWEST_FILE_RIGHTS: Final = 16
TCP_RIGHTS, SCOPES = 0b11, 0b11
NETWORK_ABI, SCOPES_ABI = 4, 6
_VERSION_FLAG, _PATH_BENEATH = 1, 1


def abi_version() -> int:
    """Return the version of Landlock that this machine has, 0 for none."""
    try:
        return system_call(
            LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)
        )
    except OSError:
        return 0


def restrict(abi: int, readable: Iterable[Path]) -> None:
    """Let this thread and what it starts read below `readable` and nothing else; raises OSError.

    Paths that do not exist are skipped. The process must have set `no_new_privs`.
    """
    rights = (1 << FILE_RIGHTS.get(abi, NEWEST_FILE_RIGHTS)) - 1
    size = 8 if abi < NETWORK_ABI else 16 if abi < SCOPES_ABI else 24
    attributes = struct.pack("QQQ", rights, TCP_RIGHTS, SCOPES)[:size]
    rules = system_call(
        LANDLOCK_CREATE_RULESET,
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(size),
        ctypes.c_uint32(0),
    )
    try:
        for path in readable:
            _allow(rules, path)
        system_call(LANDLOCK_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _allow(rules: int, path: Path) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        allowed = READ if path.is_dir() else ON_FILES
        if path == WRITABLE:
            allowed |= WRITE_FILE
        rule = struct.pack("=Qi", allowed, opened)
        system_call(
            LANDLOCK_ADD_RULE,
            ctypes.c_int(rules),
            ctypes.c_int(_PATH_BENEATH),
            ctypes.c_char_p(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(opened)
