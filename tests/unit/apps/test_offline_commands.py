"""`fennel-core offline` over a simulated API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from fennel_core.apps.cli import main

FILE = {"key": "k", "failed_key": "f", "rows": 2, "failed_rows": 1}
STATUS: dict[str, Any] = {
    "request_id": "q1",
    "state": "done",
    "completion_rate": 1.0,
    "rows": 2,
    "failed_rows": 1,
    "estimate": {"versions": 1234, "bytes": 5, "tail_records": 6},
    "workflow": "churn",
    "files": [FILE],
    "data": {"F.v": [1, 2]},
}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the responses of the API by path; a test may change them."""
    responses: dict[str, Any] = {
        "list": {"requests": [STATUS]},
        "status": STATUS,
        "file": None,
        "cancel": STATUS | {"state": "cancelled"},
    }

    @contextmanager
    def respond(method: str, url: str, **sent: Any) -> Iterator[httpx.Response]:
        yield response(url, sent)

    def response(url: str, sent: dict[str, Any]) -> httpx.Response:
        assert sent["headers"] == {"Authorization": "Bearer t"}
        path = url.removeprefix("http://api/api/v1/query_offline/")
        if path == "file" and responses["file"] is not None:
            return responses["file"]
        if path == "file":
            return httpx.Response(200, content=str(sorted(sent["params"].items())).encode())
        found = responses[path]
        return (
            httpx.Response(404, text=found)
            if isinstance(found, str)
            else httpx.Response(200, json=found)
        )

    monkeypatch.setattr(httpx, "stream", respond)
    return responses


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["offline", "--url", "http://api", "--token", "t", *words])


def test_requests_are_listed_shown_and_cancelled(api: dict[str, Any]) -> None:
    [_, line] = run("list").output.splitlines()
    assert line.split() == ["q1", "done", "100%", "2", "1", "1234", "churn"]
    api["list"] = {"requests": [STATUS | {"failed_rows": None, "estimate": None, "rows": None}]}
    assert run("list").output.splitlines()[1].split()[3:] == ["-", "-", "-", "churn"]
    shown = run("show", "q1").output
    assert '"state": "done"' in shown
    assert "F.v" not in shown, "features are downloaded"
    assert run("cancel", "q1").output == "Offline query q1 is cancelled.\n"


def test_a_result_is_downloaded_into_a_new_folder(api: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert run("download", "q1", str(folder)).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "00000.parquet",
        "failed-00000.parquet",
    ]
    assert "('failed', 'true')" in (folder / "failed-00000.parquet").read_text()
    again = run("download", "q1", str(folder))
    assert (again.exit_code, "is not empty" in again.output) == (1, True)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"state": "running"}, "is running and has no result"),
        ({"files": []}, "has expired"),
        ("there is no offline query", "there is no offline query"),
    ],
)
def test_what_cannot_be_downloaded_is_an_error(
    api: dict[str, Any], tmp_path: Path, status: Any, text: str
) -> None:
    api["status"] = status if isinstance(status, str) else STATUS | status
    done = run("download", "q1", str(tmp_path / "x"))
    assert (done.exit_code, text in done.output) == (1, True)
    assert not (tmp_path / "x").exists()


def test_a_download_that_breaks_off_leaves_no_file_with_the_name_of_a_whole_one(
    api: dict[str, Any], tmp_path: Path
) -> None:
    class Broken(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"PAR1"
            raise httpx.RemoteProtocolError("the peer closed the connection")

    api["file"] = httpx.Response(200, stream=Broken())
    done = run("download", "q1", str(tmp_path / "x"))
    assert (done.exit_code, "closed the connection" in done.output) == (1, True)
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["00000.part"]
