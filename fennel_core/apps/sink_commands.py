"""Commands about the sinks of a workspace, over the API with its token."""

from __future__ import annotations

import json
from typing import Any

import click

from fennel_core.apps.workspace_calls import Caller, called, of_workspace


@click.group()
@of_workspace
@click.pass_context
def sink(context: click.Context, url: str | None, token: str | None) -> None:
    """List, pause, resume and rewind the sinks of a workspace. A sink has the name of its connector
    and of what is written there, as `hooks/rows`.

    The token selects the workspace. For the demonstration: eval "$(fennel-core env)".
    """
    context.obj = (url, token)


@sink.command("list")
@click.option("--branch", metavar="NAME", help="Only the sinks that this branch has.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.pass_obj
def sink_list(caller: Caller, branch: str | None, as_json: bool) -> None:
    """List sinks: dataset, state, changes that were written since it began, messages that are not
    written yet, orders that are not carried out yet (a rewind, dead letters that are to be sent
    again), and the last error.
    """
    rows = called(caller, "GET", "/sinks", {} if branch is None else {"branch": branch})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows["sinks"]:
        behind = "" if row["behind"] is None else f", {row['behind']} messages behind"
        of = (
            "no branch has it"
            if not row["branches"]
            else f"of {row['dataset']} (branches: {', '.join(row['branches'])})"
        )
        kind = "" if row["kind"] is None else f"  {row['kind']}"
        changes = "" if row["changes"] is None else f", {row['changes']} changes written"
        click.echo(f"{row['sink']}{kind}  {row['state']}{changes}{behind}  {of}")
        if row["paused_by"] is not None:
            click.echo(f"    paused by {row['paused_by']} at {row['paused_at']}")
        if row["rewind"] is not None:
            click.echo(f"    rewind {_rewind(row['rewind'])} is not carried out yet")
        if row["replays"]:
            click.echo(f"    {row['replays']} dead letters are to be sent again")
        if row["error"] is not None:
            click.echo(f"    failed {row['failures']} times in a row: {row['error']}")
            if row.get("remedy") is not None:
                click.echo(f"    {row['remedy']}")
    if not rows["sinks"]:
        click.echo("No sink." if branch is None else f"Branch {branch} has no sink.")


def _rewind(order: dict[str, Any]) -> str:
    places = ", ".join(f"{part}: {offset}" for part, offset in order["from"].items())
    place = "earliest" if order["whole"] else f"the offsets {places}"
    return f"to {place}, ordered at {order['ordered_at']},"


@sink.command("pause")
@click.argument("name")
@click.pass_obj
def sink_pause(caller: Caller, name: str) -> None:
    """Stop writing sink NAME in every branch, until `resume`; neither restarts nor commits end the
    pause. Needs the role commit or admin.
    """
    called(caller, "POST", "/sinks/pause", body={"sink": name})
    click.echo(f"Sink {name} is paused; `fennel-core sink resume {name}` writes it on.")


@sink.command("resume")
@click.argument("name")
@click.pass_obj
def sink_resume(caller: Caller, name: str) -> None:
    """Write sink NAME on from where it was paused."""
    called(caller, "POST", "/sinks/resume", body={"sink": name})
    click.echo(f"Sink {name} is resumed.")


@sink.command("rewind")
@click.argument("name")
@click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="earliest, a time (2026-01-31T12:00:00Z), or offsets by partition (0:12,3:40).",
)
@click.option(
    "--duplicates-rows", is_flag=True, help="Changes may be there twice: of a topic or an endpoint."
)
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@click.pass_obj
def sink_rewind(caller: Caller, name: str, to: str, duplicates_rows: bool, dry_run: bool) -> None:
    """Write sink NAME again from a place in its dataset on; a time is that of writing.

    A Delta table loses the rows from there on in the same commit, so each change is there once
    again. A topic or an endpoint has them twice. Needs the role admin.
    """
    body = {"sink": name, "to": to, "duplicates_rows": duplicates_rows, "dry_run": dry_run}
    done = called(caller, "POST", "/sinks/rewind", body=body)
    for each in done["rewound"]:
        places = ", ".join(f"{part}: {offset}" for part, offset in each["from"].items())
        click.echo(
            f"{'Would write' if done['dry_run'] else 'Writes'} up to {each['messages']} messages "
            f"of {each['dataset']} (branches: {', '.join(each['branches'])}) again, from the "
            f"offsets {places} on."
        )
