"""What the executors log: how processes ended, and nothing that user code or its secrets say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from fennel_core.executors.calls import ExtractCall
from fennel_core.executors.client import Callbacks, Executors
from fennel_core.executors.errors import CallFailed
from fennel_core.executors.protocol import TS
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.wire.pycode import PyCode
from tests.support.executors import HostStart, running_host

CANARY = "canary-of-a-workspace"
IMPORTS = (
    "import ctypes, faulthandler, logging, os, sys, warnings\nimport pandas as pd\n"
    "from fennel.lib import secrets\n"
)
ENDINGS = (
    "pass",
    "raise ValueError(value)",
    "os.abort()",
    "ctypes.string_at(0)",
    "faulthandler.enable(); ctypes.string_at(0)",
    "os._exit(3)",
    "os.write(3, value.encode())",
    "sys.excepthook(ValueError, ValueError(value), None); raise SystemExit(value)",
)


def calling(ending: str) -> ExtractCall:
    text = (
        "def run(ts, given):\n"
        "    value = secrets.get('vault')\n"
        "    print(value, flush=True)\n"
        "    print(value, file=sys.stderr, flush=True)\n"
        "    print(value, file=sys.__stderr__, flush=True)\n"
        "    [os.write(number, value.encode()) for number in (1, 2)]\n"
        "    logging.getLogger('fennel.executors').error(value)\n"
        "    warnings.warn(value)\n"
        f"    {ending}\n"
        "    return pd.Series(given + 1, name='F.out')\n"
    )
    given, out = Field("F.given", Int()), Field("F.out", Int())
    return ExtractCall(PyCode("run", "", "", text, IMPORTS, (), ()), "F", "e", (given,), (out,), ())


async def test_no_secret_reaches_the_log_of_the_executors(tmp_path: Path) -> None:
    one = pa.table({TS: pa.array([0], pa.timestamp("us", "UTC")), "F.given": [1]})
    callbacks = Callbacks(workspace="w", secret=lambda _: asyncio.sleep(0, CANARY))
    start = HostStart(variables={"FENNEL_ADMIN_TOKEN": CANARY, "AWS_SECRET_ACCESS_KEY": CANARY})
    with running_host(tmp_path, start) as socket:
        async with Executors(socket, time_limit_ms=10_000) as executors:
            for ending in ENDINGS:
                if ending == "pass":
                    await executors.run(calling(ending), one, callbacks=callbacks)
                    continue
                with pytest.raises(CallFailed):
                    await executors.run(calling(ending), one, callbacks=callbacks)
    log = (tmp_path / "executors.log").read_text()
    assert log.count("worker") >= 5, "the ends of processes are logged"
    assert CANARY not in log
