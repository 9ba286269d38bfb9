"""The decisions of the system call filter, by interpreting its program for both architectures."""

from __future__ import annotations

import errno
import struct

import pytest

from fennel_core.executors.sandbox import seccomp
from fennel_core.executors.sandbox.seccomp import ALLOW, ALLOWED, KILL, READ_ONLY, filter_program
from fennel_core.executors.sandbox.syscalls import AARCH64, X86_64, Architecture

PID = 4711
BOTH = pytest.mark.parametrize("machine", [X86_64, AARCH64], ids=["x86_64", "aarch64"])
KNOWN_ELSEWHERE = seccomp._words(
    "fork vfork execve execveat socket connect bind ptrace memfd_create io_uring_setup unshare "
    "mount process_vm_readv setxattr chmod fchmod fchmodat rt_sigqueueinfo tkill pidfd_open "
    "pidfd_send_signal open_by_handle_at bpf keyctl shmget setns userfaultfd perf_event_open "
    "utimensat setuid setresuid fallocate copy_file_range setsid seccomp capset"
)


def decision(machine: Architecture, number: int, *arguments: int, audit: int | None = None) -> int:
    """Run the filter as the kernel does; return 0 for an allowed call, -1 for a kill, or errno."""
    words = list(arguments) + [0] * (6 - len(arguments))
    data = struct.pack("<iIQ6Q", number, machine.audit if audit is None else audit, 0, *words)
    program = list(struct.iter_unpack("<HBBI", filter_program(machine, PID)))
    place = value = 0
    while True:
        operation, when, otherwise, operand = program[place]
        place += 1
        match operation:
            case seccomp.LOAD:
                (value,) = struct.unpack_from("<I", data, operand)
            case seccomp.AND:
                value &= operand
            case seccomp.JUMP_EQUAL:
                place += when if value == operand else otherwise
            case seccomp.JUMP_GREATER_EQUAL:
                place += when if value >= operand else otherwise
            case seccomp.JUMP_SET:
                place += when if value & operand else otherwise
            case seccomp.RETURN:
                return {ALLOW: 0, KILL: -1}.get(operand, operand & 0xFFFF)
            case _:
                raise AssertionError(f"the kernel would refuse the operation {operation}")


@BOTH
def test_the_listed_calls_are_allowed_and_all_other_numbers_refused(machine: Architecture) -> None:
    listed = {machine.numbers[name] for name in ALLOWED if name in machine.numbers}
    checked = {machine.numbers[n] for n in seccomp.checked_calls(PID) if n in machine.numbers}
    for number in range(600):
        if number not in checked:
            expected = 0 if number in listed else errno.EPERM
            assert decision(machine, number) == expected, number


@BOTH
def test_no_call_that_reaches_beyond_the_process_is_listed(machine: Architecture) -> None:
    assert not set(KNOWN_ELSEWHERE) & (set(ALLOWED) | set(seccomp.checked_calls(PID)))
    for name in KNOWN_ELSEWHERE:
        if name in machine.numbers:
            assert decision(machine, machine.numbers[name]) == errno.EPERM, name
    for name in READ_ONLY:
        if name in machine.numbers:
            assert decision(machine, machine.numbers[name]) == errno.EROFS, name


@BOTH
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (0x003D0F00,), 0),  # what the C library passes for a thread
        ("clone", (17,), errno.EPERM),  # fork
        ("clone", (0x4111,), errno.EPERM),  # vfork
        ("clone", (0x00010900 | 0x10000000,), errno.EPERM),  # a thread in a new user namespace
        ("clone3", (1, 88), errno.ENOSYS),
        ("openat2", (), errno.ENOSYS),
        ("openat", (0, 1, 0), 0),
        ("openat", (0, 1, 0x80002), 0),
        ("openat", (0, 1, 0x41), errno.EROFS),
        ("openat", (0, 1, 0x201), errno.EROFS),
        ("openat", (0, 1, 0x410002), errno.EROFS),
        ("kill", (PID, 9), 0),
        ("kill", (PID + 1, 9), errno.EPERM),
        ("kill", (2**32 - 1, 9), errno.EPERM),
        ("tgkill", (PID, PID + 5, 6), 0),
        ("tgkill", (1, 1, 9), errno.EPERM),
        ("prlimit64", (0, 7, 0, 1), 0),
        ("prlimit64", (0, 7, 1, 0), errno.EPERM),
        ("prlimit64", (0, 7, 1 << 32, 0), errno.EPERM),
        ("prlimit64", (PID + 1, 7, 0, 1), errno.EPERM),
        ("socketpair", (1, 1 | 0x80800), 0),
        ("socketpair", (1, 2), errno.EPERM),
        ("socketpair", (2, 1), errno.EPERM),
        ("prctl", (15, 1), 0),
        ("prctl", (1, 0), errno.EPERM),
        ("prctl", (4, 1), errno.EPERM),
        ("prctl", (22, 2), errno.EPERM),
        ("ioctl", (3, 0x5401), 0),
        ("ioctl", (3, 0x5412), errno.EPERM),
        ("ioctl", (3, 0x8901), errno.EPERM),
        ("fcntl", (3, 1), 0),
        ("fcntl", (3, 8, PID), errno.EPERM),
        ("fcntl", (3, 10, 9), errno.EPERM),
        ("fcntl", (3, 15, 0), errno.EPERM),
    ],
)
def test_arguments_decide(
    machine: Architecture, name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert decision(machine, machine.numbers[name], *arguments) == expected


def test_calls_of_another_table_are_not_allowed() -> None:
    assert decision(X86_64, 0, audit=0x40000003) == -1
    assert decision(X86_64, seccomp.X32_BIT) == errno.ENOSYS
    assert decision(X86_64, X86_64.numbers["open"], 0, 0x41) == errno.EROFS


def test_a_filter_is_shorter_than_the_kernel_allows() -> None:
    assert len(filter_program(X86_64, PID)) // 8 < 4096
