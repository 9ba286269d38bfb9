"""The command `fennel-core`: run the platform on this machine, look at it, and manage workspaces.

Commands import what they need when they run, so that `--help` answers at once.
"""

import json
import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

if TYPE_CHECKING:
    from fennel_core.apps.local.launcher import StartFailure
    from fennel_core.apps.local.services import Service
    from fennel_core.apps.local.setup_steps import PlatformContext

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
DEMO_TOKEN: Final = "dev-demo"  # noqa: S105  # not a secret: development tokens name a workspace and work on loopback only
ASK_S: Final = 60.0


@click.group(context_settings=CONTEXT)
@click.version_option(package_name=None, version="0.1.0", prog_name="fennel-core")
def main() -> None:
    """Run fennel-core on this machine: a data plane for features on Kafka, Spark, RocksDB,
    Postgres, S3 and Airflow.

    \b
    First steps:
      fennel-core up                  start everything and wait until it is healthy
      fennel-core demo                commit a project, log data, query features
      eval "$(fennel-core env)"       put the API's URL and a token into your shell
      fennel-core down                stop everything; data survives

    Every setting is an environment variable FENNEL_…; `fennel-core settings` lists them with unit
    and reason.
    """


@main.command()
@click.option(
    "--only",
    multiple=True,
    metavar="PART",
    help="Start only this part or group (infra, fennel) and what it needs. May be repeated.",
)
def up(only: tuple[str, ...]) -> None:
    """Start the platform and wait until every part is healthy.

    Runs again without harm: what runs is kept, what died is started, what was started with other
    settings is restarted. Everything listens on loopback. A port in use, missing Java or a full
    disk is said before anything starts.
    """
    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local import platform

    context, wanted = _chosen(_names(only))
    try:
        failures = platform.up(context, wanted)
    except SetupFailed as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail(
            "Stopped waiting. What was started goes on: `fennel-core status` shows "
            "it, `fennel-core down` stops it."
        )
    for failure in failures:
        _explain(context, failure)
    if failures:
        sys.exit(1)
    settings, names = context.settings, {service.name for service in wanted}
    click.echo()
    if "query" in names:
        click.echo(f"The API is at {settings.query_url}.")
    if "airflow-api" in names:
        click.echo(f"Airflow is at {settings.airflow_pages} (user {settings.airflow_user}).")
    click.echo(
        "`fennel-core env` prints what a client needs, `fennel-core status` what "
        "runs, `fennel-core down` stops it."
    )


def _explain(context: "PlatformContext", failure: "StartFailure") -> None:
    log = context.layout.shown(context.layout.log(failure.service.name))
    click.secho(
        f"\n{failure.service.title} did not become ready: {failure.why.rstrip('.')}.",
        fg="red",
        err=True,
    )
    for line in failure.log_lines:
        click.echo(f"    {line}", err=True)
    click.echo(
        f"  Its whole log: {log}. When it is solved, run `fennel-core up` again: "
        "parts that run are kept.",
        err=True,
    )


@main.command()
@click.option(
    "--only",
    multiple=True,
    metavar="PART",
    help="Stop only this part or group (infra, fennel). May be repeated.",
)
def down(only: tuple[str, ...]) -> None:
    """Stop everything that `up` started, and nothing else; data survives.

    Each part is asked to end, together with whatever it started, and killed only if it has not
    ended within FENNEL_SHUTDOWN_GRACE_S.
    """
    from fennel_core.apps.local import platform

    context, wanted = _chosen(_names(only))
    stopped = platform.down(context, wanted)
    for service in stopped:
        click.echo(f"stopped {service.name}" + ("" if service.gently else " (had to be killed)"))
    if not stopped:
        click.echo("Nothing was running.")


