"""The tables of `fennel-core status`: services, job partitions, history, alarms.

Up to `MAX_ROWS` job partitions are listed. Above that they are counted by workspace, and only the
unhealthy ones are listed; `status --json` contains them all.
"""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.platform import ServiceStatus
from fennel_core.executors.report import ExecutorReport

RETAINED_MIB: Final = 256
"""A database that keeps less of its log for a source is not named."""
MAX_ROWS: Final = 64
NUMBERS: Final = frozenset({"rows", "events", "behind", "failures"})
MIN_COLUMNS: Final = 110
"""On a narrower terminal lines wrap instead of being cut."""
FILE_COLUMNS: Final = 220
REASON_SHOWN: Final = 120
"""Characters of the reason of a dead letter; `status --json` has more."""
RUNNING: Final = "running"
PAUSED: Final = "paused"
"""The job is retained: no engine runs it, and it keeps its state."""
INTEGRITY_REMEDY: Final = (
    "rebuild the job that is named with `fennel-core recover --job ID`, then run `fennel-core "
    "integrity`: it checks the same keys again, and the alarm ends when they agree"
)
COLUMNS: Final = ("job", "part", "slot", "epoch", "status", "lag", "reported_s", "error")

JobPartitionRow = dict[str, Any]
"""One entry of `job_partitions` in the query server's status."""
AlarmRow = dict[str, Any]
"""One alarm or failed drill that the definition server reports."""


def _console() -> Console:
    return Console(width=max(shutil.get_terminal_size((FILE_COLUMNS, 40)).columns, MIN_COLUMNS))


def print_parts(layout: FileLayout, rows: Sequence[ServiceStatus]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("service", "state", "port", "pid", "since", "restarts", "memory", "log file"):
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
            str(row.restarts or ""),
            memory,
            layout.shown(row.log),
        )
    console = _console()
    console.print(table)
    for row in rows:
        if row.why:
            console.print(f"{row.service.title}: {row.why}", style="red", highlight=False)


def print_partitions(partitions: Sequence[JobPartitionRow] | None) -> None:
    """Print the job partitions; None means that the query server did not respond."""
    console = _console()
    console.print()
    if partitions is None:
        console.print("Job partitions: the query server does not respond.", style="dim")
    elif not partitions:
        console.print("Job partitions: none, because nothing is committed.", style="dim")
    elif len(partitions) <= MAX_ROWS:
        console.print(_each(partitions))
    else:
        console.print(_counted(partitions))
        if unhealthy := [row for row in partitions if needs_attention(row)]:
            shown = "" if len(unhealthy) <= MAX_ROWS else f" (the first {MAX_ROWS})"
            console.print(f"\n{len(unhealthy)} of them need attention{shown}:", style="red")
            console.print(_each(unhealthy[:MAX_ROWS]))


def print_workspaces(workspaces: Sequence[AlarmRow] | None) -> None:
    """Print the number of partitions of each workspace that has had a commit."""
    counts = [f"{w['name']} {w['partitions']}" for w in workspaces or () if w["partitions"]]
    if counts:
        shown = ", ".join(counts[:MAX_ROWS]) + (", …" if len(counts) > MAX_ROWS else "")
        _console().print(f"\nPartitions per topic and job: {shown}", highlight=False)


def print_warming(branches: Sequence[AlarmRow] | None) -> None:
    """Print the branches whose reads stay on an earlier version; at most `MAX_ROWS` lines."""
    for row in (branches or ())[:MAX_ROWS]:
        reads = f"stay on commit {row['serving']}" if row["serving"] else "have not begun"
        _console().print(
            f"\nBranch {row['workspace']}/{row['branch']} is warming: the jobs of commit "
            f"{row['target']} have not caught up, reads {reads}",
            style="yellow",
            highlight=False,
            markup=False,
        )
    if branches and len(branches) > MAX_ROWS:
        _console().print(f"… and {len(branches) - MAX_ROWS} more branches", highlight=False)


