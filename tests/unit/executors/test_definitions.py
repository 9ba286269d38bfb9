"""A module of definitions becomes the bytes that the client would send."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fennel_core.executors.definitions import read
from fennel_core.executors.environment import INHERITED, allowed
from fennel_core.executors.internal_errors import DefinitionsNotLoaded
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.decode import decode_sync_request
from tests.support.executors import shared_settings

ORDER = """
from datetime import datetime
from fennel.connectors import Webhook, source
from fennel.datasets import dataset, field
__owner__ = "shop@example.com"
@source(Webhook(name="shop").endpoint("Order"), disorder="1d", cdc="upsert")
@dataset(index=True)
class Order:
    uid: int = field(key=True)
    amount: float
    ts: datetime
"""
FEATURES = """
from fennel.featuresets import feature, featureset
{imports}
__owner__ = "shop@example.com"
@featureset
class Spending:
    uid: int
    amount: float = feature(Order.amount, default=0.0)
"""


def _write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


async def _names(
    definitions: str, folder: Path, *, env: str | None = None, limit_s: float = 60
) -> tuple[set[str], str]:
    settings = await asyncio.to_thread(shared_settings)
    body, printed = await read(
        settings,
        definitions,
        workspace=WorkspaceId("shop"),
        env=env,
        message="why",
        folder=folder,
        limit_s=limit_s,
    )
    request = decode_sync_request(body)
    assert request.message == "why"
    return {each.name for each in (*request.datasets, *request.featuresets)}, printed


async def test_a_file_a_module_a_package_and_a_folder_of_files_give_all_they_define(
    tmp_path: Path,
) -> None:
    _write(
        tmp_path / "pack",
        __init__="from pack import features",
        order=ORDER,
        features=FEATURES.format(imports="from pack.order import Order"),
    )
    _write(
        tmp_path / "loose", order=ORDER, features=FEATURES.format(imports="from order import Order")
    )
    for definitions in ("pack", "pack/", str(tmp_path / "pack"), "loose/", "pack.features"):
        assert (await _names(definitions, tmp_path))[0] == {"Order", "Spending"}, definitions
    assert (await _names("pack/order.py", tmp_path))[0] == {"Order"}


async def test_what_the_code_prints_is_not_mixed_with_the_request_and_its_main_part_is_not_run(
    tmp_path: Path,
) -> None:
    _write(
        tmp_path,
        shop=ORDER
        + "print('loading')\nif __name__ == '__main__': raise SystemExit('committed by itself')\n",
    )
    names, printed = await _names("shop", tmp_path)
    assert (names, printed) == ({"Order"}, "loading")


async def test_the_code_sees_allowed_variables_only(tmp_path: Path) -> None:
    _write(tmp_path, shop=ORDER + "import os\nprint(*os.environ)\n")
    seen = set((await _names("shop", tmp_path))[1].split())
    # The C library names the terminal's size after the start.
    assert seen <= {*allowed({}), *INHERITED, "LINES", "COLUMNS"}


async def test_a_module_outside_of_the_project_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("password = 'hunter2'")
    _write(tmp_path / "project", shop=ORDER + "from linked import password\nprint(password)\n")
    (tmp_path / "project" / "linked.py").symlink_to(tmp_path / "secret.py")
    with pytest.raises(DefinitionsNotLoaded, match="outside of the project"):
        await _names("shop", tmp_path / "project")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("x = 1", "defines no dataset"),
        ("raise KeyError('mine')", "KeyError: 'mine'"),
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found'"),
        ("def broken(:", "SyntaxError"),
        (ORDER + "First = Order\n" + ORDER, "`Order` is defined twice"),
        (ORDER.replace('__owner__ = "shop@example.com"', ""), "must have an owner"),
        ("import os; os._exit(9)", "it exited with status 9"),
    ],
)
async def test_definitions_that_cannot_be_committed_are_refused_with_the_reason(
    tmp_path: Path, code: str, text: str
) -> None:
    _write(tmp_path, shop=code)
    with pytest.raises(DefinitionsNotLoaded) as caught:
        await _names("shop", tmp_path)
    assert text in str(caught.value)


async def test_a_missing_path_is_reported_as_given(tmp_path: Path) -> None:
    with pytest.raises(DefinitionsNotLoaded, match=r"no file or folder nowhere\.py"):
        await _names("nowhere.py", tmp_path)


async def test_code_that_never_ends_is_stopped(tmp_path: Path) -> None:
    _write(tmp_path, shop="while True: pass")
    with pytest.raises(DefinitionsNotLoaded, match=r"exceeded 0\.5 s"):
        await _names("shop", tmp_path, limit_s=0.5)


async def test_the_code_starts_no_process_and_reads_no_file_of_the_machine(tmp_path: Path) -> None:
    _write(tmp_path, process="import subprocess\nsubprocess.Popen(['sleep', '60'])")
    _write(tmp_path, file="open('/etc/passwd')")
    with pytest.raises(DefinitionsNotLoaded, match="Operation not permitted"):
        await _names("process", tmp_path)
    with pytest.raises(DefinitionsNotLoaded, match="Permission denied: '/etc/passwd'"):
        await _names("file", tmp_path)


async def test_what_one_project_patches_does_not_reach_the_next_one(tmp_path: Path) -> None:
    _write(tmp_path, first=ORDER + "import json\njson.dumps = None\n")
    _write(tmp_path, second=ORDER + "import json\nprint(json.dumps([]))\n")
    await _names("first", tmp_path)
    assert (await _names("second", tmp_path))[1] == "[]"