@main.command()
@click.argument("names", nargs=-1, metavar="PART...", required=True)
def restart(names: tuple[str, ...]) -> None:
    """Stop parts and start them again, as after a change of their code."""
    from fennel_core.apps.local import platform

    context, wanted = _chosen(names)
    platform.down(context, wanted)
    failures = platform.up(context, wanted)
    for failure in failures:
        _explain(context, failure)
    sys.exit(1 if failures else 0)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def status(as_json: bool) -> None:
    """What runs where, and which slot owns which job partition.

    Exits with 1 unless every part is ready.
    """
    from fennel_core.apps.local import platform, status_tables

    context, _ = _chosen(())
    rows = platform.status(context)
    partitions, history, alarms, drills = (
        _partitions(context),
        _history(context),
        _alarms(context),
        _failing_drills(context),
    )
    if as_json:
        services = [
            {
                "service": r.service.name,
                "state": r.state,
                "why": r.why,
                "pid": r.pid,
                "port": r.service.port,
                "log": str(r.log),
            }
            for r in rows
        ]
        found = {
            "services": services,
            "job_partitions": partitions,
            "history": history,
            "needed_records": alarms,
            "failing_drills": drills,
        }
        click.echo(json.dumps(found, indent=2))
    else:
        status_tables.print_parts(context.layout, rows)
        status_tables.print_partitions(partitions)
        if context.settings.history:
            status_tables.print_history(history)
        status_tables.print_alarms(alarms)
        status_tables.print_drills(drills)
    sys.exit(0 if all(row.state == "ready" for row in rows) else 1)


def _partitions(context: "PlatformContext") -> list[dict[str, Any]] | None:
    """What the query server says of job partitions; None while it cannot be asked."""
    return _rows(context, f"{context.settings.query_url}/status", "job_partitions")


def _alarms(context: "PlatformContext") -> list[dict[str, Any]] | None:
    """What the definition server says of needed records; None while it cannot be asked."""
    return _rows(context, f"{context.settings.definition_url}/api/v1/operations/needed", "alarms")


def _failing_drills(context: "PlatformContext") -> list[dict[str, Any]] | None:
    """What the definition server says of drills that did not agree; None while it cannot be
    asked.
    """
    return _rows(context, f"{context.settings.definition_url}/api/v1/operations/drills", "drills")


def _rows(context: "PlatformContext", url: str, name: str) -> list[dict[str, Any]] | None:
    """A list that a server of ours tells the administrator; None without an answer."""
    token = context.settings.admin_token.get_secret_value()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310  # our own URL
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310  # our own URL
            rows: list[dict[str, Any]] = json.loads(answer.read())[name]
            return rows
    except (OSError, json.JSONDecodeError, KeyError):
        return None


def _history(context: "PlatformContext") -> dict[str, dict[str, int]] | None:
    """Files, rows and messages behind of each topic with a history; None while its writer cannot be
    asked.
    """
    from fennel_core.apps.local.status_tables import parse_history_metrics

    settings = context.settings
    try:
        with urllib.request.urlopen(
            f"http://{settings.host}:{settings.history_port}/metrics", timeout=5
        ) as answer:  # our own URL
            return parse_history_metrics(answer.read().decode())
    except (OSError, ValueError):
        return None


@main.command()
@click.argument("name", required=False)
@click.option(
    "-f", "--follow", is_flag=True, help="Go on printing as lines arrive; end with Ctrl-C."
)
@click.option("-n", "--lines", default=20, show_default=True, help="Lines to begin with.")
def logs(name: str | None, follow: bool, lines: int) -> None:
    """Print the ends of the log files, or of one part's."""
    context, wanted = _chosen((name,) if name else ())
    files = [
        str(context.layout.log(service.name))
        for service in wanted
        if context.layout.log(service.name).exists()
    ]
    if not files:
        _fail("There is no log yet: nothing was started.")
    try:
        sys.exit(
            subprocess.run(
                ["tail", f"-n{lines}", *(["-F"] if follow else []), *files], check=False
            ).returncode
        )
    except KeyboardInterrupt:
        return


