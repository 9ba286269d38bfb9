"""The system calls that user code may make: a seccomp filter, assembled here.

A filter is a program of the classic Berkeley packet filter, which sees the number of a call, its
architecture and its arguments, but no memory that they point to. `filter_program` allows a list of
calls and refuses all others with EPERM. Of the allowed ones,

- `clone` starts threads only, and `clone3`, whose flags are in memory, does not exist (ENOSYS:
  the C library falls back to `clone`),
- `kill` and `tgkill` reach the process itself only, and `fcntl` cannot make another process the
  receiver of a signal,
- `open` creates and shortens no file (EROFS); calls that change a file system do not work either,
- `socketpair` makes connected stream sockets; `socket`, `connect` and `bind` are refused.

Calls of another architecture's table kill the process, because their numbers mean other calls.

    install(filter_program(architecture, os.getpid()))
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fennel_core.executors.sandbox.syscalls import Architecture, prctl

LOAD, RETURN, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_SET, AND = 0x20, 0x06, 0x15, 0x35, 0x45, 0x54
ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
"""Offsets in `struct seccomp_data`."""
X32_BIT: Final = 0x40000000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2

CLONE_THREAD_FLAGS: Final = 0x00010900
"""CLONE_VM, CLONE_SIGHAND and CLONE_THREAD: what makes a new task a thread of this process."""
CLONE_REFUSED_FLAGS: Final = 0x7E020080
"""Every CLONE_NEW* flag: new namespaces."""
CHANGES_FILES: Final = 0x40 | 0x200 | 0x400000
"""O_CREAT, O_TRUNC and O_TMPFILE."""
OWNER_COMMANDS: Final = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: choose a process that gets signals from a descriptor."""
TERMINAL_COMMANDS: Final = (0x5412, 0x541C, 0x8901, 0x8902)
"""TIOCSTI and TIOCLINUX put input into a terminal, FIOSETOWN and SIOCSPGRP set a signal's
receiver.
"""
PRCTL_OPTIONS: Final = (3, 15, 16, 39, 0x53564D41)
"""PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_NO_NEW_PRIVS, PR_SET_VMA."""
UNIX_FAMILY, STREAM_TYPE, TYPE_MASK = 1, 1, 0xF


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


