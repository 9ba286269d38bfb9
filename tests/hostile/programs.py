"""Hostile extractors, each with what must become of it.

A program is the body of an extractor `run(ts, given)`. What it manages to do that it must not, it
reports by raising `Exception("LEAK …")`. The names `PARENT`, `SOCKET`, `SECRET` and `PORT` stand
for the process that started it, the socket of the executors, a readable file of the platform, and
a port that a service of the platform listens on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from fennel_core.executors.calls import ExtractCall
from fennel_core.executors.errors import (
    CallFailed,
    CodeImportFailed,
    ExecutorCrashed,
    ExecutorOutOfMemory,
    ExecutorTimeout,
    UserCodeFailed,
)
from fennel_core.executors.protocol import TS
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.wire.pycode import PyCode

SECRET_TEXT = "LEAK of a secret"  # noqa: S105  # a fixed value of a test
SHORT_MS = 1_000
"""The limit of programs that are to reach it."""
ONE = pa.table({TS: pa.array([0], pa.timestamp("us", "UTC")), "F.given": [1]})
IMPORTS = """\
import ctypes, fcntl, gc, glob, json, os, signal, socket, sys, tempfile, threading, time
import numpy as np
import pandas as pd
import pyarrow as pa
from fennel_core.executors import protocol, worker
LIBC = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    raise Exception(f"LEAK {result}")
def answer(payload):
    send = worker.CallChannel.send
    worker.CallChannel.send = lambda self, header, _=b"": send(self, header, payload)
def batch(*values, kind="i8"):
    column = pa.array(values, kind)
    return pa.record_batch([column], names=["F.out"]).serialize().to_pybytes()
def the(kind):
    return next(o for o in gc.get_objects() if type(o) is kind)