@main.command()
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Every setting the platform was started with, passwords included.",
)
def env(everything: bool) -> None:
    """Print export lines with the API's URL and a token: eval "$(fennel-core env)"."""
    from fennel_core.apps.local.services import process_env

    context, _ = _chosen(())
    variables = process_env(context.settings) if everything else {}
    variables |= {"FENNEL_URL": context.settings.query_url, "FENNEL_TOKEN": DEMO_TOKEN}
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


@main.command()
def settings() -> None:
    """List every setting: its variable, its default, its unit and its reason."""
    from pydantic import SecretStr

    from fennel_core.settings.model import ENV_PREFIX, Settings

    for name, field in sorted(Settings.model_fields.items()):
        default = (
            "(derived)"
            if field.default_factory
            else "(generated)"
            if isinstance(field.default, SecretStr)
            else field.default
        )
        click.secho(f"{ENV_PREFIX}{name.upper()}={'' if default is None else default}", bold=True)
        click.echo(f"    {field.description}")


@main.command()
def demo() -> None:
    """Commit a fraud-detection project, log its data and query features, step by step."""
    import importlib.util

    if importlib.util.find_spec("fennel_core.apps.demo") is None:
        _fail("This version has no demo.")
    context, _ = _chosen(())
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
    help="Go on, one round every so many minutes; end with Ctrl-C.",
)
def snapshot(every: int | None) -> None:
    """Copy the state of every job partition to S3, and delete the copies and records that nobody
    needs any more.

    What Airflow's DAG `snapshot` does, for platforms without it (FENNEL_ORCHESTRATOR=inline): from
    cron, or with --every.
    """
    from fennel_core.apps import states

    settings = _chosen(())[0].settings
    try:
        states.snapshots(settings, click.echo, None if every is None else every * 60.0)
    except states.REASONS as error:
        _fail(states.sentence(error))
    except KeyboardInterrupt:
        return


def _which(command: Callable[..., None]) -> Callable[..., None]:
    """The options that name job partitions."""
    for option in (
        click.option(
            "--partition",
            "partitions",
            type=click.IntRange(0),
            multiple=True,
            help="Only this one. May be repeated.",
        ),
        click.option(
            "--job",
            "jobs",
            multiple=True,
            metavar="ID",
            help="A job's id, as `status --json` shows it. May be repeated.",
        ),
        click.option("--dataset", metavar="NAME", help="Only the jobs that work for this dataset."),
        click.option("--workspace", metavar="NAME", help="All job partitions of this workspace."),
    ):
        command = option(command)
    return command


@main.command()
@_which
@click.option(
    "--before",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="Start from a snapshot with a lower number than this.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show which job partitions are meant, and do nothing."
)
def recover(
    workspace: str | None,
    dataset: str | None,
    jobs: tuple[str, ...],
    partitions: tuple[int, ...],
    before: int | None,
    dry_run: bool,
) -> None:
    """Rebuild job partitions from their newest snapshots, and wait until they have caught up.

    Their owners put local state aside, restore, and replay what came after without emitting it
    again. Lookups are answered with 503 meanwhile. What Airflow's DAG `recovery` does.
    """
    from fennel_core.apps import states
    from fennel_core.snapshots.selection import Selection

    settings = _chosen(())[0].settings
    try:
        states.recover(
            settings,
            click.echo,
            Selection(workspace, dataset, jobs, partitions),
            before,
            dry_run=dry_run,
        )
    except states.REASONS as error:
        _fail(states.sentence(error))


