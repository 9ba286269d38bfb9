"""The process table: every part of the platform as a row of data.

A row says what to run, with which environment, how to know that it is ready, what it needs, and
which variable moves its port. The functions here only build values; what must happen before or
after a start is named by a `Step` and carried out by `steps.py`.
"""

import hashlib
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fennel_core.apps.local import airflow, kafka, postgres, s3
from fennel_core.apps.local.health import (
    AirflowReports,
    Beats,
    Health,
    HttpAnswers,
    HttpSpeaks,
    KafkaAnswers,
    PostgresAnswers,
    SocketAnswers,
)
from fennel_core.apps.local.steps import Machine, Step
from fennel_core.executors import launch as executor_host
from fennel_core.settings.model import ENV_PREFIX, Orchestrator, Settings

INFRA: Final = "infra"
FENNEL: Final = "fennel"
WATCH: Final = "watch"


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port a part listens on, and the variable that moves it."""

    number: int
    variable: str


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the platform. `ready_s`: how long it may take until its health check passes,
    s.
    """

    name: str
    title: str
    group: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    health: Health
    ports: tuple[Port, ...] = ()
    needs: tuple[str, ...] = ()
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    stop_signal: signal.Signals = signal.SIGTERM
    ready_s: float = 120.0

    @property
    def port(self) -> int | None:
        """The port people know it by."""
        return self.ports[0].number if self.ports else None

    @property
    def digest(self) -> str:
        """Changes when the part would be started differently. Some read their ports from a file
        that is written at each start.
        """
        text = json.dumps(
            [self.command, sorted(self.env.items()), [port.number for port in self.ports]]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def process_env(settings: Settings) -> dict[str, str]:
    """The settings as `FENNEL_*` variables: what every process of ours is started with."""
    values = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if value is None:
            continue
        plain = value.get_secret_value() if hasattr(value, "get_secret_value") else value
        values[f"{ENV_PREFIX}{name.upper()}"] = str(
            plain.value if isinstance(plain, StrEnum) else plain
        )
    return values


def table(machine: Machine) -> tuple[Part, ...]:
    """Every part this machine shall run, in an order in which each comes after what it needs."""
    rows = [*_stores(machine)]
    if machine.settings.orchestrator is Orchestrator.AIRFLOW:
        rows += _airflow(machine)
    return (*rows, *_servers(machine), _watch(machine))


def _watch(machine: Machine) -> Part:
    """Its environment is all that a part may depend on, so that it starts parts exactly as `up`
    does.
    """
    return Part(
        name=WATCH,
        title="Watch (restarts)",
        group=WATCH,
        command=(sys.executable, "-m", "fennel_core.apps.local.watch"),
        env=MappingProxyType(
            {**process_env(machine.settings), "PYTHONPATH": str(machine.layout.root)}
        ),
        health=Beats(machine.layout.run / "watch.beat", every_s=1.0),
    )


def _stores(machine: Machine) -> tuple[Part, ...]:
    settings, layout, keys, host = machine.settings, machine.layout, machine.keys, machine.host
    return (
        Part(
            name="postgres",
            title="Postgres",
            group=INFRA,
            command=postgres.command(settings, layout, host),
            env=MappingProxyType({}),
            health=PostgresAnswers(postgres.dsn(settings, keys, "postgres")),
            ports=(Port(settings.postgres_port, "FENNEL_POSTGRES_PORT"),),
            before=(Step.MAKE_POSTGRES_CLUSTER,),
            after=(Step.MAKE_DATABASES,),
            # "fast": roll back and end, instead of waiting for every client to leave
            stop_signal=signal.SIGINT,
        ),
        Part(
            name="kafka",
            title="Kafka",
            group=INFRA,
            command=kafka.command(layout, host),
            env=MappingProxyType({}),
            health=KafkaAnswers(settings.kafka_bootstrap),
            ports=(
                Port(settings.kafka_port, "FENNEL_KAFKA_PORT"),
                Port(settings.kafka_controller_port, "FENNEL_KAFKA_CONTROLLER_PORT"),
            ),
            before=(Step.FORMAT_KAFKA,),
        ),
        Part(
            name="s3",
            title="S3",
            group=INFRA,
            command=s3.command(layout, host),
            env=MappingProxyType({}),
            health=HttpSpeaks(settings.s3_endpoint),
            ports=(Port(settings.s3_port, "FENNEL_S3_PORT"),),
            before=(Step.CONFIGURE_S3,),
            after=(Step.MAKE_BUCKET,),
        ),
    )


def _airflow(machine: Machine) -> tuple[Part, ...]:
    settings, layout, keys = machine.settings, machine.layout, machine.keys
    env = MappingProxyType({**process_env(settings), **airflow.env(settings, layout, keys)})
    program = (sys.executable, "-m", "airflow")
    return (
        Part(
            name="airflow-api",
            title="Airflow api-server",
            group=INFRA,
            command=(*program, "api-server"),
            env=env,
            health=HttpAnswers(f"{settings.airflow_url}/api/v2/version"),
            ports=(Port(settings.airflow_port, "FENNEL_AIRFLOW_PORT"),),
            needs=("postgres",),
            before=(Step.MIGRATE_AIRFLOW,),
            after=(Step.WARM_AIRFLOW,),
            ready_s=180,
        ),
        Part(
            name="airflow-scheduler",
            title="Airflow scheduler",
            group=INFRA,
            # Its log server would listen on every address; the api-server reads the log files
            # themselves.
            command=(*program, "scheduler", "--skip-serve-logs"),
            env=env,
            health=AirflowReports(settings.airflow_url, "scheduler"),
            needs=("postgres",),
            before=(Step.MIGRATE_AIRFLOW,),
            ready_s=180,
        ),
        Part(
            name="airflow-dags",
            title="Airflow dag-processor",
            group=INFRA,
            command=(*program, "dag-processor"),
            env=env,
            health=AirflowReports(settings.airflow_url, "dag_processor"),
            needs=("postgres",),
            before=(Step.MIGRATE_AIRFLOW,),
            ready_s=180,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Server:
    """A server of ours, before it becomes a row."""

    name: str
    title: str
    port: int
    needs: tuple[str, ...] = field(default=("postgres", "kafka", "s3"))
    ready_s: float = 120.0


def _servers(machine: Machine) -> tuple[Part, ...]:
    settings, layout = machine.settings, machine.layout
    env = MappingProxyType({**process_env(settings), "PYTHONPATH": str(layout.root)})
    servers = (
        _Server("definition", "Definition server", settings.definition_port),
        _Server("ingest", "Ingest server", settings.ingest_port),
        _Server("engine", "Engine (Spark)", settings.engine_port, ready_s=180),
        _Server("query", "Query server (API)", settings.query_port, needs=("postgres",)),
        *(
            (_Server("history", "History writer", settings.history_port),)
            if settings.history
            else ()
        ),
    )
    rows = [
        Part(
            name=server.name,
            title=server.title,
            group=FENNEL,
            command=(sys.executable, "-m", f"fennel_core.apps.{server.name}"),
            env=env,
            health=HttpAnswers(f"http://{settings.own_address}:{server.port}/readyz"),
            ports=(Port(server.port, f"FENNEL_{server.name.upper()}_PORT"),),
            needs=server.needs,
            ready_s=server.ready_s,
        )
        for server in servers
    ]
    executors = Part(
        name="executors",
        title="Python executors",
        group=FENNEL,
        command=tuple(executor_host.command(settings)),
        env=MappingProxyType(executor_host.environment(settings, {})),
        health=SocketAnswers(settings.executors_socket),
    )
    return (*rows, executors)
