"""Commands of an operator: workspaces, tokens, retained data. Requests to the definition server."""

import shlex
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import click

from fennel_core.apps.command_context import fail, select

REQUEST_TIMEOUT_S: Final = 60.0
DAY_S: Final = 86_400
ROLES: Final = ("query", "log", "commit", "admin", "operator")
"""The members of `connections.roles.Role`, which is not imported for `--help`; a test compares."""


@click.group()
def workspace() -> None:
    """Create, delete and list workspaces. A token belongs to one workspace, and workspaces share
    nothing.
    """


@workspace.command("list")
def workspace_list() -> None:
    """List all workspaces, one per line."""
    for row in admin_request("GET", "/api/v1/workspaces")["workspaces"]:
        click.echo(row["name"])


@workspace.command("create")
@click.argument("name")
def workspace_create(name: str) -> None:
    """Create a workspace and print its token, which cannot be shown again."""
    made = admin_request("POST", "/api/v1/workspaces", {"name": name})
    click.echo(f"export FENNEL_TOKEN={shlex.quote(str(made['token']))}")


@workspace.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def workspace_delete(name: str, yes: bool) -> None:
    """Delete a workspace: stop its jobs, delete its topics and state."""
    if not yes:
        click.confirm(f"Delete workspace {name} and all its data?", abort=True)
    admin_request("DELETE", f"/api/v1/workspaces/{name}")
    click.echo(f"Deleted workspace {name}.")


def _owner_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the two options that select whose tokens a command is about."""
    for option in (
        click.option(
            "--installation", is_flag=True, help="Tokens of the installation: role operator."
        ),
        click.option("--workspace", metavar="NAME", help="Tokens of this workspace."),
    ):
        command = option(command)
    return command


def _tokens_path(workspace: str | None, installation: bool) -> str:
    if (workspace is None) is not installation:
        fail("Name the owner of the tokens: --workspace NAME, or --installation.")
    if installation:
        return "/api/v1/operations/tokens"
    return f"/api/v1/workspaces/{quote(str(workspace), safe='')}/tokens"


@click.group()
def token() -> None:
    """Create, list, rotate and revoke tokens. A token has one role: `query` reads, `log` writes
    rows, `commit` does both and commits, `admin` also erases and manages secrets and tokens;
    `operator` manages the installation and reads no data.
    """


@token.command("create")
@_owner_options
@click.option("--role", type=click.Choice(ROLES), help="Default: admin, or operator.")
@click.option("--name", default="", help="For people: which program or person uses it.")
@click.option("--days", type=click.FloatRange(0), help="It expires after so many days.")
def token_create(
    workspace: str | None, installation: bool, role: str | None, name: str, days: float | None
) -> None:
    """Create a token and print it, which is possible only once."""
    body: dict[str, Any] = {"name": name}
    body |= {} if role is None else {"role": role}
    body |= {} if days is None else {"lifetime_s": days * DAY_S}
    _print_issued(admin_request("POST", _tokens_path(workspace, installation), body))


@token.command("list")
@_owner_options
def token_list(workspace: str | None, installation: bool) -> None:
    """List tokens with id, role, name, expiry and last use, one per line."""
    for row in admin_request("GET", _tokens_path(workspace, installation))["tokens"]:
        kind = f"{row['role']} (read token)" if row["is_read_token"] else row["role"]
        click.echo(
            f"{row['id']}  {kind}  {row['name'] or '(no name)'}  "
            f"created {row['created_at']}  expires {row['expires_at'] or 'never'}  "
            f"last used {row['last_used_at'] or 'never'}"
        )


@token.command("rotate")
@click.argument("id_", metavar="ID")
@_owner_options
@click.option(
    "--overlap-hours",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="How long the old token stays valid.",
)
def token_rotate(id_: str, workspace: str | None, installation: bool, overlap_hours: float) -> None:
    """Replace a token by a new one with the same role, name and lifetime, and print it."""
    path = f"{_tokens_path(workspace, installation)}/{quote(id_, safe='')}/rotate"
    _print_issued(admin_request("POST", path, {"overlap_s": overlap_hours * 3600}))


@token.command("revoke")
@click.argument("id_", metavar="ID")
@_owner_options
def token_revoke(id_: str, workspace: str | None, installation: bool) -> None:
    """Revoke a token and the read tokens that it issued; they stop working within a second."""
    admin_request("DELETE", f"{_tokens_path(workspace, installation)}/{quote(id_, safe='')}")
    click.echo(f"Revoked token {id_}.")


def _print_issued(made: dict[str, Any]) -> None:
    click.echo(f"# token {made['id']}, expires {made['expires_at'] or 'never'}")
    click.echo(f"export FENNEL_TOKEN={shlex.quote(str(made['token']))}")


@click.command()
@click.option("--workspace", "name", required=True, metavar="NAME", help="The workspace.")
@click.option(
    "--allow-data-loss",
    is_flag=True,
    help="Confirm that accepted rows of its retained endpoints are destroyed.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def purge(name: str, allow_data_loss: bool, yes: bool) -> None:
    """Destroy what the versions of a workspace do not need any more, before its grace period is
    over.

    Lists the retained assets first. No commit can revive them afterwards.
    """
    from fennel_core.apps.local.status_tables import retained_line

    rows = admin_request("GET", "/api/v1/operations/retained")["retained"]
    retained = [row for row in rows if row["workspace"] == name]
    for row in retained:
        click.echo(retained_line(row))
    if not retained:
        click.echo(f"Nothing of workspace {name} is retained.")
        return
    if not yes:
        click.confirm(f"Destroy these {len(retained)} assets now?", abort=True)
    body = {
        "workspace": name,
        "assets": [row["asset"] for row in retained],
        "allow_data_loss": allow_data_loss,
    }
    purged = admin_request("POST", "/api/v1/operations/purge", body)["purged"]
    click.echo(f"Assets that are being destroyed: {len(purged)} of {len(retained)}.")


def admin_request(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send an administrator's request to the definition server; exits with its error message."""
    import httpx

    from fennel_core.apps.local.status_requests import admin_headers

    context, _ = select(())
    url = context.settings.definition_url
    try:
        response = httpx.request(
            method,
            url + path,
            json=body,
            headers=admin_headers(context.settings),
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        fail(f"The definition server at {url} does not respond ({error}). Is the platform up?")
    if response.is_error:
        text = response.text.strip()
        fail(text or f"The definition server returned status {response.status_code}.")
    parsed: dict[str, Any] = response.json() if response.content else {}
    return parsed