@main.command()
@_which
@click.option(
    "--at-most",
    type=click.IntRange(1),
    help="So many, those first whose last drill is longest ago.",
)
@click.option(
    "--max-bytes", type=click.IntRange(1), help="Skip larger states. Default: FENNEL_DRILL_BYTES."
)
def drill(
    workspace: str | None,
    dataset: str | None,
    jobs: tuple[str, ...],
    partitions: tuple[int, ...],
    at_most: int | None,
    max_bytes: int | None,
) -> None:
    """Try whether job partitions could be rebuilt: restore, replay and compare beside the live
    state, and discard.

    Without names those are drilled whose turn it is. Nothing that runs is disturbed. What Airflow's
    DAG `drill` does.
    """
    from fennel_core.apps import states
    from fennel_core.snapshots.selection import Selection

    settings = _chosen(())[0].settings
    try:
        states.drill(
            settings,
            click.echo,
            Selection(workspace, dataset, jobs, partitions),
            at_most,
            max_bytes,
        )
    except states.REASONS as error:
        _fail(states.sentence(error))


@main.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(yes: bool) -> None:
    """Stop the platform and delete its data, logs and generated secrets.

    Environments and jars stay; `make distclean` removes them too.
    """
    from fennel_core.apps.local import platform

    context, wanted = _chosen(())
    if not yes:
        click.confirm(f"Delete everything in {context.layout.data}?", abort=True)
    platform.down(context, wanted)
    platform.wipe(context)
    click.echo(f"Deleted the data in {context.layout.data}.")


@main.group()
def workspace() -> None:
    """Create, delete and list workspaces. A token names a workspace; nothing is shared between
    two.
    """


@workspace.command("list")
def workspace_list() -> None:
    """Every workspace, one per line."""
    for row in _definition("GET", "/api/v1/workspaces")["workspaces"]:
        click.echo(row["name"])


@workspace.command("create")
@click.argument("name")
def workspace_create(name: str) -> None:
    """Create a workspace and print its token, which is shown only once."""
    made = _definition("POST", "/api/v1/workspaces", {"name": name})
    click.echo(f"export FENNEL_TOKEN={shlex.quote(str(made['token']))}")


@workspace.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def workspace_delete(name: str, yes: bool) -> None:
    """Delete a workspace: its jobs stop, its topics and state are destroyed."""
    if not yes:
        click.confirm(f"Delete workspace {name} and all its data?", abort=True)
    _definition("DELETE", f"/api/v1/workspaces/{name}")
    click.echo(f"Deleted workspace {name}.")


def _definition(method: str, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
    """Asks the definition server as administrator; ends the program with its sentence where it
    refuses.
    """
    context, _ = _chosen(())
    request = urllib.request.Request(  # noqa: S310  # our own URL
        context.settings.definition_url + path,
        data=json.dumps(body).encode() if body is not None else None,
        method=method,
        headers={
            "Authorization": f"Bearer {context.settings.admin_token.get_secret_value()}",
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:  # noqa: S310  # our own URL
            text = answer.read()
            parsed: dict[str, Any] = json.loads(text) if text else {}
            return parsed
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace").strip()
        _fail(said or f"The definition server answers {error.code}.")
    except OSError as error:
        _fail(
            f"The definition server at {context.settings.definition_url} does not "
            f"answer ({error}): is the platform up?"
        )


def _names(only: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for word in only for name in word.split(",") if name)


def _chosen(names: tuple[str, ...]) -> "tuple[PlatformContext, tuple[Service, ...]]":
    """This machine and the parts that names mean; ends the program with one sentence where that
    cannot be.
    """
    from pydantic import ValidationError

    from fennel_core.apps.errors import SetupFailed, UnknownService
    from fennel_core.apps.local.launch_plan import select_services
    from fennel_core.apps.local.platform import load_context
    from fennel_core.apps.local.services import service_table

    try:
        context = load_context()
        return context, select_services(service_table(context), names)
    except ValidationError as error:
        _fail(
            "\n".join(
                f"FENNEL_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}"
                if e["loc"]
                else e["msg"]
                for e in error.errors()
            )
        )
    except (SetupFailed, UnknownService) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.strerror}: {error.filename}")


def _fail(sentence: str) -> NoReturn:
    click.secho(sentence, fg="red", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
