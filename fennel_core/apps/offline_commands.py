"""Commands about training data, over the API with the token of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from fennel_core.apps.command_context import fail
from fennel_core.apps.workspace_calls import Caller, called, of_workspace, opened

ROUTE: Final = "/query_offline"


@click.group()
@of_workspace
@click.pass_context
def offline(context: click.Context, url: str | None, token: str | None) -> None:
    """List, show, cancel and download offline queries: training data that programs asked for with
    the client's `query_offline`.

    The token selects the workspace. For the demonstration: eval "$(fennel-core env)".
    """
    context.obj = (url, token)


@offline.command("list")
@click.option("-n", "count", default=20, show_default=True, help="At most so many.")
@click.pass_obj
def offline_list(caller: Caller, count: int) -> None:
    """List the newest requests, newest first: failed rows so far, and the versions of datasets
    that each was estimated to read.
    """
    found = _json(caller, "GET", "/list", {"n": count})["requests"]
    click.echo(
        f"{'id':32}  {'state':9}  {'done':>5}  {'rows':>9}  {'failed':>7}  {'versions':>11}  "
        "workflow"
    )
    for each in found:
        versions = None if each["estimate"] is None else each["estimate"]["versions"]
        rows, failed, read = (
            "-" if number is None else str(number)
            for number in (each["rows"], each["failed_rows"], versions)
        )
        click.echo(
            f"{each['request_id']:32}  {each['state']:9}  {each['completion_rate']:>5.0%}  "
            f"{rows:>9}  {failed:>7}  {read:>11}  {each['workflow']}"
        )


@offline.command("show")
@click.argument("request_id", metavar="ID")
@click.pass_obj
def offline_show(caller: Caller, request_id: str) -> None:
    """Show a request: its state, its files, and rows that failed, with the reasons."""
    import json

    status = _json(caller, "GET", "/status", {"request_id": request_id})
    status.pop("data", None)
    click.echo(json.dumps(status, indent=2))


@offline.command("cancel")
@click.argument("request_id", metavar="ID")
@click.pass_obj
def offline_cancel(caller: Caller, request_id: str) -> None:
    """Cancel a request; its Spark jobs stop within seconds and its files are deleted."""
    status = _json(caller, "POST", "/cancel", {"request_id": request_id})
    click.echo(f"Offline query {request_id} is {status['state']}.")


@offline.command("download")
@click.argument("request_id", metavar="ID")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.pass_obj
def offline_download(caller: Caller, request_id: str, folder: Path) -> None:
    """Write the result into a new FOLDER: 00000.parquet, … in the order of the rows, and
    failed-00000.parquet, … with the rows that failed.
    """
    status = _json(caller, "GET", "/status", {"request_id": request_id})
    if status["state"] != "done":
        fail(f"Offline query {request_id} is {status['state']} and has no result.")
    if not status["files"]:
        fail(f"The result of offline query {request_id} has expired; send the request again.")
    if folder.exists() and any(folder.iterdir()):
        fail(f"{folder} is not empty; name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(status["files"]):
        names = {"": False} | ({"failed-": True} if file["failed_key"] else {})
        for prefix, failed in names.items():
            asked = {"request_id": request_id, "number": number, "failed": str(failed).lower()}
            _download(caller, asked, folder / f"{prefix}{number:05}.parquet")
    rows, failures = status["rows"], status["failed_rows"]
    click.echo(f"Wrote {rows} rows to {folder}; {failures} of them failed.")


def _json(caller: Caller, method: str, path: str, asked: dict[str, Any]) -> dict[str, Any]:
    return called(caller, method, ROUTE + path, asked, {} if method == "POST" else None)


def _download(caller: Caller, asked: dict[str, Any], path: Path) -> None:
    """Write a file of a result, piece by piece; a part of one has another name."""
    part = path.with_suffix(".part")
    with opened(caller, "GET", f"{ROUTE}/file", asked, None) as response, part.open("wb") as file:
        for piece in response.iter_bytes():
            file.write(piece)
    part.rename(path)
