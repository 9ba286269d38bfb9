"""The command `fennel-core`: run and inspect the platform on this machine, manage workspaces.

Commands import their dependencies when they run, so that `--help` is fast.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from fennel_core import __version__
from fennel_core.apps.admin_commands import purge, token, workspace
from fennel_core.apps.backup_commands import backup, restore
from fennel_core.apps.command_context import fail, names_of, select
from fennel_core.apps.connector_commands import connector
from fennel_core.apps.export_commands import export
from fennel_core.apps.kafka_commands import kafka_access
from fennel_core.apps.letter_commands import deadletters
from fennel_core.apps.offline_commands import offline
from fennel_core.apps.sink_commands import sink
from fennel_core.apps.source_commands import source

if TYPE_CHECKING:
    from fennel_core.apps.local.launcher import StartFailure
    from fennel_core.apps.local.setup_steps import PlatformContext

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
DEMO_TOKEN: Final = "dev-demo"  # noqa: S105  # not a secret: development tokens name a workspace and work on loopback only


@click.group(context_settings=CONTEXT)
@click.version_option(version=__version__, prog_name="fennel-core")
def main() -> None:
    """Run fennel-core on this machine: a data plane for features on Kafka, Spark, RocksDB,
    Postgres, S3 and Airflow.

    \b
    First steps:
      fennel-core up                  start everything and wait until it is healthy
      fennel-core demo                commit a project, log data, query features
      eval "$(fennel-core env)"       export the API's URL and a token
      fennel-core down                stop everything; data survives

    Every setting is an environment variable FENNEL_…; `fennel-core settings` lists them with
    unit and reason.
    """
    # Logs, pid files and folders that this process writes are its user's only.
    os.umask(0o077)


@main.command()
@click.option(
    "--only",
    multiple=True,
    metavar="SERVICE",
    help="Start only this service or group (infra, fennel) and its dependencies. Repeatable.",
)
def up(only: tuple[str, ...]) -> None:
    """Start the platform and wait until every service is ready.

    Safe to repeat: running services are kept, stopped ones are started, and those with changed
    settings are restarted. Everything listens on loopback. Ports in use, a missing Java and a full
    disk are reported before anything starts.
    """
    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local import platform

    context, wanted = select(names_of(only))
    try:
        failures = platform.up(context, wanted)
    except SetupFailed as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail(
            "Stopped waiting. The started services keep running: `fennel-core status` shows "
            "them, `fennel-core down` stops them."
        )
    for failure in failures:
        _print_failure(context, failure)
    if failures:
        sys.exit(1)
    settings, names = context.settings, {service.name for service in wanted}
    click.echo()
    if "query" in names:
        click.echo(f"The API is at {settings.query_url}.")
    if "airflow-api" in names:
        click.echo(f"Airflow is at {settings.airflow_pages} (user {settings.airflow_user}).")
    click.echo(
        "Next: `fennel-core env` prints the client's settings, `fennel-core status` shows the "
        "services, `fennel-core down` stops them."
    )


def _print_failure(context: "PlatformContext", failure: "StartFailure") -> None:
    log = context.layout.shown(context.layout.log(failure.service.name))
    click.secho(
        f"\n{failure.service.title} did not become ready: {failure.why.rstrip('.')}.",
        fg="red",
        err=True,
    )
    for line in failure.log_lines:
        click.echo(f"    {line}", err=True)
    click.echo(
        f"  Full log: {log}. After fixing the problem run `fennel-core up` again; "
        "running services are kept.",
        err=True,
    )


@main.command()
@click.option(
    "--only",
    multiple=True,
    metavar="SERVICE",
    help="Stop only this service or group (infra, fennel). Repeatable.",
)
def down(only: tuple[str, ...]) -> None:
    """Stop everything that `up` started, and nothing else; data survives.

    Each service and its child processes get a signal, and are killed only if they still run after
    FENNEL_SHUTDOWN_GRACE_S.
    """
    from fennel_core.apps.local import platform

    context, wanted = select(names_of(only))
    stopped = platform.down(context, wanted)
    for service in stopped:
        click.echo(f"stopped {service.name}" + ("" if service.gently else " (killed)"))
    if not stopped:
        click.echo("Nothing was running.")


@main.command()
@click.argument("names", nargs=-1, metavar="SERVICE...", required=True)
def restart(names: tuple[str, ...]) -> None:
    """Stop services and start them again, for example after a change of their code."""
    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local import platform
    from fennel_core.apps.local.kafka_users import problems

    context, wanted = select(names)
    # Before anything is stopped that could not be started again.
    if missing := list(problems(context.settings, [service.name for service in wanted])):
        fail("\n".join(missing))
    platform.down(context, wanted)
    try:
        failures = platform.up(context, wanted)
    except SetupFailed as error:
        fail(str(error))
    for failure in failures:
        _print_failure(context, failure)
    sys.exit(1 if failures else 0)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def status(as_json: bool) -> None:
    """Show services, job partitions and their slots, history, and alarms.

    Exits with 1 unless every service is ready.
    """
    from fennel_core.apps.local import platform, status_requests, status_tables

    context, _ = select(())
    rows = platform.status(context)
    answers = status_requests.read(context.settings)
    if as_json:
        services = [
            {
                "service": r.service.name,
                "state": r.state,
                "why": r.why,
                "pid": r.pid,
                "port": r.service.port,
                "restarts": r.restarts,
                "log": str(r.log),
            }
            for r in rows
        ]
        found = {
            "services": services,
            "workspaces": answers.workspaces,
            "job_partitions": answers.partitions,
            "warming": answers.warming,
            "history": answers.history,
            "erasures": answers.erasures,
            "held_rows": answers.held_rows,
            "retained": answers.retained,
            "needed_records": answers.alarms,
            "failing_drills": answers.drills,
            "differing_lookups": answers.integrity,
            "failing_reconcile_items": answers.failing,
            "sources": answers.sources,
            "sinks": answers.sinks,
            "dead_letters": answers.dead_letters,
            "lost_query_log_rows": answers.lost_rows,
            "executors": None if answers.executors is None else asdict(answers.executors),
        }
        click.echo(json.dumps(found, indent=2))
    else:
        status_tables.print_parts(context.layout, rows)
        status_tables.print_workspaces(answers.workspaces)
        status_tables.print_partitions(answers.partitions)
        status_tables.print_warming(answers.warming)
        if context.settings.history:
            status_tables.print_history(answers.history)
            status_tables.print_erasures(answers.erasures)
            status_tables.print_held_rows(answers.held_rows)
        status_tables.print_sources(answers.sources)
        status_tables.print_sinks(answers.sinks)
        status_tables.print_dead_letters(answers.dead_letters)
        status_tables.print_lost_rows(answers.lost_rows)
        status_tables.print_retained(answers.retained)
        status_tables.print_alarms(answers.alarms)
        status_tables.print_drills(answers.drills)
        status_tables.print_integrity(answers.integrity)
        status_tables.print_failing_items(answers.failing)
        status_tables.print_executors(answers.executors)
    sys.exit(0 if all(row.state == "ready" for row in rows) else 1)


@main.command()
@click.argument("name", required=False)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines; stop with Ctrl-C.")
@click.option("-n", "--lines", default=20, show_default=True, help="Number of last lines.")
def logs(name: str | None, follow: bool, lines: int) -> None:
    """Print the last lines of all log files, or of one service's."""
    context, wanted = select((name,) if name else ())
    files = [
        str(context.layout.log(service.name))
        for service in wanted
        if context.layout.log(service.name).exists()
    ]
    if not files:
        fail("There is no log yet. Run `fennel-core up` first.")
    try:
        sys.exit(
            subprocess.run(  # noqa: S603  # a fixed list of arguments, and no shell
                ["tail", f"-n{lines}", *(["-F"] if follow else []), *files],  # noqa: S607  # found on the PATH, as by its users
                check=False,
            ).returncode
        )
    except KeyboardInterrupt:
        return


