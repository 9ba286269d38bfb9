"""Commands about the sources of a workspace, over the API with its token."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from fennel_core.apps.workspace_calls import Caller, called, of_workspace

TABLES: Final = ("postgres", "mysql")
"""Kinds that are read on a schedule, which says how old what was read may be."""
UNREAD_SHOWN_S: Final = 60.0
"""A stream that is read all the time is listed as up to this old: it is reported now and then."""


@click.group()
@of_workspace
@click.pass_context
def source(context: click.Context, url: str | None, token: str | None) -> None:
    """List, pause, resume, limit, test and rewind the sources of a workspace. A source has the name
    of its connector and of what is read there, as `shop/orders`.

    The token selects the workspace. For the demonstration: eval "$(fennel-core env)".
    """
    context.obj = (url, token)


@source.command("list")
@click.option("--branch", metavar="NAME", help="Only the sources that this branch has.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.pass_obj
def source_list(caller: Caller, branch: str | None, as_json: bool) -> None:
    """List sources: state, rows that entered, were late or became dead letters, messages that are
    not read yet, positions and the last error.
    """
    rows = called(caller, "GET", "/sources", {} if branch is None else {"branch": branch})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows["sources"]:
        _print(row)
    if not rows["sources"]:
        click.echo("No source." if branch is None else f"Branch {branch} has no source.")


def _print(row: dict[str, Any]) -> None:
    behind = "" if row["behind"] is None else f", {row['behind']} messages behind"
    if row.get("behind_ms") is not None:
        behind = f", {row['behind_ms'] / 1000:.1f} s behind"
    unread_s = row["unread_s"]
    if unread_s is not None and row["kind"] in TABLES:
        behind += f", read to its end {unread_s:.0f} s ago"
    elif unread_s is not None and unread_s >= UNREAD_SHOWN_S:
        behind += f", not read to its end for {unread_s:.0f} s"
    click.echo(
        f"{row['source']}  {row['kind']}  {row['state']}{behind}  "
        f"(branches: {', '.join(row['branches'])})"
    )
    for each in row["datasets"]:
        counted = (
            ""
            if each["accepted"] is None
            else f": {each['accepted']} rows, {each['late']} late, {each['dead']} dead letters"
        )
        ended = ", ended" if each["ended"] else ""
        click.echo(f"    {each['dataset']} ({each['cdc']}){counted}{ended}")
    if row["positions"]:
        offsets = ", ".join(f"{part}: {offset}" for part, offset in row["positions"].items())
        click.echo(f"    next offsets by partition: {offsets}")
    if row["paused_by"] is not None:
        click.echo(f"    paused by {row['paused_by']} at {row['paused_at']}")
    if row["rows_per_s"] is not None:
        click.echo(f"    limited to {row['rows_per_s']:g} rows per second by {row['limited_by']}")
    if row["state"] == "ended" and row["ended_at"] is not None:
        click.echo(f"    ended at {row['ended_at']}: nothing came for its idleness")
    if row["error"] is not None and row["state"] != "ended":
        retry = "" if row["retry_at"] is None else f", next attempt at {row['retry_at']}"
        failed = f"failed {row['failures']} times in a row{retry}: " if row["failures"] else ""
        click.echo(f"    {failed}{row['error']}")
        if row.get("remedy") is not None:
            click.echo(f"    {row['remedy']}")


@source.command("pause")
@click.argument("name")
@click.pass_obj
def source_pause(caller: Caller, name: str) -> None:
    """Stop reading source NAME in every branch, until `resume`; restarts do not end the pause.

    Its topic must keep the messages for that long. Needs the role commit or admin.
    """
    called(caller, "POST", "/sources/pause", body={"source": name})
    click.echo(f"Source {name} is paused; `fennel-core source resume {name}` reads it on.")


@source.command("resume")
@click.argument("name")
@click.pass_obj
def source_resume(caller: Caller, name: str) -> None:
    """Read source NAME on from where it was paused, or where a bounded one has ended."""
    called(caller, "POST", "/sources/resume", body={"source": name})
    click.echo(f"Source {name} is resumed.")


@source.command("limit")
@click.argument("name")
@click.option("--rows-per-s", type=float, metavar="N", help="Rows that may be read per second.")
@click.option("--none", "no_limit", is_flag=True, help="End the limit.")
@click.pass_obj
def source_limit(caller: Caller, name: str, rows_per_s: float | None, no_limit: bool) -> None:
    """Read source NAME no faster than N rows per second in all, in every branch: messages of a
    topic, records of a stream, rows of files and tables. Restarts do not end the limit.

    A source that is slower than what comes falls behind: `list` and `status` say so. Needs the role
    commit or admin.
    """
    if no_limit == (rows_per_s is not None):
        raise click.UsageError("give one of --rows-per-s N and --none")
    called(caller, "POST", "/sources/limit", body={"source": name, "rows_per_s": rows_per_s})
    what = "has no limit" if rows_per_s is None else f"is limited to {rows_per_s:g} rows per second"
    click.echo(f"Source {name} {what}.")


@source.command("test")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.pass_obj
def source_test(caller: Caller, name: str, as_json: bool) -> None:
    """Read five of the newest messages of source NAME with the stored credentials, and show the
    typed rows, and why others do not fit. Of files, the first rows of the newest.

    Nothing is written, and no position moves. Needs the role commit or admin.
    """
    found = called(caller, "POST", "/sources/test", body={"source": name})
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(
        f"Source {name} can be read. Newest messages that were looked at: {found['messages']}."
    )
    for each in found["datasets"]:
        fields = ", ".join(f"{field}: {kind}" for field, kind in each["fields"].items())
        click.echo(f"{each['dataset']} (branches: {', '.join(each['branches'])}): {fields}")
        for message in each["messages"]:
            if "row" in message:
                what = f"row {json.dumps(message['row'], ensure_ascii=False)}"
            elif "deleted" in message:
                what = f"delete of {json.dumps(message['deleted'], ensure_ascii=False)}"
            elif "error" in message:
                what = f"dead letter: {message['error']}"
            else:
                what = "left out by where, since, until, the sample or an erasure"
            place = (
                f"{message['file']} row" if "file" in message else f"[{message['partition']}] at"
            )
            click.echo(f"    {place} {message['offset']}: {what}")


@source.command("rewind")
@click.argument("name")
@click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="earliest, latest, a time (2026-01-31T12:00:00Z), or offsets by partition (0:12,3:40); "
    "of a table earliest or current, of a Kinesis stream no offsets.",
)
@click.option(
    "--duplicates-rows", is_flag=True, help="Rows of datasets without keys may be there twice."
)
@click.option("--skips-messages", is_flag=True, help="Messages that are skipped may be lost.")
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@click.pass_obj
def source_rewind(
    caller: Caller, name: str, to: str, duplicates_rows: bool, skips_messages: bool, dry_run: bool
) -> None:
    """Move paused source NAME to a place in its stream; `resume` reads it on from there.

    Rows of keyed datasets that are read again are the same rows; those of datasets without keys
    are appended again. Needs the role admin.
    """
    body = {
        "source": name,
        "to": to,
        "duplicates_rows": duplicates_rows,
        "skips_messages": skips_messages,
        "dry_run": dry_run,
    }
    done = called(caller, "POST", "/sources/rewind", body=body)
    for move in done["moves"]:
        click.echo(f"partition {move['partition']}: from {move['from']} to {move['to']}")
    click.echo(
        f"{'Would move' if dry_run else 'Moved'} {len(done['moves'])} partitions: "
        f"{done['read_again']} messages are read again, "
        f"{'an unknown number' if done['skipped'] is None else done['skipped']} are skipped."
    )
