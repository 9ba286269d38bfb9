"""The command that writes a dataset as files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from fennel_core.apps.command_context import fail, select
from fennel_core.apps.workspace_calls import of_workspace

if TYPE_CHECKING:
    from fennel_core.settings.model import Settings


@click.command("export")
@click.argument("dataset")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="PLACE",
    help="A new folder, or s3://bucket/prefix with the keys of the environment (AWS_…).",
)
@click.option(
    "--format",
    "kind",
    required=True,
    type=click.Choice(["parquet", "delta"]),
    help="What to write.",
)
@click.option("--as-of", metavar="TIME", help="ISO 8601, inclusive; default: now.")
@click.option("--mode", metavar="MODE", help="as_of, latest or changelog; default: as_of.")
@click.option("--columns", metavar="A,B", help="Columns to write, in order; default: all.")
@click.option("--branch", metavar="NAME", help="Default: main.")
@of_workspace
@click.option("--workspace", metavar="NAME", help="Read this platform's stores, without a token.")
def export(
    dataset: str,
    target: str,
    kind: str,
    workspace: str | None,
    url: str | None,
    token: str | None,
    **read: str | None,
) -> None:
    """Write DATASET of a branch as files, without Spark: as of a time, or every change.

    The place must be empty. An export is whole when `_SUCCESS` is there, or the log of the Delta
    table; one that fails deletes what it wrote.

    \b
      fennel-core export User --to users --format parquet --as-of 2026-05-01
      fennel-core export Order --to s3://lake/orders --format delta --workspace shop
    """
    from fennel_core.dataframes.datasource import open_read
    from fennel_core.dataframes.export import ExportFormat, export
    from fennel_core.dataframes.export_places import place_at
    from fennel_core.dataframes.read_request import parse_options
    from fennel_core.history.errors import HistoryError

    options = {"dataset": dataset} | {name: text for name, text in read.items() if text is not None}
    given = click.get_current_context().get_parameter_source
    if workspace is not None:
        for name in ("token", "url"):
            if given(name) is ParameterSource.COMMANDLINE:
                fail(
                    f"--{name} has no effect beside --workspace, which reads this platform's "
                    "stores; omit one of the two."
                )
        options["workspace"] = workspace
    elif token is None:
        fail("Name a token of a workspace (--token, or FENNEL_TOKEN), or a --workspace.")
    else:
        options |= {"token": token, "url": url or _settings().query_url}
    now = datetime.now(UTC)
    try:
        place = place_at(target)
        request = parse_options(options, now)
        files = export(
            open_read(request, _settings), place, ExportFormat(kind), request.part_rows, now
        )
    except HistoryError as refused:
        fail(str(refused))
    rows = sum(file.rows for file in files)
    click.echo(f"Wrote {rows} rows of {dataset} in {len(files)} files to {target}.")


def _settings() -> Settings:
    return select(())[0].settings
