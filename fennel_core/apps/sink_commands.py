"""Commands about the sinks of a workspace, over the API with its token."""

from __future__ import annotations

import json

import click

from fennel_core.apps.workspace_calls import Caller, called


@click.group()
@click.option("--url", envvar="FENNEL_URL", help="Address of the API; default: this platform.")
@click.option("--token", envvar="FENNEL_TOKEN", help="Token of a workspace; default: FENNEL_TOKEN.")
@click.pass_context
def sink(context: click.Context, url: str | None, token: str | None) -> None:
    """List, pause and resume the sinks of a workspace. A sink has the name of its connector and of
    what is written there, as `hooks/rows`.

    The token selects the workspace. For the demonstration: eval "$(fennel-core env)".
    """
    context.obj = (url, token)


@sink.command("list")
@click.option("--branch", metavar="NAME", help="Only the sinks that this branch has.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.pass_obj
def sink_list(caller: Caller, branch: str | None, as_json: bool) -> None:
    """List sinks: dataset, state, messages that are not written yet, and the last error."""
    rows = called(caller, "GET", "/sinks", {} if branch is None else {"branch": branch})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows["sinks"]:
        behind = "" if row["behind"] is None else f", {row['behind']} messages behind"
        click.echo(
            f"{row['sink']}  {row['kind']}  {row['state']}{behind}  of {row['dataset']} "
            f"(branches: {', '.join(row['branches'])})"
        )
        if row["paused_by"] is not None:
            click.echo(f"    paused by {row['paused_by']} at {row['paused_at']}")
        if row["error"] is not None:
            click.echo(f"    failed {row['failures']} times in a row: {row['error']}")
    if not rows["sinks"]:
        click.echo("No sink." if branch is None else f"Branch {branch} has no sink.")


@sink.command("pause")
@click.argument("name")
@click.pass_obj
def sink_pause(caller: Caller, name: str) -> None:
    """Stop writing sink NAME in every branch, until `resume`; restarts do not end the pause.

    A commit that changes what the dataset contains starts another sink, which is not paused. Needs
    the role commit or admin.
    """
    called(caller, "POST", "/sinks/pause", body={"sink": name})
    click.echo(
        f"Sink {name} is paused; `fennel-core sink resume {name}` writes it on. "
        "A commit that changes what its dataset contains starts another sink, which is not paused."
    )


@sink.command("resume")
@click.argument("name")
@click.pass_obj
def sink_resume(caller: Caller, name: str) -> None:
    """Write sink NAME on from where it was paused."""
    called(caller, "POST", "/sinks/resume", body={"sink": name})
    click.echo(f"Sink {name} is resumed.")