@main.command()
@click.argument("names", nargs=-1, metavar="[FENNEL_NAME]...")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Print every setting of the platform; passwords, tokens and keys only if they are named.",
)
def env(names: tuple[str, ...], everything: bool) -> None:
    """Print export lines with the API's URL and a token: eval "$(fennel-core env)".

    With names, print these settings, also passwords: fennel-core env FENNEL_ADMIN_TOKEN.
    """
    from fennel_core.apps.local.services import process_env

    context, _ = select(())
    known = process_env(context.settings)
    if unknown := [name for name in names if not known.get(name)]:
        fail(f"{unknown[0]} is not set; `fennel-core settings` lists the valid names")
    public = process_env(context.settings, frozenset()) if everything else {}
    variables = {k: v for k, v in public.items() if k != "FENNEL_ADMIN_TOKEN_SHA256"}
    variables |= {name: known[name] for name in names}
    if everything or not names:
        variables |= {"FENNEL_URL": context.settings.query_url, "FENNEL_TOKEN": DEMO_TOKEN}
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


@main.command()
def settings() -> None:
    """List every setting with its default, unit and reason."""
    from pydantic import SecretStr

    from fennel_core.settings.model import ENV_PREFIX, Settings

    for name, field in sorted(Settings.model_fields.items()):
        default = (
            "(derived)"
            if field.default_factory
            else "(generated)"
            if isinstance(field.default, SecretStr)
            else list(field.default)
            if isinstance(field.default, tuple)
            else field.default
        )
        click.secho(f"{ENV_PREFIX}{name.upper()}={'' if default is None else default}", bold=True)
        click.echo(f"    {field.description}")