def print_dead_letters(counts: Sequence[AlarmRow] | None) -> None:
    """Print how many rows of open dead letters there are, the newest first; `MAX_ROWS` lines."""
    counts = [row for row in counts or () if row["open"]]
    if not counts:
        return
    table = Table(box=None, pad_edge=False)
    for name in ("workspace", "dataset or job", "kind", "rows", "open", "newest", "newest reason"):
        justify: JustifyMethod = "right" if name in ("rows", "open") else "left"
        table.add_column(name, justify=justify, no_wrap=name != "newest reason")
    newest = sorted(counts, key=lambda row: str(row["newest_at"]), reverse=True)
    for row in newest[:MAX_ROWS]:
        reason = " ".join(str(row["newest_reason"]).split())
        shown = reason if len(reason) <= REASON_SHOWN else f"{reason[:REASON_SHOWN]}…"
        values = [row[n] for n in ("workspace", "subject", "kind", "rows", "open", "newest_at")]
        table.add_row(*(escape(str(value)) for value in (*values, shown)))
    total = sum(int(row["open"]) for row in counts)
    more = f" (the newest {MAX_ROWS} of {len(counts)} counts)" if len(counts) > MAX_ROWS else ""
    console = _console()
    console.print(f"\nDead letters: {total} rows{more}", highlight=False)
    console.print(table)


def print_retained(retained: Sequence[AlarmRow] | None) -> None:
    """Print how many assets are retained, and until when."""
    if not retained:
        return
    ends = [row["destroyed_after"] for row in retained if row["destroyed_after"] is not None]
    parts = [f"\nRetained assets: {len(retained)}"]
    if ends:
        last = max(ends)
        parts.append(f"{len(ends)} of them are destroyed by {last}")
    if endless := len(retained) - len(ends):
        parts.append(f"{endless} are kept until the loss of their rows is confirmed")
    _console().print("; ".join(parts), highlight=False)


def retained_line(row: AlarmRow) -> str:
    """Return the line of one retained asset."""
    ends = row["destroyed_after"]
    until = "until the loss of its rows is confirmed" if ends is None else f"until {ends}"
    return f"{row['kind']} of {row['title']} ({row['asset']}), retained {until}"


def print_alarms(alarms: Sequence[AlarmRow] | None) -> None:
    """Print one line per job partition whose records have expired or are about to expire."""
    for row in alarms or ():
        _console().print(
            f"Needed records ({row['problem']}): {row['message']}", style="red", highlight=False
        )


def print_drills(drills: Sequence[AlarmRow] | None) -> None:
    """Print one line per job partition whose last drill failed."""
    for row in drills or ():
        _console().print(
            f"Drill of {row['drilled_at']}: {row['message']}", style="red", highlight=False
        )


def print_integrity(differing: Sequence[AlarmRow] | None) -> None:
    """Print one line per dataset whose lookups differed from a recompute, and what to do."""
    for row in differing or ():
        _console().print(
            f"Integrity check of {row['checked_at']}: {row['message']}",
            style="red",
            highlight=False,
        )
    if differing:
        _console().print(f"What to do: {INTEGRITY_REMEDY}", highlight=False)


def print_failing_items(items: Sequence[AlarmRow] | None) -> None:
    """Print one line per commit or workspace that reconcile fails to finish."""
    for row in items or ():
        name = f"{row['kind']} {row['commit'] or row['workspace'] or ''}".rstrip()
        _console().print(
            f"Reconcile fails for {name} ({row['attempts']} attempts): {row['error']}",
            style="red",
            highlight=False,
        )


def needs_attention(row: JobPartitionRow) -> bool:
    """Return whether a job partition that should run does not, has an error, or has no owner."""
    if row.get("status") == PAUSED:
        return False
    return row.get("status") != RUNNING or row.get("error") is not None or row.get("slot") is None


def workspace_of(row: JobPartitionRow) -> str:
    """Return the workspace, with which a job's id begins."""
    return str(row["id"]).partition(".")[0]


