"""Commands about the dead letters of a workspace, over the API with its token."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from fennel_core.apps.workspace_calls import Caller, called, of_workspace


@click.group()
@of_workspace
@click.pass_context
def deadletters(context: click.Context, url: str | None, token: str | None) -> None:
    """List, show, replay and drop dead letters: rows that could not be processed. An order is about
    the letters that no earlier order has settled.

    The token selects the workspace. For the demonstration: eval "$(fennel-core env)".
    """
    context.obj = (url, token)


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select letters."""
    for option in (
        click.option("--reason", metavar="TEXT", help="Only those with this text in the reason."),
        click.option("--until", metavar="TIME", help="Only those written before this time."),
        click.option("--since", metavar="TIME", help="Only those written at this time or later."),
        click.option("--sink", metavar="NAME", help="Only changes of this sink, as hooks/rows."),
        click.option("--source", metavar="NAME", help="Only rows of this source, as shop/orders."),
        click.option("--dataset", metavar="NAME", help="Only of this dataset, or title of a job."),
    ):
        command = option(command)
    return command


def _given(filters: dict[str, str | None]) -> dict[str, Any]:
    return {name: value for name, value in filters.items() if value is not None}


@deadletters.command("list")
@_filters
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.pass_obj
def letters_list(caller: Caller, /, as_json: bool, **filters: str | None) -> None:
    """Count open dead letters by dataset or job, source and kind, with the newest reason. Needs the
    role commit or admin.
    """
    found = called(caller, "GET", "/dead_letters", _given(filters))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for row in found["dead_letters"]:
        source = "" if row["source"] is None else f" from {row['source']}"
        source += "" if row["sink"] is None else f" to {row['sink']}"
        click.echo(
            f"{row['subject']}{source}  {row['kind']}  {row['rows']} rows in {row['letters']} "
            f"letters, the newest of {row['newest_at']}: {row['newest_reason']}"
        )
        if row["not_replayable"] is not None:
            click.echo(f"    cannot be replayed: {row['not_replayable']}")
    if not found["dead_letters"]:
        click.echo("No open dead letter.")


@deadletters.command("show")
@_filters
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="How many rows to show.",
)
@click.option("--after", metavar="PLACE", help="Go on where an earlier page ended.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.pass_obj
def letters_show(
    caller: Caller, /, count: int, after: str | None, as_json: bool, **filters: str | None
) -> None:
    """Show rows of open dead letters with the reason, and where the source had them.

    Rows of erased keys are hidden. Needs the role commit or admin.
    """
    asked = _given(filters | {"after": after}) | {"n": count}
    found = called(caller, "GET", "/dead_letters/rows", asked)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for row in found["rows"]:
        shown = "hidden" if row["hidden"] else json.dumps(row["row"], ensure_ascii=False)
        click.echo(f"{row['subject']}: {shown}")
        place = "" if row["source_position"] is None else f" ({row['source_position']})"
        click.echo(f"    {row['reason']}{place}")
    if not found["rows"]:
        click.echo("No open dead letter.")
    if found["next"] is not None:
        click.echo(f"More: --after {found['next']}")


@deadletters.command("replay")
@_filters
@click.option("--dry-run", is_flag=True, help="Only count what would become of the rows.")
@click.pass_obj
def letters_replay(caller: Caller, /, dry_run: bool, **filters: str | None) -> None:
    """Type the rows of dead letters again, and write those that fit now into their dataset, each
    once. Those that fail again stay, with the new reason.

    Changes that a sink could not deliver are sent again, under the same idempotency key, by the
    process that writes the sink: those of which no later change of the same key has followed.
    `sink list` shows how many letters are left. Needs the role commit or admin.
    """
    body = _given(filters) | {"dry_run": dry_run}
    done = called(caller, "POST", "/dead_letters/replay", body=body)
    click.echo(
        f"{'Would replay' if dry_run else 'Replayed'} {done['rows']} rows of {done['letters']} "
        f"letters: {done['accepted']} accepted, {done['refused']} refused again, "
        f"{done['left_out']} left out (where, since, until, sample, erased)."
    )
    if done["ordered"]:
        verb = "Would order" if dry_run else "Ordered"
        click.echo(f"{verb} that sinks send {done['ordered']} changes again.")
    for each in done["not_replayable"]:
        subjects = ", ".join(each["subjects"])
        click.echo(f"Not replayed: {each['rows']} rows of {subjects}: {each['reason']}.")


@deadletters.command("drop")
@_filters
@click.option("--all", "everything", is_flag=True, help="Every dead letter of the workspace.")
@click.option("--dry-run", is_flag=True, help="Only count what would be dropped.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def letters_drop(
    caller: Caller, /, everything: bool, dry_run: bool, yes: bool, **filters: str | None
) -> None:
    """Mark dead letters as dealt with, without a replay. This cannot be undone. Needs the role
    admin.
    """
    body = _given(filters) | {"all": everything}
    if not dry_run and not yes:
        counted = called(caller, "POST", "/dead_letters/drop", body=body | {"dry_run": True})
        click.confirm(f"Drop {counted['rows']} rows of {counted['letters']} letters?", abort=True)
    done = called(caller, "POST", "/dead_letters/drop", body=body | {"dry_run": dry_run})
    verb = "Would drop" if dry_run else "Dropped"
    click.echo(f"{verb} {done['rows']} rows of {done['letters']} letters.")
