"""The priority of processes of user code: long calls give way to short ones.

A long call gets a lower share of the processors (its niceness), and it is interrupted at once when
a short one becomes ready: the scheduler of Linux lets a process run for a slice of some
milliseconds before it looks at others, and since 6.12 a process may ask for a shorter one. A short
call passes three processes, and each may meet a long call, so slices are what its latency consists
of beside long calls. Older kernels ignore the slice.

How long a call is, is decided by the time that it has had a processor: on a busy machine a short
call waits, and a lower priority would make it wait for longer.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from typing import Final

from fennel_core.executors.sandbox.syscalls import system_call

LONG_CALL_CPU_S: Final = 0.025
"""A call that has computed for this long is a long one."""
LONG_CALL_NICENESS: Final = 15
LONG_CALL_SLICE_NS: Final = 100_000
"""The shortest that Linux allows."""
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES: Final = struct.Struct("IIQiIQQQ")
"""`sched_attr`: size, policy, flags, niceness, priority, runtime (the slice), deadline, period."""


def cpu_s_of(pid: int) -> float:
    """Return how long the threads of a process have computed, 0 if it has ended."""
    if not pid:
        return 0.0  # The clock would be that of this process.
    try:
        # What clock_getcpuclockid(3) returns.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def lower_priority(pid: int) -> bool:
    """Give every thread of a process the priority of long calls; return whether that was allowed.

    New threads inherit it.
    """
    return _set_priority(pid, LONG_CALL_NICENESS, LONG_CALL_SLICE_NS)


def restore_priority(pid: int) -> bool:
    """Give a process the usual priority; return whether that was allowed, as it is to root."""
    return _set_priority(pid, 0, 0)


def _set_priority(pid: int, niceness: int, slice_ns: int) -> bool:
    number = _SCHED_SETATTR[os.uname().machine]
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, slice_ns, 0, 0)
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return True  # It has ended.
    for thread in threads:
        try:
            system_call(
                number, ctypes.c_int(int(thread)), ctypes.c_char_p(wanted), ctypes.c_uint32(0)
            )
        except ProcessLookupError:
            continue  # This thread has ended since.
        except PermissionError:
            return False
    return True
