"""Find out which layers of protection this machine has, and which of them are required.

Every layer is tried in a child process, which ends afterwards: what a kernel, a container runtime
or a security module refuses is not visible in any version number.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fennel_core.executors.internal_errors import SandboxUnavailable
from fennel_core.executors.sandbox import landlock, seccomp
from fennel_core.executors.sandbox.confinement import ConfinementPlan, Layer, Users, become
from fennel_core.executors.sandbox.syscalls import BY_MACHINE, Architecture, prctl

_PR_SET_NO_NEW_PRIVS: Final = 38
USER_RANGES: Final = (Users(3_000_000, 65_536), Users(61_184, 4096))
"""Far from the users of a system; the second one is for containers that map 65,536 users."""
USERS_OF_ONE_HOST: Final = 512
"""Each host takes a part of a range: two processes with one user would share its limit of threads.
"""
SYSTEM_FILES: Final = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/localtime", "/etc/ld.so.cache", "/etc/mime.types"),
    *("/dev/urandom", "/dev/null", "/dev/zero", "/sys/devices/system/cpu", "/proc/cpuinfo"),
    *("/proc/meminfo", "/proc/stat"),
)
"""What Python and its libraries read beside their own files."""
CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")
Applied = Callable[[], bool]


def confinement_plan(code: Sequence[Path], needed: Sequence[Path]) -> ConfinementPlan:
    """Return what confines processes here.

    `code` are the folders of Python code that they may read. `needed` are files that an
    unprivileged user must be able to read if processes are to run as one. Raises
    `SandboxUnavailable` without seccomp, and without Landlock outside of a container.
    """
    machine = os.uname().machine
    architecture = BY_MACHINE.get(machine)
    if architecture is None:
        raise SandboxUnavailable(
            f"user code cannot be confined on `{machine}`; run the executors on one of "
            f"{', '.join(BY_MACHINE)}"
        )
    if not _in_child(lambda: _filter_works(architecture)):
        raise SandboxUnavailable(
            "the kernel refuses seccomp filters, so user code would not be confined; enable "
            "CONFIG_SECCOMP_FILTER, and allow seccomp(2) in the container's profile"
        )
    readable = (*code, *map(Path, SYSTEM_FILES))
    abi = landlock.abi_version()
    if abi and not _in_child(lambda: _landlock_works(abi, readable)):
        abi = 0
    contained = in_container()
    if not abi and not contained:
        raise SandboxUnavailable(
            "the kernel has no Landlock, so user code could read the platform's files; add "
            "`landlock` to the kernel's `lsm=` parameter (Linux 5.13), or run the executors in a "
            "container"
        )
    claims = (claim(each) for each in USER_RANGES if _usable(each, needed))
    users = next((each for each in claims if each is not None), None)
    layers = _layers(abi, users, contained=contained)
    return ConfinementPlan(architecture, abi, readable, users, layers)


def in_container() -> bool:
    """Return whether this process runs in a container."""
    if any(Path(mark).exists() for mark in CONTAINER_MARKS):
        return True
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    # Fields of a line: …, mount point (5th), …, "-", type of file system, …
    roots = (line.split() for line in mounts)
    return any(row[4] == "/" and row[row.index("-") + 1] == "overlay" for row in roots)


def _layers(abi: int, users: Users | None, *, contained: bool) -> tuple[Layer, ...]:
    privileged = os.getuid() == 0
    missing = "the kernel has no Landlock" + (
        "; the container's file system is what user code can read" if contained else ""
    )
    return (
        Layer("seccomp", True, "a list of allowed system calls"),
        Layer(
            "landlock", bool(abi), f"ABI {abi}, reads Python and its libraries" if abi else missing
        ),
        Layer(
            "landlock-network",
            abi >= landlock.NETWORK_ABI,
            "TCP refused twice" if abi >= landlock.NETWORK_ABI else "seccomp alone refuses TCP",
        ),
        Layer(
            "landlock-scopes",
            abi >= landlock.SCOPES_ABI,
            "signals and abstract sockets refused twice"
            if abi >= landlock.SCOPES_ABI
            else "seccomp alone refuses signals and abstract sockets",
        ),
        Layer(
            "own-user",
            users is not None,
            f"a user for each process, from {users.first}"
            if users is not None
            else "no unused range of users that can read Python's files; root without capabilities"
            if privileged
            else "started without root: processes share the user of the executors",
        ),
        Layer(
            "process-limit",
            users is not None,
            "threads of each process"
            if users is not None
            else "root's threads are not limited; set a limit of pids for the service"
            if privileged
            else "threads of all processes together",
        ),
    )


def _usable(users: Users, needed: Sequence[Path]) -> bool:
    if os.getuid() != 0:
        return False

    def readable() -> bool:
        become(users.first)
        return all(os.access(path, os.R_OK) for path in needed)

    return _in_child(readable)


def claim(users: Users) -> Users | None:
    """Return a part of a range that no other process of this machine has claimed, None without.

    The claim is the name of an abstract socket, which the kernel frees with the last process that
    has it open: this one, or one that it forks.
    """
    for first in range(users.first, users.first + users.count, USERS_OF_ONE_HOST):
        claimed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claimed.bind(f"\0fennel-core/executors/users/{first}")
        except OSError:
            claimed.close()
            continue
        # Open for the life of this process.
        claimed.detach()
        return Users(first, USERS_OF_ONE_HOST)
    return None


def _filter_works(architecture: Architecture) -> bool:
    seccomp.install(seccomp.filter_program(architecture, os.getpid()))
    try:
        socket.socket().close()
    except PermissionError:
        return True
    return False


def _landlock_works(abi: int, readable: Sequence[Path]) -> bool:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(abi, readable)
    try:
        os.listdir("/")
    except PermissionError:
        return True
    return False


def _in_child(works: Applied) -> bool:
    """Return the result of `works` in a child process, False if it raises OSError."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if works() else 1
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended) == 0
