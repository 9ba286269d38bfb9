"""`status` as people read it: the parts of the platform, then its job partitions.

A demo has two dozen job partitions and is shown whole. A platform with hundreds is counted by
workspace, and only those partitions are shown one by one that somebody should look at; `status
--json` has them all.
"""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.platform import ServiceStatus

SHOWN_WHOLE: Final = 64
LEAST_COLUMNS: Final = 110
"""On a narrower terminal lines wrap rather than lose their ends."""
COLUMNS_OF_A_FILE: Final = 220
RUNNING: Final = "running"
COLUMNS: Final = ("job", "part", "slot", "epoch", "status", "lag", "reported_s", "error")

JobPartitionRow = dict[str, Any]
"""One entry of the query server's `job_partitions`."""
AlarmRow = dict[str, Any]
"""One entry of the definition server's `alarms`."""


def _console() -> Console:
    return Console(
        width=max(shutil.get_terminal_size((COLUMNS_OF_A_FILE, 40)).columns, LEAST_COLUMNS)
    )


def print_parts(layout: FileLayout, rows: Sequence[ServiceStatus]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("service", "state", "port", "pid", "since", "memory", "log file"):
        table.add_column(name, overflow="fold")
    colours = {"ready": "green", "stopped": "dim"}
    for row in rows:
        since = f"{row.age_s:.0f} s" if row.age_s is not None else ""
        memory = f"{row.memory_bytes / 2**20:.0f} MB" if row.memory_bytes is not None else ""
        state = f"[{colours.get(row.state, 'red')}]{row.state}[/]"
        table.add_row(
            row.service.title,
            state,
            str(row.service.port or "–"),
            str(row.pid or ""),
            since,
            memory,
            layout.shown(row.log),
        )
    console = _console()
    console.print(table)
    for row in rows:
        if row.why:
            console.print(f"{row.service.title}: {row.why}", style="red", highlight=False)


def print_partitions(partitions: Sequence[JobPartitionRow] | None) -> None:
    """`None`: the query server could not be asked."""
    console = _console()
    console.print()
    if partitions is None:
        console.print("Job partitions: the query server does not answer.", style="dim")
    elif not partitions:
        console.print("Job partitions: none; nothing is committed.", style="dim")
    elif len(partitions) <= SHOWN_WHOLE:
        console.print(_each(partitions))
    else:
        console.print(_counted(partitions))
        if odd := [row for row in partitions if needs_attention(row)]:
            shown = "" if len(odd) <= SHOWN_WHOLE else f" (the first {SHOWN_WHOLE})"
            console.print(f"\n{len(odd)} of them need a look{shown}:", style="red")
            console.print(_each(odd[:SHOWN_WHOLE]))


def print_alarms(alarms: Sequence[AlarmRow] | None) -> None:
    """Records that job partitions need and that are gone, or about to be too old; nothing where
    there are none.
    """
    for row in alarms or ():
        _console().print(
            f"Needed records ({row['trouble']}): {row['told']}", style="red", highlight=False
        )


def print_drills(drills: Sequence[AlarmRow] | None) -> None:
    """Job partitions whose last drill did not agree; nothing where there are none."""
    for row in drills or ():
        _console().print(
            f"Drill of {row['drilled_at']}: {row['told']}", style="red", highlight=False
        )


def needs_attention(row: JobPartitionRow) -> bool:
    """Not running, failing, or owned by nobody."""
    return row.get("status") != RUNNING or row.get("error") is not None or row.get("slot") is None


def workspace_of(row: JobPartitionRow) -> str:
    """A job's id begins with its workspace."""
    return str(row["id"]).partition(".")[0]


def _each(partitions: Sequence[JobPartitionRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name.replace("_", " "), no_wrap=name != "error")
    for row in partitions:
        table.add_row(*("" if row.get(name) is None else str(row[name]) for name in COLUMNS))
    return table


def _counted(partitions: Sequence[JobPartitionRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("workspace", "status", "job partitions", "lag"):
        table.add_column(name, justify="right" if name in {"job partitions", "lag"} else "left")
    keys = [(workspace_of(row), str(row.get("status"))) for row in partitions]
    lags: Counter[tuple[str, str]] = Counter()
    for key, row in zip(keys, partitions, strict=True):
        lags[key] += int(row.get("lag") or 0)
    for (workspace, status), count in sorted(Counter(keys).items()):
        table.add_row(workspace, status, str(count), str(lags[workspace, status]))
    return table


HISTORY: Final = ("files", "rows", "lag_records")
"""What the history writer's metrics `fennel_history_…` tell of each topic."""


def parse_history_metrics(metrics: str) -> dict[str, dict[str, int]]:
    """Topic → files, rows and messages behind, from the text of the history writer's `/metrics`."""
    found: dict[str, dict[str, int]] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            name = sample.name.removeprefix("fennel_history_")
            if name in HISTORY and "topic" in sample.labels:
                found.setdefault(sample.labels["topic"], dict.fromkeys(HISTORY, 0))[name] = int(
                    sample.value
                )
    return found


def print_history(topics: Mapping[str, Mapping[str, int]] | None) -> None:
    """`None`: the history writer could not be asked. More than `SHOWN_WHOLE` topics are summed by
    workspace.
    """
    console = _console()
    console.print()
    if topics is None:
        console.print("History: its writer does not answer.", style="dim")
        return
    whole = len(topics) <= SHOWN_WHOLE
    rows: dict[str, Counter[str]] = {}
    for topic, told in topics.items():
        rows.setdefault(topic if whole else topic.partition(".")[0], Counter()).update(told)
    table = Table(box=None, pad_edge=False)
    for name in (
        "topic with history" if whole else "workspace",
        "files",
        "rows",
        "messages behind",
    ):
        table.add_column(
            name,
            justify="right" if rows and name in {"files", "rows", "messages behind"} else "left",
        )
    for name, sums in sorted(rows.items()):
        table.add_row(name, *(str(sums[each]) for each in HISTORY))
    console.print(table if rows else "History: no dataset has a topic.")
