"""The command `kafka-access`: users and ACLs of a Kafka cluster with authentication."""

import os
import secrets
from pathlib import Path

import click

from fennel_core.apps.command_context import fail


@click.command("kafka-access")
@click.argument("workspaces", nargs=-1, required=True, metavar="WORKSPACE…")
@click.option(
    "--passwords",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Also create a SCRAM-SHA-512 user for each component. Its password is read from a file "
    "named like the user, which is generated if it is missing.",
)
@click.option("--show", is_flag=True, help="Print the rules and write nothing.")
def kafka_access(workspaces: tuple[str, ...], passwords: Path | None, show: bool) -> None:
    """Give each component of the platform its rights on a Kafka cluster with ACLs.

    Connects with FENNEL_KAFKA_BOOTSTRAP, FENNEL_KAFKA_SECURITY and FENNEL_KAFKA_USER, who must be
    allowed to alter the cluster. Safe to repeat; run it again with each new workspace, before the
    workspace is created. Rights are added and never removed.
    """
    import asyncio

    from fennel_core.apps import state_commands
    from fennel_core.connections import workspaces as names
    from fennel_core.ledger.errors import TransactionalIdsCollide
    from fennel_core.ledger.kafka_access import ACCESS, rules_of, user_of, write_access
    from fennel_core.settings.model import Settings

    try:
        rules = rules_of([names.checked_name(name) for name in workspaces])
        if show:
            for rule in rules:
                click.echo(
                    f"{user_of(rule.component)} {rule.operation} {rule.resource} {rule.prefix}*"
                )
            return
        known = {} if passwords is None else {each: password(passwords, each) for each in ACCESS}
        asyncio.run(write_access(Settings(), rules, known))
    except (*state_commands.FAILURES, TransactionalIdsCollide) as error:
        fail(state_commands.failure_text(error))
    users = f" and {len(known)} users" if known else ""
    click.echo(f"wrote {len(rules)} rules{users} for workspaces: {', '.join(workspaces)}")


def password(folder: Path, component: str) -> str:
    """Return the password in a component's file, which only its owner can read; make it first.

    Raises OSError.
    """
    from fennel_core.ledger.kafka_access import user_of

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / user_of(component)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = path.read_text().strip()
        if not found:
            raise OSError(f"{path} is empty; delete it to generate a password") from None
        return found
    with os.fdopen(descriptor, "w") as file:
        file.write(made := secrets.token_urlsafe(32))
    return made