"""
REFUSED = "Operation not permitted"
READ_ONLY = "Read-only file system"
UNREADABLE = "Permission denied"


@dataclass(frozen=True)
class Program:
    """`error` and `text` are what its author sees. `needs_landlock`: nothing else refuses it."""

    name: str
    body: str
    text: str
    error: type[CallFailed] | tuple[type[CallFailed], ...] = UserCodeFailed
    module: str = ""
    needs_landlock: bool = False


def raw_calls(names: Sequence[tuple[str, str]]) -> list[Program]:
    return [
        Program(f"system call {name}", f"checked(LIBC.syscall({arguments}))", REFUSED)
        for name, arguments in names
    ]


PROCESSES = [
    Program("fork bomb", "while True: os.fork()", REFUSED),
    Program("daemon", "if os.fork() == 0: os.setsid(); time.sleep(99)", REFUSED),
    Program("shell", "import subprocess; subprocess.run('id', shell=True)", REFUSED),
    Program("exec", "os.execv('/bin/sh', ['sh'])", REFUSED),
    Program("posix_spawn", "os.posix_spawn('/bin/sh', ['sh'], {})", REFUSED),
    Program(
        "multiprocessing", "import multiprocessing as m; m.Process(target=print).start()", REFUSED
    ),
    Program("kill the parent", "os.kill(PARENT, 9)", REFUSED),
    Program("kill everything", "os.kill(-1, 9)", REFUSED),
    Program("handle of the parent", "os.pidfd_open(PARENT)", REFUSED),
    Program(
        "signal through a descriptor",
        "a, b = socket.socketpair(); fcntl.fcntl(a, fcntl.F_SETOWN, PARENT)",
        REFUSED,
    ),
    Program(
        "debug the parent",
        "LIBC.ptrace.restype = ctypes.c_long; checked(LIBC.ptrace(16, PARENT))",
        REFUSED,
    ),
    Program("outlive the parent", "checked(LIBC.prctl(1, 0))", REFUSED),
    Program("become visible", "checked(LIBC.prctl(4, 1))", REFUSED),
    Program("raise a limit", "import resource; resource.setrlimit(7, (4096, 4096))", ""),
    *raw_calls(
        (
            ("clone", "56, 17, 0, 0, 0, 0"),
            ("vfork", "58"),
            ("process_vm_readv", "310, PARENT, 0, 0, 0, 0, 0"),
            ("io_uring_setup", "425, 8, ctypes.create_string_buffer(120)"),
            ("unshare", "272, 0x10000000"),
            ("mount", "165, b'x', b'/', b'tmpfs', 0, 0"),
            ("bpf", "321, 0, 0, 0"),
            ("userfaultfd", "323, 0"),
            ("keyctl", "250, 0, 0, 0"),
            ("open_by_handle_at", "304, 0, 0, 0"),
            ("perf_event_open", "298, 0, 0, -1, -1, 0"),
            ("shmget", "29, 0, 4096, 0x3ff"),
        )
    ),
    Program(
        "clone3",
        "checked(LIBC.syscall(435, ctypes.create_string_buffer(88), 88))",
        "Function not implemented",
    ),
    Program("x32 calls", "checked(LIBC.syscall(0x40000000 + 57))", "Function not implemented"),
]

FILES = [
    Program("a secret file", "raise Exception('LEAK ' + open(SECRET).read())", UNREADABLE,
            needs_landlock=True),
    Program("/etc/passwd", "raise Exception('LEAK ' + open('/etc/passwd').read())", UNREADABLE,
            needs_landlock=True),
    Program("list the root folder", "raise Exception(f'LEAK {os.listdir(chr(47))}')", UNREADABLE,
            needs_landlock=True),
    Program("environment of the parent",
            "raise Exception('LEAK ' + open(f'/proc/{PARENT}/environ').read())", UNREADABLE),
    Program("environments of all processes", "raise Exception('LEAK' + ''.join(open(p).read() "
            "for p in glob.glob('/proc/[0-9]*/environ')) + open('/proc/1/environ').read())",
            UNREADABLE),
    Program("memory of the parent", "open(f'/proc/{PARENT}/mem', 'rb')", UNREADABLE),
    Program("write a file", "open('/tmp/hostile', 'w')", READ_ONLY),
    Program("unlink the socket", "os.unlink(SOCKET)", READ_ONLY),
    Program("replace the socket", "os.rename(SOCKET, SOCKET + '.old')", READ_ONLY),
    Program("shorten a file", "os.truncate(SECRET, 0)", READ_ONLY),
    Program("link a file", "os.symlink(SECRET, '/tmp/hostile')", READ_ONLY),
    Program("change the mode of a file", "os.chmod(SECRET, 0o777)", REFUSED),
    Program("fill the disk",
            "[tempfile.NamedTemporaryFile(delete=False).write(b'x' << 26) for _ in range(99)]",
            "No usable temporary directory"),
    Program("fill memory with files", "os.memfd_create('x')", REFUSED),
]  # fmt: skip

NETWORK = [
    Program("TCP to a service", "socket.create_connection(('127.0.0.1', PORT))", REFUSED),
    Program("metadata address", "socket.create_connection(('169.254.169.254', 80))", REFUSED),
    Program("UDP", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", REFUSED),
    Program("names", "socket.getaddrinfo('example.com', 80); raise Exception('LEAK')", ""),
    Program("listen", "socket.create_server(('127.0.0.1', 0))", REFUSED),
    Program("netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", REFUSED),
    Program(
        "the executors' socket", "socket.socket(socket.AF_UNIX).connect(SOCKET)", REFUSED
    ),
    Program("a connected socket, connected again",
            "a, b = socket.socketpair(); a.connect(SOCKET); raise Exception('LEAK')", REFUSED),
    Program("datagrams",
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', SOCKET)",
            REFUSED),
]  # fmt: skip

RESOURCES = [
    Program("memory", "x = []\n    while True: x.append(np.zeros(10_000_000))", "out of memory",
            ExecutorOutOfMemory),
    Program("threads", "while True: threading.Thread(target=time.sleep, args=(60,)).start()", "",
            (UserCodeFailed, ExecutorCrashed)),
    Program("files", "x = [os.open('/dev/null', 0) for _ in range(10_000)]", "Too many open files"),
    Program("endless loop", "while True: pass", "longer than its limit", ExecutorTimeout),
    Program("ignored signals",
            "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]\n    while True: pass",
            "longer than its limit", ExecutorTimeout),
    Program("sleep at import", "pass", "longer than its limit", ExecutorTimeout,
            module="time.sleep(99)"),
    Program("recursion", "f = lambda f: f(f); f(f)", "maximum recursion depth"),
    Program("recursion in C", "sys.setrecursionlimit(1 << 30)\n"
            "    f = lambda _: sorted([0], key=f); f(0)", "", (UserCodeFailed, ExecutorCrashed)),
    Program("more rows than given", "return pd.Series(np.zeros(50_000_000, 'i8'), name='F.out')",
            "Number of values"),
]  # fmt: skip

ENDS = [
    Program("segmentation fault", "ctypes.string_at(0)", "SIGSEGV", ExecutorCrashed),
    Program("exit", "sys.exit(3)", "failed to run"),
    Program("end", "os._exit(0)", "exited with status 0", ExecutorCrashed),
    Program("abort", "os.abort()", "SIGABRT", ExecutorCrashed),
    Program("end at import", "pass", "exited with status 7", ExecutorCrashed, "os._exit(7)"),
    Program("panic", "raise type('Panic', (BaseException,), {})('panicked')", "panicked"),
    Program("panic at import", "pass", "panicked", CodeImportFailed,
            "raise type('Panic', (BaseException,), {})('panicked')"),
    Program("interrupt", "raise KeyboardInterrupt('stop')", "stop"),
    Program("an error whose text ends the process",
            "raise type('E', (Exception,), {'__str__': lambda s: os._exit(5)})()",
            "exited with status 5", ExecutorCrashed),
    Program("an error whose text is an error",
            "raise type('Odd', (Exception,), {'__str__': lambda s: 1 / 0})()", "Odd"),
    Program("a value that ends the process",
            "return pd.Series([type('V', (), {'__int__': lambda s: os._exit(6), "
            "'__index__': lambda s: os._exit(6), '__float__': lambda s: os._exit(6)})()], "
            "name='F.out')", "", (UserCodeFailed, ExecutorCrashed)),
]  # fmt: skip

ANSWERS = [
    Program("a huge answer", "answer(b'x' * (65 << 20))",
            "more than the limit"),
    Program("a malformed answer", "answer(b'garbage')",
            "not valid Arrow data"),
    Program("an empty answer", "answer(b'')", "not valid Arrow data"),
    Program("another schema", "answer(batch(True, kind='bool'))",
            "not valid Arrow data"),
    Program("more rows", "answer(batch(1, 2))",
            "2 rows, at most 1"),
    Program("fewer rows", "answer(batch())",
            "0 rows, 1 are expected"),
    Program("nulls", "answer(batch(None))",
            "not optional"),
    Program("a header that is no object",
            "the(worker.CallChannel)._sock.sendall(protocol.pack(b'[]'))", "malformed",
            ExecutorCrashed),
    Program("a header that is no JSON",
            "the(worker.CallChannel)._sock.sendall(protocol.pack(b'[' * 100_000))", "malformed",
            ExecutorCrashed),
    Program("a huge header",
            "the(worker.CallChannel)._sock.sendall(protocol.pack(b'x' * (2 << 20)))", "malformed",
            ExecutorCrashed),
    Program("bytes that are no frame",
            "the(worker.CallChannel)._sock.sendall(b'x' * 4096)", "malformed", ExecutorCrashed),
    Program("an unknown request", "the(worker.CallChannel).request({'op': 'erase'})",
            "malformed", ExecutorCrashed),
    Program("an error that is no text",
            "the(worker.CallChannel).send({'op': 'answer', 'error': [], 'message': {}})",
            "malformed", ExecutorCrashed),
    Program("control messages", "os.write(3, b'DDDD'); time.sleep(9)", "interfered",
            ExecutorCrashed),
    Program("a response that never comes",
            "the(worker.Worker)._answering[0] = 1; os._exit(0)", "closed the connection|was lost",
            ExecutorCrashed),
    Program("another secret", "the(worker.Worker)._secret('OTHER' + '_WORKSPACE')",
            "does not declare to use the secret"),
    Program("a dataset", "the(worker.CallChannel).request({'op': 'lookup'})",
            "datasets can only be looked up"),
]  # fmt: skip

READS = [
    Program("environment", "raise Exception('LEAK' if 'canary' in str(os.environ) else 'none')",
            "none"),
    Program("first environment",
            "raise Exception('LEAK' if 'canary' in open('/proc/self/environ').read() else 'none')",
            ""),
    Program("descriptors",
            "n = [i for i in range(64) if not LIBC.fcntl(i, 1) < 0]\n    "
            "raise Exception(f'LEAK {n}' if len(n) > 5 else 'none')", "none"),
]  # fmt: skip

PROGRAMS = [*PROCESSES, *FILES, *NETWORK, *RESOURCES, *ENDS, *ANSWERS, *READS]


@dataclass(frozen=True)
class Target:
    """What hostile code may want of its machine."""

    socket: Path
    secret: Path
    port: int

    def text(self, body: str, module: str = "") -> str:
        """Return the module of an extractor."""
        names = (
            f"PARENT, SOCKET, SECRET, PORT = os.getppid(), {str(self.socket)!r}, "
            f"{str(self.secret)!r}, {self.port}\n"
        )
        return (
            f"{names}{module}\ndef run(ts, given):\n    {body}\n"
            "    return pd.Series(given + 1, name='F.out')\n"
        )

    def call(self, body: str, module: str = "") -> ExtractCall:
        given, out = Field("F.given", Int()), Field("F.out", Int())
        code = PyCode("run", "", "", self.text(body, module), IMPORTS, (), ())
        return ExtractCall(code, "F", "e", (given,), (out,), ())
