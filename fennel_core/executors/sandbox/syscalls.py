"""Numbers of system calls, by architecture, and the calls of the C library that need them.

From Linux' `asm/unistd_64.h` (x86-64) and `asm-generic/unistd.h` (AArch64). A name that an
architecture does not have is absent from its table.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final


def _table(text: str) -> Mapping[str, int]:
    pairs = (word.split("=") for word in text.split())
    return MappingProxyType({name: int(number) for name, number in pairs})


@dataclass(frozen=True, slots=True)
class Architecture:
    """`audit` identifies the architecture of a system call to a seccomp filter."""

    audit: int
    numbers: Mapping[str, int]


X86_64: Final = Architecture(
    0xC000003E,
    _table(
        """
        read=0 write=1 open=2 close=3 stat=4 fstat=5 lstat=6 poll=7 lseek=8 mmap=9 mprotect=10
        munmap=11 brk=12 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 ioctl=16 pread64=17
        pwrite64=18 readv=19 writev=20 access=21 pipe=22 select=23 sched_yield=24 mremap=25 msync=26
        mincore=27 madvise=28 shmget=29 dup=32 dup2=33 pause=34 nanosleep=35 getitimer=36 alarm=37
        setitimer=38 getpid=39 sendfile=40 socket=41 connect=42 sendto=44 recvfrom=45 sendmsg=46
        recvmsg=47 shutdown=48 bind=49 getsockname=51 getpeername=52 socketpair=53 setsockopt=54
        getsockopt=55 clone=56 fork=57 vfork=58 execve=59 exit=60 wait4=61 kill=62 uname=63 fcntl=72
        flock=73 fsync=74 fdatasync=75 truncate=76 ftruncate=77 getdents=78 getcwd=79 chdir=80
        fchdir=81 rename=82 mkdir=83 rmdir=84 creat=85 link=86 unlink=87 symlink=88 readlink=89
        chmod=90 fchmod=91 umask=95 gettimeofday=96 getrlimit=97 getrusage=98 sysinfo=99 times=100
        ptrace=101 getuid=102 getgid=104 setuid=105 geteuid=107 getegid=108 getppid=110 getpgrp=111
        setsid=112 getgroups=115 setresuid=117 getresuid=118 getresgid=120 getpgid=121 getsid=124
        capget=125 capset=126 rt_sigpending=127 rt_sigtimedwait=128 rt_sigqueueinfo=129
        rt_sigsuspend=130 sigaltstack=131 statfs=137 fstatfs=138 getpriority=140 sched_getparam=143
        sched_getscheduler=145 sched_get_priority_max=146 sched_get_priority_min=147 mlock=149
        munlock=150 prctl=157 arch_prctl=158 mount=165 gettid=186 readahead=187 setxattr=188
        getxattr=191 lgetxattr=192 fgetxattr=193 listxattr=194 tkill=200 time=201 futex=202
        sched_getaffinity=204 epoll_create=213 getdents64=217 set_tid_address=218
        restart_syscall=219 fadvise64=221 timer_create=222 timer_settime=223 timer_gettime=224
        timer_getoverrun=225 timer_delete=226 clock_gettime=228 clock_getres=229 clock_nanosleep=230
        exit_group=231 epoll_wait=232 epoll_ctl=233 tgkill=234 get_mempolicy=239 waitid=247
        keyctl=250 openat=257 mkdirat=258 newfstatat=262 unlinkat=263 renameat=264 linkat=265
        symlinkat=266 readlinkat=267 fchmodat=268 faccessat=269 pselect6=270 ppoll=271 unshare=272
        set_robust_list=273 get_robust_list=274 splice=275 tee=276 utimensat=280 epoll_pwait=281
        timerfd_create=283 eventfd=284 fallocate=285 timerfd_settime=286 timerfd_gettime=287
        eventfd2=290 epoll_create1=291 dup3=292 pipe2=293 preadv=295 pwritev=296 perf_event_open=298
        recvmmsg=299 prlimit64=302 open_by_handle_at=304 sendmmsg=307 setns=308 getcpu=309
        process_vm_readv=310 renameat2=316 seccomp=317 getrandom=318 memfd_create=319 bpf=321
        execveat=322 userfaultfd=323 membarrier=324 copy_file_range=326 preadv2=327 pwritev2=328
        pkey_mprotect=329 pkey_alloc=330 pkey_free=331 statx=332 rseq=334 pidfd_send_signal=424
        io_uring_setup=425 pidfd_open=434 clone3=435 close_range=436 openat2=437 faccessat2=439
        epoll_pwait2=441 futex_waitv=449
        """
    ),
)
AARCH64: Final = Architecture(
    0xC00000B7,
    _table(
        """
        setxattr=5 getxattr=8 lgetxattr=9 fgetxattr=10 listxattr=11 getcwd=17 eventfd2=19
        epoll_create1=20 epoll_ctl=21 epoll_pwait=22 dup=23 dup3=24 fcntl=25 ioctl=29 flock=32
        mkdirat=34 unlinkat=35 symlinkat=36 linkat=37 renameat=38 mount=40 statfs=43 fstatfs=44
        truncate=45 ftruncate=46 fallocate=47 faccessat=48 chdir=49 fchdir=50 fchmod=52 fchmodat=53
        openat=56 close=57 pipe2=59 getdents64=61 lseek=62 read=63 write=64 readv=65 writev=66
        pread64=67 pwrite64=68 preadv=69 pwritev=70 sendfile=71 pselect6=72 ppoll=73 splice=76
        tee=77 readlinkat=78 newfstatat=79 fstat=80 fsync=82 fdatasync=83 timerfd_create=85
        timerfd_settime=86 timerfd_gettime=87 utimensat=88 capget=90 capset=91 exit=93 exit_group=94
        waitid=95 set_tid_address=96 unshare=97 futex=98 set_robust_list=99 get_robust_list=100
        nanosleep=101 getitimer=102 setitimer=103 timer_create=107 timer_gettime=108
        timer_getoverrun=109 timer_settime=110 timer_delete=111 clock_gettime=113 clock_getres=114
        clock_nanosleep=115 ptrace=117 sched_getscheduler=120 sched_getparam=121
        sched_getaffinity=123 sched_yield=124 sched_get_priority_max=125 sched_get_priority_min=126
        restart_syscall=128 kill=129 tkill=130 tgkill=131 sigaltstack=132 rt_sigsuspend=133
        rt_sigaction=134 rt_sigprocmask=135 rt_sigpending=136 rt_sigtimedwait=137
        rt_sigqueueinfo=138 rt_sigreturn=139 getpriority=141 setuid=146 setresuid=147 getresuid=148
        getresgid=150 times=153 getpgid=155 getsid=156 setsid=157 getgroups=158 uname=160
        getrlimit=163 getrusage=165 umask=166 prctl=167 getcpu=168 gettimeofday=169 getpid=172
        getppid=173 getuid=174 geteuid=175 getgid=176 getegid=177 gettid=178 sysinfo=179 shmget=194
        socket=198 socketpair=199 bind=200 connect=203 getsockname=204 getpeername=205 sendto=206
        recvfrom=207 setsockopt=208 getsockopt=209 shutdown=210 sendmsg=211 recvmsg=212
        readahead=213 brk=214 munmap=215 mremap=216 keyctl=219 clone=220 execve=221 mmap=222
        fadvise64=223 mprotect=226 msync=227 mlock=228 munlock=229 mincore=232 madvise=233
        get_mempolicy=236 perf_event_open=241 recvmmsg=243 wait4=260 prlimit64=261 setns=268
        sendmmsg=269 process_vm_readv=270 renameat2=276 seccomp=277 getrandom=278 memfd_create=279
        bpf=280 execveat=281 userfaultfd=282 membarrier=283 copy_file_range=285 preadv2=286
        pwritev2=287 pkey_mprotect=288 pkey_alloc=289 pkey_free=290 statx=291 rseq=293
        pidfd_send_signal=424 io_uring_setup=425 pidfd_open=434 clone3=435 close_range=436
        openat2=437 faccessat2=439 epoll_pwait2=441 futex_waitv=449
        """
    ),
)
BY_MACHINE: Final[Mapping[str, Architecture]] = MappingProxyType(
    {"x86_64": X86_64, "aarch64": AARCH64}
)

# Used by this package itself; the numbers are the same on every architecture.
LANDLOCK_CREATE_RULESET: Final = 444
LANDLOCK_ADD_RULE: Final = 445
LANDLOCK_RESTRICT_SELF: Final = 446

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def system_call(number: int, *arguments: Any) -> int:
    """Make a system call; raises OSError."""
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    return _checked(result, f"system call {number}")


def prctl(option: int, *arguments: Any) -> int:
    """Call prctl(2) with up to four further arguments; raises OSError."""
    padded = [
        ctypes.c_ulong(each) if isinstance(each, int) else each
        for each in (*arguments, 0, 0, 0, 0)[:4]
    ]
    result: int = _libc.prctl(ctypes.c_int(option), *padded)
    return _checked(result, f"prctl {option}")


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
