"""Confine the current process for good: the plan of a machine, and its application.

The order matters. Limits and Landlock come before the change of user, because they need files that
the new user may not reach; the signal at the parent's death and the flag that hides a process from
others are reset by a change of user, so they follow it; the filter comes last, because it refuses
most of what is done here.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fennel_core.executors.sandbox import landlock, seccomp
from fennel_core.executors.sandbox.syscalls import Architecture, prctl, system_call

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION_3: Final = 0x20080522
OPEN_FILES: Final = 64
THREADS: Final = 64
"""Tasks that a process with a user of its own may have."""
SHARED_USER_HEADROOM: Final = 4096
"""Tasks beyond those of the user's other processes, where a user is shared: it bounds what a fleet
of hostile processes takes from the machine, and lets the platform grow.
"""
LIMITS: Final[Mapping[int, int]] = MappingProxyType(
    {
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 1 << 20,
        resource.RLIMIT_SIGPENDING: 256,
    }
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of protection on this machine; `detail` says what it is, or why it is missing."""

    name: str
    active: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Users:
    """Unprivileged users for processes, one for each that runs: `first` and those after it."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ConfinementPlan:
    """What confines a process on this machine.

    `landlock_abi` 0: without Landlock. `users` None: processes keep their user; a privileged one
    then loses its capabilities.
    """

    architecture: Architecture
    landlock_abi: int
    readable: tuple[Path, ...]
    users: Users | None
    layers: tuple[Layer, ...]

    @property
    def report(self) -> str:
        """The layers, for a log line."""
        return "; ".join(
            f"{each.name}: {'' if each.active else 'NOT ACTIVE, '}{each.detail}"
            for each in self.layers
        )


def confine(plan: ConfinementPlan, user: int | None, parent: int) -> None:
    """Confine this process, which has one thread; raises OSError if a layer of the plan fails.

    `user` is one of `plan.users`. `parent` is the process that created this one, with which it
    dies.
    """
    tasks = THREADS if user is not None else tasks_of_user() + SHARED_USER_HEADROOM
    for limit, value in {**LIMITS, resource.RLIMIT_NPROC: tasks}.items():
        resource.setrlimit(limit, (value, value))
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if plan.landlock_abi:
        landlock.restrict(plan.landlock_abi, (*plan.readable, Path("/proc/self")))
    if user is not None:
        become(user)
    else:
        drop_capabilities(plan.architecture)
    prctl(_PR_SET_DUMPABLE, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the line above.
        os._exit(1)
    # Only now: the error of a layer that fails is written to a log.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    seccomp.install(seccomp.filter_program(plan.architecture, os.getpid()))


def become(user: int) -> None:
    """Give up root for an unprivileged user and the group of the same number."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_capabilities(architecture: Architecture) -> None:
    """Give up every capability of this process; `no_new_privs` keeps it from getting others."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    system_call(architecture.numbers["capset"], ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def tasks_of_user() -> int:
    """Return the number of tasks of this process' user."""
    mine = os.getuid()
    tasks = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid == mine:
                tasks += os.stat(f"/proc/{name}/task").st_nlink - 2
        except FileNotFoundError:
            continue  # It has ended since.
    return tasks
