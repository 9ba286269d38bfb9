"""What `fennel-core status` asks the servers, with the administrator's token.

A server that does not respond leaves its part of the answer out: the table of services says why.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx

from fennel_core.apps.local.status_tables import history_by_topic, parse_lost_rows
from fennel_core.executors.errors import ExecutorError
from fennel_core.executors.report import ExecutorReport, ask
from fennel_core.settings.model import Settings

TIMEOUT_S: Final = 5.0
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StatusAnswers:
    """The lists of the servers' responses; None without a response.

    `history`: files, rows, lag and waiting time of each topic with history.
    """

    workspaces: Rows | None
    partitions: Rows | None
    warming: Rows | None
    history: dict[str, dict[str, Any]] | None
    erasures: Rows | None
    """What history may still have of the erased keys of datasets, by topic."""
    held_rows: Rows | None
    """Workspaces that keep rows older than `history`, and why."""
    retained: Rows | None
    alarms: Rows | None
    drills: Rows | None
    integrity: Rows | None
    failing: Rows | None
    dead_letters: Rows | None
    executors: ExecutorReport | None
    sources: Rows | None
    """The streams that are read: workspace, source, failures in a row and in all, messages behind,
    and the reason if it is broken.
    """
    sinks: Rows | None
    """The sinks: workspace, dataset, sink, failures in a row, events written, messages behind, and
    the reason if it is broken.
    """
    lost_rows: dict[str, dict[str, int]] | None
    """Rows that the query log lost since the query server started, by workspace and reason."""


def read(settings: Settings) -> StatusAnswers:
    """Ask every server for its part of the status."""
    operations = f"{settings.definition_url}/api/v1/operations"
    return StatusAnswers(
        workspaces=_rows(settings, f"{settings.definition_url}/api/v1/workspaces", "workspaces"),
        partitions=_rows(settings, f"{settings.query_url}/status", "job_partitions"),
        warming=_rows(settings, f"{settings.query_url}/status", "warming"),
        history=_history(settings),
        erasures=_report(settings, settings.history_port, "erasures"),
        held_rows=_report(settings, settings.history_port, "held_rows"),
        retained=_rows(settings, f"{operations}/retained", "retained"),
        alarms=_rows(settings, f"{operations}/needed", "alarms"),
        drills=_rows(settings, f"{operations}/drills", "drills"),
        integrity=_rows(settings, f"{operations}/integrity", "differing"),
        failing=_rows(settings, f"{operations}/reconcile", "failing"),
        dead_letters=_rows(settings, f"{operations}/dead_letters", "dead_letters"),
        executors=_executors(settings),
        sources=_report(settings, settings.sources_port, "sources"),
        sinks=_report(settings, settings.sources_port, "sinks"),
        lost_rows=_metrics(settings, settings.query_metrics_port, parse_lost_rows),
    )


def _history(settings: Settings) -> dict[str, dict[str, Any]] | None:
    rows = _report(settings, settings.history_port, "topics")
    return None if rows is None else history_by_topic(rows)


def _executors(settings: Settings) -> ExecutorReport | None:
    try:
        return ask(settings.executors_socket)
    except (OSError, ExecutorError):
        return None


def admin_headers(settings: Settings) -> dict[str, str]:
    """Return the headers of a request of the administrator."""
    return {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}


def _rows(settings: Settings, url: str, name: str) -> Rows | None:
    try:
        response = httpx.get(
            url,
            headers=admin_headers(settings),
            timeout=TIMEOUT_S,
            trust_env=False,
            verify=_own_certificate(settings),
        )
        rows: Rows = response.raise_for_status().json()[name]
    except (httpx.HTTPError, json.JSONDecodeError, KeyError):
        return None
    return rows


def _own_certificate(settings: Settings) -> ssl.SSLContext | bool:
    """Return a context that trusts the certificate of the API's port and no other.

    It names the public address, and these requests go to the address of this machine.
    """
    if settings.tls_certificate is None:
        return True
    context = ssl.create_default_context(cafile=str(settings.tls_certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _metrics(
    settings: Settings, port: int, parse: Callable[[str], dict[str, dict[str, int]]]
) -> dict[str, dict[str, int]] | None:
    try:
        return parse(_page(settings, port, "metrics").text)
    except (httpx.HTTPError, ValueError):
        return None


def _report(settings: Settings, port: int, path: str) -> Rows | None:
    try:
        rows: Rows = _page(settings, port, path).json()
    except (httpx.HTTPError, json.JSONDecodeError):
        return None
    return rows


def _page(settings: Settings, port: int, path: str) -> httpx.Response:
    url = f"http://{settings.own_address}:{port}/{path}"
    return httpx.get(url, timeout=TIMEOUT_S, trust_env=False).raise_for_status()
