"""When is a part ready? Each kind of answer is a value; asking is one function.

A port that is open proves little (a JVM listens before it serves), so where a part speaks a
protocol the check speaks it too.
"""

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, assert_never, get_args

ASK_S: Final = 2.0
"""How long one question may take, s; it is asked again soon."""


@dataclass(frozen=True, slots=True)
class HttpOk:
    """GET answers 200."""

    url: str


@dataclass(frozen=True, slots=True)
class HttpResponds:
    """GET answers anything in HTTP: for a server that refuses strangers, a refusal is health."""

    url: str


@dataclass(frozen=True, slots=True)
class SocketAccepts:
    """A Unix socket accepts."""

    path: Path


@dataclass(frozen=True, slots=True)
class PostgresResponds:
    """`SELECT 1` answers; the connection string is secret and never part of an answer."""

    dsn: str

    def __repr__(self) -> str:
        return "PostgresAnswers()"


@dataclass(frozen=True, slots=True)
class KafkaResponds:
    """The broker lists its topics."""

    bootstrap: str


@dataclass(frozen=True, slots=True)
class AirflowHeartbeat:
    """Airflow's health page tells of a component's heart: the scheduler and the dag-processor have
    no port of their own.

    The page calls a component healthy for half a minute after its last beat, so only a beat since
    its process began counts.
    """

    url: str
    component: str


@dataclass(frozen=True, slots=True)
class HeartbeatFile:
    """It touches a file again and again."""

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


def to_json(health: ReadinessCheck) -> str:
    """For who asks later and elsewhere, without making the process table again. Secret where the
    question is.
    """
    return json.dumps({"kind": type(health).__name__, **asdict(health)}, default=str)


def from_json(text: str) -> ReadinessCheck:
    """What `to_json` wrote. Raises KeyError or TypeError for anything else."""
    values: dict[str, Any] = json.loads(text)
    if "path" in values:
        values["path"] = Path(values["path"])
    kinds = {kind.__name__: kind for kind in get_args(ReadinessCheck)}
    health: ReadinessCheck = kinds[values.pop("kind")](**values)
    return health


def check_readiness(health: ReadinessCheck, began: datetime) -> str | None:
    """None if healthy, else what is wrong in a few words. `began`: start of the process. Waits
    seconds at most; raises nothing.
    """
    match health:
        case HeartbeatFile(path, every_s):
            return _ask_beat(path, every_s, began)
        case HttpOk(url):
            status, _ = _get(url)
            return None if status == 200 else f"{url} answers {status or 'nothing'}"
        case HttpResponds(url):
            status, _ = _get(url)
            return None if status is not None else f"{url} answers nothing"
        case SocketAccepts(path):
            return _ask_socket(path)
        case PostgresResponds(dsn):
            return _ask_postgres(dsn)
        case KafkaResponds(bootstrap):
            return _ask_kafka(bootstrap)
        case AirflowHeartbeat(url, component):
            return _ask_airflow(url, component, began)
        case unexpected:
            assert_never(unexpected)


def _ask_beat(path: Path, every_s: float, began: datetime) -> str | None:
    try:
        beat_s = path.stat().st_mtime
    except FileNotFoundError:
        return "it has not begun to work"
    late_s = time.time() - beat_s
    if beat_s < began.timestamp():
        return "it has not begun to work"
    return None if late_s < 5 * every_s + ASK_S else f"it has done nothing for {late_s:.0f} s"


def _get(url: str) -> tuple[int | None, bytes]:
    """Status and body; None where nothing speaks HTTP."""
    assert url.startswith("http://")
    try:
        with urllib.request.urlopen(url, timeout=ASK_S) as answer:  # noqa: S310  # the scheme is asserted above
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except (OSError, http.client.HTTPException):
        return None, b""


def _ask_socket(path: Path) -> str | None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ASK_S)
        try:
            connection.connect(str(path))
        except OSError as error:
            return f"{path.name}: {error.strerror or error}"
    return None


def _ask_postgres(dsn: str) -> str | None:
    import psycopg

    try:
        with psycopg.connect(dsn, connect_timeout=int(ASK_S)) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return str(error).strip().splitlines()[-1]
    return None


def _ask_kafka(bootstrap: str) -> str | None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection(
            (host, int(port)), timeout=ASK_S
        ).close()  # librdkafka waits out its timeout on a closed port
        AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=ASK_S)
    except OSError as error:
        return error.strerror or str(error)
    except KafkaException as error:
        return str(error)
    return None


def _ask_airflow(url: str, component: str, began: datetime) -> str | None:
    status, body = _get(f"{url}/api/v2/monitor/health")
    if status != 200:
        return f"the api-server answers {status or 'nothing'}"
    said = json.loads(body).get(component, {})
    beat = said.get(f"latest_{component}_heartbeat")
    if beat is None or datetime.fromisoformat(beat) < began:
        return f"the {component} has not reported since it started"
    return (
        None
        if said.get("status") == "healthy"
        else f"Airflow calls its {component} {said.get('status')}"
    )