@main.command()
def demo() -> None:
    """Commit a fraud-detection project, log its data and query features, step by step."""
    import importlib.util

    if importlib.util.find_spec("fennel_core.apps.demo") is None:
        fail("This installation has no demo.")
    context, _ = select(())
    from fennel_core.apps.local.services import process_env

    environment = process_env(context.settings)
    sys.exit(
        subprocess.run(
            [sys.executable, "-m", "fennel_core.apps.demo"],
            env={**os.environ, **environment},
            check=False,
        ).returncode
    )


@main.command()
@click.option(
    "--every",
    type=click.IntRange(1),
    metavar="MINUTES",
    help="Repeat every so many minutes; stop with Ctrl-C.",
)
def snapshot(every: int | None) -> None:
    """Copy the state of every job partition to S3, and delete snapshots and records that are no
    longer needed.

    Does the same as Airflow's DAG `snapshot`, for platforms without Airflow
    (FENNEL_ORCHESTRATOR=inline): from cron, or with --every.
    """
    from fennel_core.apps import state_commands

    settings = select((), kafka=True)[0].settings
    try:
        state_commands.snapshot(settings, click.echo, None if every is None else every * 60.0)
    except state_commands.FAILURES as error:
        fail(state_commands.failure_text(error))
    except KeyboardInterrupt:
        return


@main.command("maintain-history")
@click.option(
    "--every",
    type=click.IntRange(1),
    metavar="MINUTES",
    help="Repeat every so many minutes; stop with Ctrl-C.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print per topic how many rows would be removed, and change nothing.",
)
def maintain_history(every: int | None, dry_run: bool) -> None:
    """Remove rows of erased keys, and with FENNEL_HISTORY_RETENTION those that are older than
    `history`, from the files of history, and merge small files, with Spark.

    Does the same as Airflow's DAG `history_maintenance`, for platforms without Airflow
    (FENNEL_ORCHESTRATOR=inline): from cron, or with --every.
    """
    from fennel_core.apps import state_commands

    if dry_run and every is not None:
        raise click.UsageError("--dry-run shows one run: omit --every")
    settings = select(())[0].settings
    try:
        if dry_run:
            state_commands.show_removable_rows(settings, click.echo)
            return
        state_commands.merge_history(settings, click.echo, None if every is None else every * 60.0)
    except state_commands.FAILURES as error:
        fail(state_commands.failure_text(error))
    except KeyboardInterrupt:
        return