READ_ONLY: Final = _words(
    "creat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink "
    "symlinkat truncate ftruncate"
)
"""Calls that change a file system; they fail as on one that is mounted read-only."""
ALLOWED: Final = _words(
    # Files and descriptors.
    "read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 close close_range "
    "lseek fstat stat lstat newfstatat statx access faccessat faccessat2 getdents getdents64 "
    "readlink readlinkat getcwd chdir fchdir fsync fdatasync fadvise64 readahead sendfile splice "
    "tee flock dup dup2 dup3 pipe pipe2 umask statfs fstatfs getxattr lgetxattr fgetxattr "
    "listxattr eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime epoll_create "
    "epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 poll ppoll select pselect6 "
    # Memory.
    "mmap munmap mremap mprotect madvise brk msync mincore mlock munlock membarrier pkey_alloc "
    "pkey_free pkey_mprotect get_mempolicy "
    # Threads, time and signals.
    "futex futex_waitv set_robust_list get_robust_list set_tid_address rseq sched_yield "
    "sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max "
    "sched_get_priority_min getcpu rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending "
    "rt_sigsuspend rt_sigtimedwait sigaltstack restart_syscall pause alarm getitimer setitimer "
    "timer_create timer_settime timer_gettime timer_getoverrun timer_delete nanosleep "
    "clock_nanosleep clock_gettime clock_getres gettimeofday time times getrusage exit exit_group "
    "wait4 waitid "
    # What a process may know of itself and of the machine.
    "gettid getpid getppid getpgrp getpgid getsid getuid geteuid getgid getegid getresuid "
    "getresgid getgroups getrlimit getpriority capget sysinfo uname getrandom arch_prctl "
    # Connected sockets.
    "sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown getsockname getpeername "
    "getsockopt setsockopt"
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """`when` and `otherwise` are the instructions to skip when a condition holds or does not."""

    operation: int
    value: int
    when: int = 0
    otherwise: int = 0

    def packed(self) -> bytes:
        value = self.value & 0xFFFFFFFF
        return struct.pack("HBBI", self.operation, self.when, self.otherwise, value)


def refuse(number: int) -> Instruction:
    """Return the end of a program that makes the call fail with errno `number`."""
    return Instruction(RETURN, 0x00050000 | number)


_ALLOW: Final = Instruction(RETURN, ALLOW)
_KILL: Final = Instruction(RETURN, KILL)
_DENY: Final = refuse(errno.EPERM)
Block = tuple[Instruction, ...]


def _argument(index: int) -> Instruction:
    """Load the low half of an argument. Both architectures are little-endian."""
    return Instruction(LOAD, ARGUMENTS_OFFSET + 8 * index)


def _high(index: int) -> Instruction:
    return Instruction(LOAD, ARGUMENTS_OFFSET + 8 * index + 4)


def _only(index: int, values: Sequence[int]) -> Block:
    """Allow the call if the argument is one of `values`."""
    tests = [Instruction(JUMP_EQUAL, v, len(values) - i, 0) for i, v in enumerate(values)]
    return (_argument(index), *tests, _DENY, _ALLOW)


def _none_of(index: int, values: Sequence[int]) -> Block:
    """Allow the call unless the argument is one of `values`."""
    tests = [Instruction(JUMP_EQUAL, v, len(values) - i, 0) for i, v in enumerate(values)]
    return (_argument(index), *tests, _ALLOW, _DENY)


def _without_flags(index: int, flags: int, end: Instruction) -> Block:
    return (_argument(index), Instruction(JUMP_SET, flags, 0, 1), end, _ALLOW)


def checked_calls(pid: int) -> dict[str, Block]:
    """Return the calls that are allowed with some arguments, each with the block that decides."""
    return {
        "clone": (
            _argument(0),
            Instruction(JUMP_SET, CLONE_REFUSED_FLAGS, 3, 0),
            Instruction(AND, CLONE_THREAD_FLAGS),
            Instruction(JUMP_EQUAL, CLONE_THREAD_FLAGS, 0, 1),
            _ALLOW,
            _DENY,
        ),
        "clone3": (refuse(errno.ENOSYS),),
        "openat2": (refuse(errno.ENOSYS),),
        "open": _without_flags(1, CHANGES_FILES, refuse(errno.EROFS)),
        "openat": _without_flags(2, CHANGES_FILES, refuse(errno.EROFS)),
        "kill": _only(0, [pid]),
        "tgkill": _only(0, [pid]),
        # A process may read its own limits: pid 0, and no new limits (a null pointer).
        "prlimit64": (
            _argument(0),
            Instruction(JUMP_EQUAL, 0, 0, 5),
            _argument(2),
            Instruction(JUMP_EQUAL, 0, 0, 3),
            _high(2),
            Instruction(JUMP_EQUAL, 0, 0, 1),
            _ALLOW,
            _DENY,
        ),
        "socketpair": (
            _argument(0),
            Instruction(JUMP_EQUAL, UNIX_FAMILY, 0, 4),
            _argument(1),
            Instruction(AND, TYPE_MASK),
            Instruction(JUMP_EQUAL, STREAM_TYPE, 0, 1),
            _ALLOW,
            _DENY,
        ),
        "prctl": _only(0, PRCTL_OPTIONS),
        "ioctl": _none_of(1, TERMINAL_COMMANDS),
        "fcntl": _none_of(1, OWNER_COMMANDS),
        **{name: (refuse(errno.EROFS),) for name in READ_ONLY},
    }


def filter_program(architecture: Architecture, pid: int) -> bytes:
    """Return the filter of the process `pid`, as an array of `struct sock_filter`."""
    numbers = architecture.numbers
    program = [
        Instruction(LOAD, ARCHITECTURE_OFFSET),
        Instruction(JUMP_EQUAL, architecture.audit, 1, 0),
        _KILL,
        Instruction(LOAD, NUMBER_OFFSET),
        Instruction(JUMP_GREATER_EQUAL, X32_BIT, 0, 1),
        refuse(errno.ENOSYS),
    ]
    for name, block in checked_calls(pid).items():
        if name in numbers:
            program.append(Instruction(JUMP_EQUAL, numbers[name], 0, len(block)))
            program += block
    for first, last in _runs(numbers[name] for name in ALLOWED if name in numbers):
        program += [
            Instruction(JUMP_GREATER_EQUAL, first, 0, 2),
            Instruction(JUMP_GREATER_EQUAL, last + 1, 1, 0),
            _ALLOW,
        ]
    program.append(_DENY)
    return b"".join(each.packed() for each in program)


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return consecutive numbers as pairs of first and last, which keeps the filter short."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Apply a filter to this thread and everything that it starts, for good; raises OSError."""
    described = _Program(len(program) // 8, program)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(described))
