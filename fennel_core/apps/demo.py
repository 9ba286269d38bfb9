"""The demo: commit the fraud example with the real client, log its data and query features."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fennel_core.apps.errors import DemoFailed
from fennel_core.settings.model import Settings

PROJECT = Path(__file__).resolve().parents[2]
TOKEN = "dev-demo"  # noqa: S105  # opens workspace `demo` in development mode on loopback, and nothing else

_ON_THIS_MACHINE = (
    "status    make status      processes, slots, job partitions, lag and last errors",
    "logs      make logs        or `fennel-core logs engine -f`",
    "stop      make down        data survives; `make up` starts, `make clean` deletes",
)
_IN_CONTAINERS = (
    "status    docker compose ps                the containers and whether they are healthy",
    "logs      docker compose logs -f engine    or of another service",
    "stop      docker compose down              data survives; `down --volumes` deletes it",
)


def run_demo(settings: Settings, console: Console) -> None:
    """Run the example against the running platform; raises DemoFailed with its last lines."""
    console.print("\n[bold]The fraud example, with the real client[/bold] (examples/fraud)")
    command = [
        str(settings.executor_python),
        "-m",
        "examples.fraud.demo",
        settings.query_url,
        TOKEN,
    ]
    with subprocess.Popen(  # noqa: S603  # a fixed list of arguments, and no shell
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as example:
        assert example.stdout is not None, "stdout is piped"
        assert example.stderr is not None, "stderr is piped"
        for line in example.stdout:
            _show(console, json.loads(line))
        complaint = example.stderr.read()
    if example.returncode != 0:
        raise DemoFailed("\n".join(complaint.strip().splitlines()[-8:]))
    _what_next(settings, console)


def _show(console: Console, event: dict[str, Any]) -> None:
    if "end" in event:
        console.print(f"  [green]✓[/green] {event['end']:<52} {event['seconds'] * 1000:>9.0f} ms")
    elif "features" in event:
        console.print(_table(event["features"]))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table with one column per card: there are too many features for columns."""
    table = Table(title="CardRisk, looked up online", title_justify="left")
    table.add_column("cc_num", no_wrap=True)
    for row in rows:
        table.add_column(str(row["cc_num"]), justify="right", overflow="fold")
    for name in [name for name in rows[0] if name != "cc_num"]:
        table.add_row(
            name,
            *(
                f"{row[name]:.4f}" if isinstance(row[name], float) else str(row[name])
                for row in rows
            ),
        )
    return table


def _what_next(settings: Settings, console: Console) -> None:
    conf = '{"definitions": "examples.fraud.definitions", "workspace": "demo", "branch": "main"}'
    show = partial(console.print, soft_wrap=True)
    show("\n[bold]What next[/bold]")
    show(
        f"  API       {settings.query_url}   token [bold]{TOKEN}[/bold] "
        "(`dev-<name>` opens workspace `<name>`)"
    )
    contained = settings.reach_by_name
    show(
        f"  Airflow   {settings.airflow_pages}   user {settings.airflow_user}, password: "
        + (
            "`docker compose exec airflow-api cat /data/secrets/airflow_password`"
            if contained
            else "`fennel-core env FENNEL_AIRFLOW_PASSWORD`"
        )
    )
    show(f"            commit from its form: Dags, commit, Trigger, for example {conf}")
    for line in _IN_CONTAINERS if contained else _ON_THIS_MACHINE:
        show(f"  {line}")
    show("  go on     docs/tutorial.md builds a project of your own\n")


def main() -> None:
    """`python -m fennel_core.apps.demo`."""
    console = Console()
    try:
        run_demo(Settings(), console)
    except DemoFailed as failed:
        console.print(
            f"[red]The demo failed.[/red] Last lines of the example:\n{failed}", soft_wrap=True
        )
        console.print("See `make status` and `make logs`.")
        sys.exit(1)


if __name__ == "__main__":
    main()
