"""A module of definitions becomes the bytes that the client would send."""

from __future__ import annotations

from pathlib import Path

import pytest

from fennel_core.executors.definitions import read
from fennel_core.executors.internal_errors import DefinitionsNotLoaded
from fennel_core.settings.model import Settings
from fennel_core.wire.decode import decode_sync_request

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
    body, printed = await read(
        Settings(), definitions, env=env, message="why", folder=folder, limit_s=limit_s
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


async def test_the_code_sees_none_of_the_platforms_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENNEL_ADMIN_TOKEN", "hunter2")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "hunter3")
    _write(
        tmp_path,
        shop=ORDER
        + (
            "import os\nprint(sorted(n for n in os.environ if n.startswith(('FENNEL', "
            "'AIRFLOW'))))\n"
        ),
    )
    assert (await _names("shop", tmp_path))[1] == "[]"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("x = 1", "defines no dataset"),
        ("raise KeyError('mine')", "KeyError: 'mine'"),
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found'"),
        ("def broken(:", "SyntaxError"),
        (ORDER + "First = Order\n" + ORDER, "`Order` is defined twice"),
        (ORDER.replace('__owner__ = "shop@example.com"', ""), "must have an owner"),
        ("import os; os._exit(9)", "its process ended with 9"),
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


async def test_code_that_never_ends_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    (tmp_path / "shop.py").write_text(
        f"import subprocess, time\nopen({str(marker)!r}, "
        "'w').write(str(subprocess.Popen(['sleep', '60']).pid))\ntime.sleep(60)\n"
    )
    with pytest.raises(DefinitionsNotLoaded, match="exceeded 8 s"):
        await _names("shop", tmp_path, limit_s=8)
    child = int(marker.read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z", (
        "the child outlived its parent"
    )
