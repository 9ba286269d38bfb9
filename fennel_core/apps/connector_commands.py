"""Commands about the stored connectors of a workspace, over the API with its token."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from fennel_core.apps.command_context import fail
from fennel_core.apps.workspace_calls import Caller, called, of_workspace

SECRET_WORDS: Final = ("password", "secret", "token", "ca_cert")
"""A property whose name has one of them is no word of a command: others may see those."""
LONGEST: Final = 64 * 1024
"""Characters of a value: keys and certificates fit."""
SET = click.option(
    "--set",
    "plain",
    multiple=True,
    metavar="PROPERTY=VALUE",
    help="A property that is no secret, named as in the client's class.",
)
SECRET = click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="PROPERTY=FROM",
    help="A secret property: from file:PATH, env:VARIABLE, or - for the standard input.",
)
UNCHECKED = click.option(
    "--unchecked", is_flag=True, help="Store it although it may not work: nothing is reached."
)


@click.group()
@of_workspace
@click.pass_context
def connector(context: click.Context, url: str | None, token: str | None) -> None:
    """Add, rotate, test, show and remove the connectors that a workspace stores by name, for
    `Kafka.get("shop")` in definitions.

    The token selects the workspace. For the demonstration: eval "$(fennel-core env)".
    """
    context.obj = (url, token)


@connector.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.pass_obj
def connector_list(caller: Caller, as_json: bool) -> None:
    """List connectors, where they lead to, and how many sources and sinks have each."""
    rows = called(caller, "GET", "/connectors")
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows["connectors"]:
        address = f"  {row['address']}" if row["address"] else ""
        click.echo(
            f"{row['connector']}  {row['kind']}{address}  changed {row['changed_at']} by "
            f"{row['changed_by']}, used by {len(row['used_by'])}"
        )
    if not rows["connectors"]:
        click.echo("No connector.")


@connector.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.pass_obj
def connector_show(caller: Caller, name: str, as_json: bool) -> None:
    """Show connector NAME and what uses it; of secrets only that they are set."""
    row = called(caller, "GET", f"/connectors/{quote(name, safe='')}")
    if as_json:
        click.echo(json.dumps(row, indent=2))
        return
    click.echo(f"{row['connector']}  {row['kind']}  changed {row['changes']} times")
    click.echo(f"    last by {row['changed_by']} at {row['changed_at']}")
    for key, value in row["properties"].items():
        click.echo(f"    {key}: {value}")
    _print_users(row["used_by"])


@connector.command("add")
@click.argument("name")
@click.argument("kind", type=click.Choice(["kafka", "postgres", "mysql", "s3", "http"]))
@SET
@SECRET
@click.option("--replace", is_flag=True, help="Replace a connector of this name as a whole.")
@click.option(
    "--moved", is_flag=True, help="With --replace: the same system has another address now."
)
@UNCHECKED
@click.pass_obj
def connector_add(
    caller: Caller,
    name: str,
    kind: str,
    plain: tuple[str, ...],
    secrets: tuple[str, ...],
    replace: bool,
    moved: bool,
    unchecked: bool,
) -> None:
    """Store connector NAME, after it was reached. Needs the role admin.

    \b
    fennel-core connector add shop kafka --set bootstrap_servers=broker.example.com:9093 \\
        --set security_protocol=SASL_SSL --set sasl_mechanism=SCRAM-SHA-512 \\
        --set sasl_plain_username=fennel --secret sasl_plain_password=file:/run/secrets/shop
    """
    body = {
        "connector": name,
        "kind": kind,
        "properties": _properties(plain, secrets),
        "replace": replace,
        "moved": moved,
        "unchecked": unchecked,
    }
    done = called(caller, "POST", "/connectors/add", body=body)
    click.echo(f"Connector {name} is stored.")
    _print_checked(done, unchecked)


@connector.command("rotate")
@click.argument("name")
@SET
@SECRET
@UNCHECKED
@click.pass_obj
def connector_rotate(
    caller: Caller, name: str, plain: tuple[str, ...], secrets: tuple[str, ...], unchecked: bool
) -> None:
    """Give connector NAME new credentials, after all that uses it was reached with them; what is
    not given stays. Sources and sinks take them within seconds, one that waits for its system after
    its timeout (30 s), tables with their next run.

    Needs the role admin.
    """
    body = {
        "connector": name,
        "properties": _properties(plain, secrets),
        "unchecked": unchecked,
    }
    done = called(caller, "POST", "/connectors/rotate", body=body)
    click.echo(f"Connector {name} has the new credentials.")
    _print_checked(done, unchecked)


@connector.command("test")
@click.argument("name")
@click.pass_obj
def connector_test(caller: Caller, name: str) -> None:
    """Reach all that connector NAME is used for; changes nothing.

    Needs the role commit or admin.
    """
    done = called(caller, "POST", "/connectors/test", body={"connector": name})
    click.echo(f"Connector {name} can be used.")
    _print_checked(done | {"used_by": []}, unchecked=False)


@connector.command("rm")
@click.argument("name")
@click.pass_obj
def connector_remove(caller: Caller, name: str) -> None:
    """Remove connector NAME, which no source and no sink has. Needs the role admin."""
    called(caller, "POST", "/connectors/remove", body={"connector": name})
    click.echo(f"Connector {name} is removed.")


def _print_checked(done: dict[str, Any], unchecked: bool) -> None:
    for each in done["checked"]:
        click.echo(f"    reached: {each}")
    if not done["checked"]:
        why = "because of --unchecked" if unchecked else "its keys open buckets, none is named yet"
        click.echo(f"    nothing was reached: {why}")
    if unchecked:
        _print_users(done["used_by"])


def _print_users(users: list[str]) -> None:
    for each in users:
        click.echo(f"    used by {each}")
    if not users:
        click.echo("    used by nothing")


def _properties(plain: tuple[str, ...], secrets: tuple[str, ...]) -> dict[str, str]:
    """Return the properties of a command; exits for one that is malformed or given twice."""
    found: dict[str, str] = {}
    for secret, given in [(False, each) for each in plain] + [(True, each) for each in secrets]:
        key, equals, value = given.partition("=")
        if not (key and equals and value):
            fail(f"`{key}` needs a value: write {key or 'PROPERTY'}=…")
        if key in found:
            fail(f"property `{key}` is given twice")
        if not secret and any(word in key for word in SECRET_WORDS):
            fail(
                f"property `{key}` is a secret, and words of commands are not: write --secret "
                f"{key}=file:PATH, {key}=env:VARIABLE or {key}=-"
            )
        found[key] = _read(key, value) if secret else value
    return found


def _read(key: str, place: str) -> str:
    """Return a secret from where a command says it is, without the end of its last line."""
    kind, colon, name = place.partition(":")
    text: str | None = None
    if place == "-":
        text = (
            click.prompt(key, hide_input=True, err=True)
            if sys.stdin.isatty()
            else sys.stdin.read(LONGEST + 1)
        )
    elif (kind, colon) == ("env", ":"):
        text = os.environ.get(name)
        if text is None:
            fail(f"the environment has no variable `{name}` for property `{key}`")
    elif (kind, colon) == ("file", ":"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as unreadable:
            fail(f"the file `{name}` for property `{key}` cannot be read: {unreadable}")
    else:
        # What was written is not shown: it may be the secret itself.
        fail(f"property `{key}` comes from file:PATH, env:VARIABLE or -")
    value = (text or "").removesuffix("\n").removesuffix("\r")
    if not value or len(value) > LONGEST:
        fail(f"property `{key}` is empty, or longer than {LONGEST} characters")
    return value
