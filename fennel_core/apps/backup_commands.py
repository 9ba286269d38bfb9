"""The commands `backup` and `restore`. See `fennel_core/apps/backup/`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fennel_core.apps.command_context import fail, select

if TYPE_CHECKING:
    from fennel_core.settings.model import Settings

STORES: Final = ("postgres", "kafka", "s3")
HOW: Final = "`fennel-core down`, then `fennel-core up --only postgres,kafka,s3`"


def _key_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the two options that say what happens to the key file."""
    for option in (
        click.option(
            "--without-keys",
            is_flag=True,
            help="Leave the key file out; keep it elsewhere, or stored secrets are lost.",
        ),
        click.option(
            "--passphrase-file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Its first line encrypts the key file of users' secrets in the backup.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("target")
@_key_options
@click.option(
    "--with-losses",
    is_flag=True,
    help="Also if objects, topics or jobs of the installation are missing already.",
)
def backup(
    target: str, passphrase_file: Path | None, without_keys: bool, with_losses: bool
) -> None:
    """Back up the installation into TARGET: an empty folder, or s3://BUCKET/PREFIX.

    The backup has the database, all objects on S3, the records that only Kafka has, and the key
    file, encrypted. Only Postgres, Kafka and S3 may run:

    \b
      openssl rand -base64 24 > passphrase      keep it apart from the backup
      fennel-core down
      fennel-core up --only postgres,kafka,s3
      fennel-core backup /backups/monday --passphrase-file passphrase
      fennel-core up
    """
    from fennel_core.apps.backup import database
    from fennel_core.apps.backup.sealed_keys import read_passphrase
    from fennel_core.apps.backup.storage import storage_at
    from fennel_core.apps.backup.take import take_backup
    from fennel_core.connections import postgres
    from fennel_core.connections.audit_events import Action, audited_command, user_of_this_machine

    settings = _stopped_platform(passphrase_file, without_keys=without_keys)
    dsn = settings.postgres_dsn.get_secret_value()
    with _failures_as_text():
        passphrase = None if passphrase_file is None else read_passphrase(passphrase_file)
        storage = storage_at(target, settings)
        with postgres.connect(dsn, name="fennel-backup") as connection:
            database.require_current_schema(connection)
        with audited_command(dsn, user_of_this_machine(), Action.BACKUP, target):
            made = take_backup(settings, storage, passphrase, click.echo, with_losses=with_losses)
    click.echo(f"backed up installation {made.installation} as {made.id} in {target}")
    for loss in made.losses:
        click.echo(f"missing in the installation, and so in the backup: {loss}")


@click.command()
@click.argument("source")
@_key_options
@click.option("--check", is_flag=True, help="Only verify the backup; change nothing.")
def restore(source: str, passphrase_file: Path | None, without_keys: bool, check: bool) -> None:
    """Restore the backup in SOURCE into this installation, which must be empty.

    Every file is verified before anything is written; if a step fails, what was written is deleted
    again. Only Postgres, Kafka and S3 may run:

    \b
      fennel-core up --only postgres,kafka,s3
      fennel-core restore /backups/monday --passphrase-file passphrase
      fennel-core up

    Slots then rebuild their states from snapshots and replaylogs. What the backup does not have is
    printed with numbers.
    """
    from fennel_core.apps.backup.restore import (
        read_backup,
        restore_backup,
        unreplaced,
        verify_files,
    )
    from fennel_core.apps.backup.sealed_keys import read_passphrase
    from fennel_core.apps.backup.storage import storage_at
    from fennel_core.connections.audit_events import Action, audited_command, user_of_this_machine

    if check:
        with _failures_as_text():
            storage = storage_at(source, select(())[0].settings)
            manifest = read_backup(storage)
            verify_files(storage, manifest)
        click.echo(
            f"backup {manifest.id} of {manifest.taken_at}: {len(manifest.files)} files agree"
        )
        return
    settings = _stopped_platform(passphrase_file, without_keys=without_keys)
    dsn = settings.postgres_dsn.get_secret_value()
    with _failures_as_text():
        passphrase = None if passphrase_file is None else read_passphrase(passphrase_file)
        storage = storage_at(source, settings)
        manifest = restore_backup(settings, storage, passphrase, click.echo)
        subject = f"backup {manifest.id} of {manifest.taken_at}"
        with audited_command(dsn, user_of_this_machine(), Action.RESTORE, subject):
            pass  # the log of before the restore was empty, and was replaced by that of the backup
    click.echo(f"restored installation {manifest.installation}")
    for line in unreplaced(manifest):
        click.echo(line)


def _stopped_platform(passphrase_file: Path | None, *, without_keys: bool) -> "Settings":
    """Return the settings; ends the command if servers run, or the option for keys is missing."""
    from fennel_core.apps.local import platform
    from fennel_core.apps.local.services import WATCHDOG

    if (passphrase_file is None) is not without_keys:
        fail("Say what happens to the key file: --passphrase-file FILE, or --without-keys.")
    context, services = select((), kafka=True)
    active = [
        service.name
        for service in services
        if service.name not in (*STORES, WATCHDOG)
        and platform.running(context.layout, service) is not None
    ]
    if active:
        fail(f"These services run: {', '.join(active)}. Stop all but the stores first: {HOW}.")
    return context.settings


@contextmanager
def _failures_as_text() -> Iterator[None]:
    """End the command with one sentence for a failure that is not a bug."""
    from botocore.exceptions import BotoCoreError, ClientError
    from confluent_kafka import KafkaException

    from fennel_core.apps.errors import AppsError
    from fennel_core.apps.state_commands import FAILURES, failure_text
    from fennel_core.connections.errors import ConnectionsError

    try:
        yield
    except (*FAILURES, AppsError, ConnectionsError) as error:
        fail(failure_text(error))
    except KafkaException as error:
        fail(f"Kafka: {error.args[0].str()}. Start the stores first: {HOW}.")
    except (BotoCoreError, ClientError) as error:
        fail(f"S3: {error}")