def _selection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select job partitions."""
    for option in (
        click.option(
            "--partition",
            "partitions",
            type=click.IntRange(0),
            multiple=True,
            help="Only the partition with this number. Repeatable.",
        ),
        click.option(
            "--job",
            "jobs",
            multiple=True,
            metavar="ID",
            help="Only this job, by its id in `status --json`. Repeatable.",
        ),
        click.option("--dataset", metavar="NAME", help="Only the jobs that compute this dataset."),
        click.option("--workspace", metavar="NAME", help="The job partitions of this workspace."),
    ):
        command = option(command)
    return command


@main.command()
def reseal() -> None:
    """Encrypt all stored secrets again with the first key of FENNEL_SECRETS_KEY_FILE.

    To change the key, put a new line first in the key file, start the servers again, run this, and
    remove the old line.
    """
    from fennel_core.apps import state_commands
    from fennel_core.definition.reseal import reseal_installation

    try:
        done = reseal_installation(select(())[0].settings)
    except state_commands.FAILURES as error:
        fail(state_commands.failure_text(error))
    click.echo(
        f"encrypted again: {done.secrets} secrets, {done.commits} commits, "
        f"{done.connectors} connectors"
    )


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option("--strict", is_flag=True, help="Also exit with 1 for orphans, which lose nothing.")
def audit(as_json: bool, strict: bool) -> None:
    """Compare what Postgres records with topics, jobs, objects on S3 and local state.

    Reads only. Every finding is looked for twice, so that a commit in progress causes none. Exits
    with 1 if anything is missing.
    """
    import asyncio

    from fennel_core.apps import audit_facts, state_commands

    try:
        findings = asyncio.run(audit_facts.audit(select((), kafka=True)[0].settings))
    except state_commands.FAILURES as error:
        fail(state_commands.failure_text(error))
    lost = [each for each in findings if not each.problem.is_orphan]
    orphans = len(findings) - len(lost)
    if as_json:
        rows = [{"problem": f.problem, "subject": f.subject, "text": f.text} for f in findings]
        click.echo(json.dumps({"missing": len(lost), "orphaned": orphans, "findings": rows}))
    else:
        for each in findings:
            click.echo(f"{each.problem}: {each.subject}: {each.text}")
        click.echo(f"missing or wrong: {len(lost)}; orphaned: {orphans}")
    sys.exit(1 if lost or (strict and orphans) else 0)


@main.command()
@_selection_options
@click.option(
    "--before",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="Restore the newest snapshot with a lower number than this.",
)
@click.option("--trust-outputs", is_flag=True, help="Accept other state; needs --job.")
@click.option("--dry-run", is_flag=True, help="Only list the selected job partitions.")
def recover(
    workspace: str | None,
    dataset: str | None,
    jobs: tuple[str, ...],
    partitions: tuple[int, ...],
    before: int | None,
    trust_outputs: bool,
    dry_run: bool,
) -> None:
    """Rebuild job partitions from their newest snapshots, and wait until they have caught up.

    Their slots quarantine the local state, restore a snapshot, and replay later records without
    emitting output again. Until then lookups return 503. Airflow's DAG `recovery` does the same.
    """
    from fennel_core.apps import state_commands
    from fennel_core.snapshots.selection import Selection

    settings = select((), kafka=True)[0].settings
    try:
        chosen = Selection(workspace, dataset, jobs, partitions)
        state_commands.recover(
            settings, click.echo, chosen, before, trust_outputs=trust_outputs, dry_run=dry_run
        )
    except state_commands.FAILURES as error:
        fail(state_commands.failure_text(error))


@main.command()
@_selection_options
@click.option(
    "--at-most",
    type=click.IntRange(1),
    help="Number of job partitions; the one drilled longest ago comes first.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    help="Skip larger states, bytes. Default: FENNEL_DRILL_BYTES.",
)
def drill(
    workspace: str | None,
    dataset: str | None,
    jobs: tuple[str, ...],
    partitions: tuple[int, ...],
    at_most: int | None,
    max_bytes: int | None,
) -> None:
    """Verify that job partitions can be rebuilt: restore and replay a copy, compare it with the
    live state, and discard it.

    Without a selection the job partitions that are due are drilled. Running jobs are not disturbed.
    Does the same as Airflow's DAG `drill`.
    """
    from fennel_core.apps import state_commands
    from fennel_core.snapshots.selection import Selection

    settings = select((), kafka=True)[0].settings
    try:
        state_commands.drill(
            settings,
            click.echo,
            Selection(workspace, dataset, jobs, partitions),
            at_most,
            max_bytes,
        )
    except state_commands.FAILURES as error:
        fail(state_commands.failure_text(error))


@main.command()
@click.option("--workspace", help="Check only the datasets of this workspace.")
@click.option("--dataset", help="Check only this dataset.")
@click.option(
    "--keys",
    type=click.IntRange(1, 10_000),
    help="Keys of each dataset. Default: FENNEL_INTEGRITY_KEYS.",
)
@click.option("--seed", type=int, help="Sample the keys of an earlier check.")
def integrity(
    workspace: str | None, dataset: str | None, keys: int | None, seed: int | None
) -> None:
    """Recompute a sample of what lookups return from history, and compare.

    A difference is an alarm until the same keys agree again. Running jobs are not disturbed. Does
    the same as Airflow's DAG `integrity`.
    """
    from fennel_core.apps import state_commands

    settings = select(())[0].settings
    try:
        state_commands.integrity(settings, click.echo, workspace, dataset, keys, seed)
    except state_commands.FAILURES as error:
        fail(state_commands.failure_text(error))


@main.command()
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def clean(yes: bool) -> None:
    """Stop the platform and delete its data, logs and generated secrets.

    Environments and jars remain; `make distclean` deletes them too.
    """
    from fennel_core.apps.local import platform

    context, wanted = select(())
    if not yes:
        click.confirm(f"Delete everything in {context.layout.data}?", abort=True)
    platform.down(context, wanted)
    platform.wipe(context)
    click.echo(f"Deleted the data in {context.layout.data}.")


main.add_command(workspace)
main.add_command(token)
main.add_command(purge)
main.add_command(kafka_access)
main.add_command(backup)
main.add_command(restore)
main.add_command(offline)
main.add_command(source)
main.add_command(sink)
main.add_command(connector)
main.add_command(deadletters)
main.add_command(export)


if __name__ == "__main__":
    main()