def _each(partitions: Sequence[JobPartitionRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        title = "partition" if name == "part" else name.replace("_", " ")
        table.add_column(title, no_wrap=name != "error")
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


HISTORY: Final = {
    "files": "files",
    "rows": "rows",
    "expired_rows": "expired rows",
    "lag_records": "lag (messages)",
    "waiting_s": "waiting (s)",
}
"""What is shown of each topic: the name in the writer's report, and in the table."""


def history_by_topic(rows: Sequence[AlarmRow]) -> dict[str, AlarmRow]:
    """Return topic → counts and waiting time, from the history writer's report."""
    return {
        str(row["topic"]): {name: value for name, value in row.items() if name != "topic"}
        for row in rows
    }


def print_history(topics: Mapping[str, AlarmRow] | None) -> None:
    """Print files, rows, expired rows and lag; None means that the history writer did not respond.

    More than `MAX_ROWS` topics are summed by workspace; the time is that of the topic that waits
    longest.
    """
    console = _console()
    console.print()
    if topics is None:
        console.print("History: the writer does not respond.", style="dim")
        return
    whole = len(topics) <= MAX_ROWS
    rows: dict[str, AlarmRow] = {}
    for topic, counts in topics.items():
        row = rows.setdefault(
            topic if whole else topic.partition(".")[0], dict.fromkeys(HISTORY, 0)
        )
        for name in HISTORY:
            both = (row[name], counts[name])
            row[name] = max(both) if name == "waiting_s" else sum(both)
    table = Table(box=None, pad_edge=False)
    table.add_column("topic with history" if whole else "workspace")
    for title in HISTORY.values():
        table.add_column(title, justify="right" if rows else "left")
    for name, sums in sorted(rows.items()):
        table.add_row(name, *(str(sums[each]) for each in HISTORY))
    console.print(table if rows else "History: there is no dataset with a topic.")
    lost = {topic: counts.get("lost_records", 0) for topic, counts in topics.items()}
    if lacking := sorted(topic for topic, count in lost.items() if count):
        console.print(
            f"History lacks {sum(lost.values())} messages of {len(lacking)} topics, the first is "
            f"{lacking[0]}: Kafka deleted them before history had them.",
            style="red",
            highlight=False,
        )
    if late := sorted(topic for topic, counts in topics.items() if counts["late"]):
        console.print(
            f"History is late for {len(late)} topics, the first is {late[0]}: see the log of "
            "`history`.",
            style="red",
            highlight=False,
        )


def print_erasures(topics: Sequence[AlarmRow] | None) -> None:
    """Print the datasets with erased keys of which history may still have rows."""
    left = [row for row in topics or () if row["keys_left"]]
    if not left:
        return
    console = _console()
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("dataset with erased keys, on topic")
    for title in ("keys", "keys left", "in rows", "files", "replaced", "removed rows"):
        table.add_column(title, justify="right")
    table.add_column("state", overflow="fold")
    for row in left[:MAX_ROWS]:
        numbers = ("keys", "keys_left", "rows", "files", "objects", "removed_rows")
        state = row["kept_because"]
        table.add_row(
            f"{row['workspace']}: {row['dataset']}, {row['topic']}",
            *(str(row[name]) for name in numbers),
            f"waiting since {row['since']}" if state is None else f"kept: {state}",
        )
    console.print(table)
    if len(left) > MAX_ROWS:
        console.print(f"and {len(left) - MAX_ROWS} more topics: `fennel-core status --json`")


def held_rows_line(row: AlarmRow) -> str:
    """Return why a workspace keeps rows older than `history`, and what to do."""
    match row["reason"]:
        case "unconfirmed":
            why = (
                "the workspace is older than retention, and no commit has confirmed that they "
                "may leave. See which ones with `fennel-core maintain-history --dry-run`, then "
                "commit its definitions with allow_data_loss, unchanged or with a longer `history`"
            )
        case "grace":
            why = f"they may leave from {row['at']} on: until then a commit may still keep them"
        case "commit":
            why = (
                f"commit {row['commit']}, received {row['at']}, has neither finished nor been "
                "undone. See why below, or in the logs of `definition` and of Airflow's DAG "
                "`commit`"
            )
        case other:
            why = str(other)
    return f"Rows older than 'history' stay in workspace {row['workspace']}: {why}."


def print_held_rows(workspaces: Sequence[AlarmRow] | None) -> None:
    """Print one line per reason why a workspace keeps rows older than `history`."""
    console = _console()
    for row in (workspaces or ())[:MAX_ROWS]:
        colour = "dim" if row["reason"] == "grace" else "yellow"
        console.print(held_rows_line(row), style=colour, highlight=False, markup=False)
    if workspaces and len(workspaces) > MAX_ROWS:
        more = len(workspaces) - MAX_ROWS
        console.print(f"and {more} more: `fennel-core status --json`", highlight=False)


def parse_lost_rows(metrics: str) -> dict[str, dict[str, int]]:
    """Return workspace → reason → rows that the query log lost, from the query server's metrics."""
    found: dict[str, dict[str, int]] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            outcome = sample.labels.get("outcome")
            if sample.name != "fennel_query_log_rows_total" or outcome == "written":
                continue
            if sample.value:
                of_workspace = found.setdefault(sample.labels["workspace"], {})
                of_workspace[str(outcome)] = int(sample.value)
    return found


def print_lost_rows(lost: Mapping[str, Mapping[str, int]] | None) -> None:
    """Print one line per workspace whose query log lacks rows."""
    for workspace, reasons in sorted((lost or {}).items()):
        counts = ", ".join(f"{rows} {reason}" for reason, rows in sorted(reasons.items()))
        _console().print(
            f"The query log of {workspace} lost rows since the query server started: {counts}.",
            style="red",
            highlight=False,
        )


def print_sinks(sinks: Sequence[AlarmRow] | None) -> None:
    """Print how many sinks are written, how far those with a backlog are behind, whose orders are
    not carried out yet, and why others are not written; at most `MAX_ROWS` of each.
    """
    broken = [row for row in sinks or () if _is_broken(row)]
    if sinks:
        paused = sum(row["paused"] for row in sinks)
        written = len(sinks) - len(broken) - paused
        _console().print(f"\nSinks: {written} written, {len(broken)} broken, {paused} paused")
        _console().print(_listed(sinks, ("sink", "workspace", "dataset", "events", "behind")))
    behind = sorted((row for row in sinks or () if row["behind"]), key=_by_backlog)
    for row in behind[:MAX_ROWS]:
        _console().print(
            f"Sink {row['sink']} of {row['workspace']} is {row['behind']} messages behind "
            f"{row['dataset']}",
            highlight=False,
            markup=False,
        )
    ordered = [row for row in sinks or () if row.get("rewinding") or row.get("replays")]
    for row in ordered[:MAX_ROWS]:
        orders = ["a rewind"] if row.get("rewinding") else []
        orders += [f"{row['replays']} dead letters to send again"] if row.get("replays") else []
        _console().print(
            f"Sink {row['sink']} of {row['workspace']} has orders that are not carried out yet: "
            f"{', '.join(orders)}",
            highlight=False,
            markup=False,
        )
    for row in broken[:MAX_ROWS]:
        _console().print(
            f"Sink {row['sink']} of {row['workspace']} cannot be written ({row['failures']} "
            f"attempts): {row['reason']}{_remedy(row)}",
            style="red",
            highlight=False,
            markup=False,
        )


def _remedy(row: AlarmRow) -> str:
    """Return what to do about a broken stream or sink, as the end of its line."""
    return f" ({row['remedy']})" if row.get("remedy") else ""


def print_sources(sources: Sequence[AlarmRow] | None) -> None:
    """Print how many streams are read, how far those with a backlog are behind, which are late,
    paused or have ended, and why others are not read; at most `MAX_ROWS` of each.
    """
    broken = [row for row in sources or () if _is_broken(row)]
    paused = [row for row in sources or () if row["paused"]]
    ended = [row for row in sources or () if row["ended"]]
    if sources:
        read = len(sources) - len(broken) - len(paused) - len(ended)
        over = f", {len(ended)} ended" if ended else ""
        _console().print(
            f"\nStreams: {read} read, {len(broken)} broken, {len(paused)} paused{over}"
        )
        _console().print(_listed(sources, ("source", "workspace", "rows", "behind")))
    behind = sorted((row for row in sources or () if row["behind"]), key=_by_backlog)
    for row in behind[:MAX_ROWS]:
        _console().print(
            f"Stream {row['source']} of {row['workspace']} is {row['behind']} messages behind"
            f"{_limit_of(row)}",
            highlight=False,
            markup=False,
        )
    late = sorted((row for row in sources or () if row.get("behind_ms")), key=_by_time)
    for row in late[:MAX_ROWS]:
        _console().print(
            f"Stream {row['source']} of {row['workspace']} is {row['behind_ms'] / 1000:.1f} s "
            f"behind{_limit_of(row)}",
            highlight=False,
            markup=False,
        )
    for row in [row for row in sources or () if _retained_mib(row) >= RETAINED_MIB][:MAX_ROWS]:
        _console().print(
            f"Stream {row['source']} of {row['workspace']}: its database keeps "
            f"{_retained_mib(row):,} MiB of log for it",
            highlight=False,
            markup=False,
        )
    for row in [row for row in sources or () if row["stale_s"] is not None][:MAX_ROWS]:
        _console().print(
            f"Stream {row['source']} of {row['workspace']} was not read to its end for "
            f"{row['stale_s']:.0f} s{_limit_of(row)}",
            style="red",
            highlight=False,
            markup=False,
        )
    for row in paused[:MAX_ROWS]:
        _console().print(
            f"Stream {row['source']} of {row['workspace']} is paused",
            highlight=False,
            markup=False,
        )
    for row in ended[:MAX_ROWS]:
        _console().print(
            f"Stream {row['source']} of {row['workspace']} has ended: nothing came for its "
            "idleness",
            highlight=False,
            markup=False,
        )
    _print_reasons(sources or ())


def _print_reasons(sources: Sequence[AlarmRow]) -> None:
    """Print why streams are broken, or what is wrong with tables that are read nevertheless."""
    late = [row for row in sources if row["reason"] is not None and not _is_broken(row)]
    broken = [row for row in sources if _is_broken(row)]
    for row in (*late[:MAX_ROWS], *broken[:MAX_ROWS]):
        failed = f" cannot be read ({row['failures']} attempts)" if _is_broken(row) else ""
        _console().print(
            f"Stream {row['source']} of {row['workspace']}{failed}: {row['reason']}{_remedy(row)}",
            style="red",
            highlight=False,
            markup=False,
        )


def _listed(rows: Sequence[AlarmRow], columns: Sequence[str]) -> Table:
    """Return streams or sinks with rows, lag, state and failures: the first `MAX_ROWS`, of which
    the broken ones are first.
    """
    table = Table(box=None, pad_edge=False)
    for name in (*columns, "state", "failures"):
        title = {"events": "changes written"}.get(name, name)
        table.add_column(title, justify="right" if name in NUMBERS else "left", no_wrap=True)
    for row in rows[:MAX_ROWS]:
        shown = {**row, "state": _state(row), "behind": _lag(row)}
        values = [shown[name] for name in (*columns, "state", "failures")]
        table.add_row(*("?" if value is None else escape(str(value)) for value in values))
    return table


def _state(row: AlarmRow) -> str:
    """Return the state of a stream or sink, in the words of the line above the table."""
    if row["paused"]:
        return "paused"
    if row.get("ended"):
        return "ended"
    return "broken" if _is_broken(row) else "running"


def _is_broken(row: AlarmRow) -> bool:
    """Return whether a stream or sink has failed; a table may be late, or lack rows, without."""
    return row["reason"] is not None and row["failures"] > 0


def _lag(row: AlarmRow) -> str | None:
    """Return how far a stream or sink is behind, None if that is not known."""
    if row.get("behind_ms") is not None:
        return f"{row['behind_ms'] / 1000:.1f} s"
    if row.get("unread_s") is not None:
        return f"read {row['unread_s']:.0f} s ago"
    return None if row["behind"] is None else str(row["behind"])


def _limit_of(row: AlarmRow) -> str:
    """Return the limit of a stream, as the end of its line."""
    limit = row["rows_per_s"]
    return "" if limit is None else f", limited to {limit:g} rows per second"


def _retained_mib(row: AlarmRow) -> int:
    return int(row.get("retained_bytes") or 0) // 2**20


def _by_time(row: AlarmRow) -> int:
    return -int(row["behind_ms"])


def _by_backlog(row: AlarmRow) -> int:
    return -int(row["behind"])


def print_executors(report: ExecutorReport | None) -> None:
    """Print the layers that confine user code on this machine."""
    if report is None:
        return  # The table of services says that the executors do not respond.
    console = _console()
    console.print()
    active = [layer.name for layer in report.layers if layer.active]
    console.print(
        f"User code: {report.running} calls running, {report.waiting} waiting, "
        f"{report.workers} processes; confined by {', '.join(active)}",
        highlight=False,
    )
    for layer in report.layers:
        if not layer.active:
            console.print(
                f"  without {layer.name}: {layer.detail}", style="yellow", highlight=False
            )
