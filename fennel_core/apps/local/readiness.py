"""Readiness checks of services: each kind of check is a value, and one function performs it.

An open port proves little (a JVM listens before it serves), so a check uses the service's own
protocol where it has one.
"""

import http.client
import json
import socket
import ssl
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, assert_never, get_args
from urllib.parse import urlsplit

CHECK_TIMEOUT_S: Final = 2.0
"""How long one check may take, s; checks are repeated often."""
BEATS_MISSED: Final = 5
"""A heartbeat file is stale after this many intervals and one check timeout."""


@dataclass(frozen=True, slots=True)
class HttpOk:
    """Ready when GET returns 200."""

    url: str


@dataclass(frozen=True, slots=True)
class HttpResponds:
    """Ready when GET returns any HTTP status: a server that requires credentials refuses it."""

    url: str


@dataclass(frozen=True, slots=True)
class SocketAccepts:
    """Ready when a Unix socket accepts a connection."""

    path: Path


@dataclass(frozen=True, slots=True)
class PostgresResponds:
    """Ready when `SELECT 1` succeeds. The connection string is secret and never in a message."""

    dsn: str

    def __repr__(self) -> str:
        return "PostgresResponds()"


@dataclass(frozen=True, slots=True)
class KafkaResponds:
    """Ready when the broker lists its topics."""

    bootstrap: str


@dataclass(frozen=True, slots=True)
class AirflowHeartbeat:
    """Ready when Airflow's health page shows a heartbeat of the component.

    For the scheduler and the dag-processor, which have no port. The page calls a component healthy
    for half a minute after its last heartbeat, so only one since the process started counts.
    """

    url: str
    component: str


@dataclass(frozen=True, slots=True)
class HeartbeatFile:
    """Ready when the service keeps updating the modification time of a file."""

    path: Path
    every_s: float


ReadinessCheck = (
    HeartbeatFile
    | HttpOk
    | HttpResponds
    | SocketAccepts
    | PostgresResponds
    | KafkaResponds
    | AirflowHeartbeat
)


def to_json(check: ReadinessCheck) -> str:
    """Serialise a check for a process that performs it later without the service table.

    The text contains the connection string of a `PostgresResponds`: keep it private.
    """
    return json.dumps({"kind": type(check).__name__, **asdict(check)}, default=str)


def from_json(text: str) -> ReadinessCheck:
    """Return the check that `to_json` wrote; raises KeyError or TypeError for any other text."""
    values: dict[str, Any] = json.loads(text)
    if "path" in values:
        values["path"] = Path(values["path"])
    kinds = {kind.__name__: kind for kind in get_args(ReadinessCheck)}
    check: ReadinessCheck = kinds[values.pop("kind")](**values)
    return check


def check_readiness(check: ReadinessCheck, began: datetime) -> str | None:
    """Return None if the service is ready, else the problem in a few words.

    Takes seconds at most and raises nothing. `began`: start time of the service's process.
    """
    match check:
        case HeartbeatFile(path, every_s):
            return _check_heartbeat_file(path, every_s, began)
        case HttpOk(url):
            status, _ = _get(url)
            return None if status == 200 else f"{url} returned {status or 'no response'}"
        case HttpResponds(url):
            status, _ = _get(url)
            return None if status is not None else f"{url} returned no response"
        case SocketAccepts(path):
            return _check_socket(path)
        case PostgresResponds(dsn):
            return _check_postgres(dsn)
        case KafkaResponds(bootstrap):
            return _check_kafka(bootstrap)
        case AirflowHeartbeat(url, component):
            return _check_airflow(url, component, began)
        case unexpected:
            assert_never(unexpected)


def _check_heartbeat_file(path: Path, every_s: float, began: datetime) -> str | None:
    try:
        beat_s = path.stat().st_mtime
    except FileNotFoundError:
        return "it has not started working yet"
    late_s = time.time() - beat_s
    if beat_s < began.timestamp():
        return "it has not started working yet"
    if late_s < BEATS_MISSED * every_s + CHECK_TIMEOUT_S:
        return None
    return f"its last heartbeat was {late_s:.0f} s ago"


def _get(url: str) -> tuple[int | None, bytes]:
    """Return status and body; the status is None where no HTTP response arrives.

    Uses http.client because importing httpx costs half a second of processor time, which a
    container's health check would pay every ten seconds.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None, url
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        # The certificate names the public address, and a check sends and trusts nothing.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=CHECK_TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=CHECK_TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None, b""
    finally:
        connection.close()


def _check_socket(path: Path) -> str | None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CHECK_TIMEOUT_S)
        try:
            connection.connect(str(path))
        except OSError as error:
            return f"{path.name}: {error.strerror or error}"
    return None


def _check_postgres(dsn: str) -> str | None:
    import psycopg

    try:
        with psycopg.connect(dsn, connect_timeout=int(CHECK_TIMEOUT_S)) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return str(error).strip().splitlines()[-1]
    return None


def _check_kafka(bootstrap: str) -> str | None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    host, _, port = bootstrap.rpartition(":")
    try:
        # Fails at once on a closed port, for which librdkafka would use up its whole timeout.
        socket.create_connection((host, int(port)), timeout=CHECK_TIMEOUT_S).close()
        client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        client.list_topics(timeout=CHECK_TIMEOUT_S)
    except OSError as error:
        return error.strerror or str(error)
    except KafkaException as error:
        return str(error)
    return None


def _check_airflow(url: str, component: str, began: datetime) -> str | None:
    status, body = _get(f"{url}/api/v2/monitor/health")
    if status != 200:
        return f"the api-server returned {status or 'no response'}"
    report = json.loads(body).get(component, {})
    beat = report.get(f"latest_{component}_heartbeat")
    if beat is None or datetime.fromisoformat(beat) < began:
        return f"the {component} has not reported since it started"
    if report.get("status") == "healthy":
        return None
    return f"Airflow reports the {component} as {report.get('status')}"
