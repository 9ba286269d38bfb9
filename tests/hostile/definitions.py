"""Definitions with hostile code as text, committed to a running platform with the real client."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import Final

from fennel_core.settings.model import Settings
from tests.hostile.programs import IMPORTS, Program
from tests.support.workspaces import Api

CONTAINERS_FILE: Final = Path("/etc/hostname")
HEAD: Final = """
from datetime import datetime

import pandas as pd
from fennel.connectors import Webhook, source
from fennel.datasets import Dataset, dataset, field, index, pipeline
from fennel.featuresets import extractor, featureset
from fennel.lib import inputs, meta, outputs

webhook = Webhook(name="door")


@source(webhook.endpoint("rows"), disorder="14d", cdc="append")
@meta(owner="tests@example.com")
@dataset
class Rows:
    uid: int
    at: datetime = field(timestamp=True)
"""
FEATURES: Final = """

@meta(owner="tests@example.com")
@featureset
class {name}:
    given: int
    out: int

    @extractor
    @inputs("given")
    @outputs("out")
    def run(cls, ts: pd.Series, given: pd.Series):
{body}
        return pd.Series(given + 1, name="out")
"""
FINE: Final = FEATURES.format(name="Fine", body="        pass")
"""What a neighbour commits."""
COMMIT: Final = """
import sys
import pandas as pd
from fennel.client import Client
sys.path.insert(0, sys.argv[1])
import hostile_definitions as d
from fennel.datasets import Dataset
from fennel.featuresets import Featureset
found = [each for each in vars(d).values() if isinstance(each, Dataset | Featureset)]
client = Client(sys.argv[2], sys.argv[3])
client.commit(
    message="hostile",
    datasets=[each for each in found if isinstance(each, Dataset)],
    featuresets=[each for each in found if isinstance(each, Featureset)],
)
if sys.argv[4:] == ["log"]:
    client.log("door", "rows", pd.DataFrame({"uid": [1], "at": [pd.Timestamp("2026-01-01")]}))
"""


def extractor_of(program: Program, name: str, settings: Settings) -> str:
    """Return the source of a featureset whose extractor runs a hostile program."""
    body = program.body.replace("'F.out'", "'out'").replace("\n    ", "\n")
    assert settings.secrets_key_file is not None
    # The container of user code has no key; a program is to be refused another file.
    secret = CONTAINERS_FILE if settings.reach_by_name else settings.secrets_key_file
    target = (
        f"PARENT, SOCKET, SECRET, PORT = os.getppid(), {str(settings.executors_socket)!r}, "
        f"{str(secret)!r}, {settings.kafka_bootstrap.rpartition(':')[2]}\n"
    )
    text = IMPORTS + target + body
    return FEATURES.format(name=name, body=textwrap.indent(text, " " * 8))


def commit(settings: Settings, folder: Path, text: str, api: Api, *more: str) -> None:
    """Commit definitions with the real client, from a file, as a user does."""
    folder.mkdir()
    (folder / "hostile_definitions.py").write_text(HEAD + text)
    arguments = [str(folder), settings.query_url, api.token or "", *more]
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [str(settings.executor_python), "-c", COMMIT, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


async def query(api: Api, featureset: str) -> tuple[int, str]:
    """Return status and response of a query of one row."""
    given = f"{featureset}.given"
    body = {"inputs": [given], "outputs": [f"{featureset}.out"], "data": {given: [1]}}
    return await api.call("POST", "/query", body)
