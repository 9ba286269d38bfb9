"""The service table: every service of the platform as one row of plain data.

A row holds command, environment, readiness check, dependencies, and ports with the variables that
set them. The functions here only build values; work before or after a start is named by a
`SetupStep` and done by `setup_steps.py`.
"""

import hashlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fennel_core.apps.local import airflow, kafka, kafka_users, postgres, s3
from fennel_core.apps.local.platform_keys import KEY_NAMES
from fennel_core.apps.local.readiness import (
    AirflowHeartbeat,
    HeartbeatFile,
    HttpOk,
    HttpResponds,
    KafkaResponds,
    PostgresResponds,
    ReadinessCheck,
    SocketAccepts,
)
from fennel_core.apps.local.setup_steps import PlatformContext, SetupStep
from fennel_core.executors import launch as executor_host
from fennel_core.settings.model import ENV_PREFIX, Orchestrator, Settings

INFRA: Final = "infra"
FENNEL: Final = "fennel"
WATCHDOG: Final = "watchdog"
PRIVATE: Final = 0o077
"""Umask of services: what they write, only their owner may read."""
READABLE: Final = 0o022
ENGINE_PORT_STEP: Final = 20


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port that a service listens on, and the variable that sets it."""

    number: int
    variable: str
    host: str
    """The address that the service binds it on."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the platform.

    `needs`: names of services that must be ready before it starts. `ready_s`: how long it may take
    to become ready, s.
    """

    name: str
    title: str
    group: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    readiness: ReadinessCheck
    ports: tuple[Port, ...] = ()
    needs: tuple[str, ...] = ()
    before: tuple[SetupStep, ...] = ()
    after: tuple[SetupStep, ...] = ()
    stop_signal: signal.Signals = signal.SIGTERM
    ready_s: float = 120.0
    umask: int = PRIVATE

    @property
    def port(self) -> int | None:
        """The service's main port, or None."""
        return self.ports[0].number if self.ports else None

    @property
    def digest(self) -> str:
        """Hash of command, environment and ports; it changes when the service must be restarted.

        Ports count separately: some services read them from a file written at each start.
        """
        text = json.dumps(
            [self.command, sorted(self.env.items()), [port.number for port in self.ports]]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


SECRET_SETTINGS: Final = frozenset(
    {
        *("postgres_dsn", "s3_secret_key", "airflow_password", "admin_token", "kafka_password"),
        "secrets_key_file",
    }
)
"""Passwords and tokens, and where the key of users' secrets is."""
_DATABASE_AND_KAFKA: Final = frozenset({"postgres_dsn", "kafka_password"})
SECRETS_OF: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "definition": SECRET_SETTINGS - {"admin_token"},
        "ingest": _DATABASE_AND_KAFKA | {"secrets_key_file"},
        "engine": _DATABASE_AND_KAFKA | {"secrets_key_file", "s3_secret_key"},
        "query": _DATABASE_AND_KAFKA | {"secrets_key_file"},
        "history": _DATABASE_AND_KAFKA | {"s3_secret_key"},
        # Its sinks begin with history.
        "sources": _DATABASE_AND_KAFKA | {"secrets_key_file", "s3_secret_key"},
        # Its page reads the database.
        "airflow-api": frozenset({"postgres_dsn"}),
        # Runs the tasks: commits, snapshots, and the reconciliation, which asks Airflow for runs.
        "airflow-scheduler": SECRET_SETTINGS - {"admin_token"},
        # Parses DAG files, which read no secret.
        "airflow-dags": frozenset(),
        # Reads key files and passwords of Kafka's users itself, as `up` does.
        WATCHDOG: frozenset(),
    }
)
"""The secrets of each service. The administrator's token is none of them: servers know its digest.
"""

_KEY_OF_SETTING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgres_dsn": "postgres_password",
        "s3_secret_key": "s3_secret_key",
        "airflow_password": "airflow_password",
        "admin_token": "admin_token",
        "secrets_key_file": "users_secrets_key",
    }
)
"""The key (`PlatformKeys`) from which `local_settings` derives a setting."""
_AIRFLOW_KEYS: Final = frozenset(name for name in KEY_NAMES if name.startswith("airflow_"))
_OWN_KEYS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "postgres": frozenset({"postgres_password"}),
        "kafka": frozenset({"kafka_cluster_id"}),
        "s3": frozenset({"s3_secret_key"}),
        "airflow-api": _AIRFLOW_KEYS,
        "airflow-scheduler": _AIRFLOW_KEYS,
        "airflow-dags": _AIRFLOW_KEYS,
    }
)
"""Keys of a service beside those of its settings: a store's own, and Airflow's configuration."""
WITH_KEYS: Final = frozenset({*SECRETS_OF, *_OWN_KEYS} - {WATCHDOG})
"""The services that get keys in a container; the executors get none."""


def keys_of(service: str) -> frozenset[str]:
    """Return the names of the keys (`PlatformKeys`) that a service needs in its container."""
    derived = SECRETS_OF.get(service, frozenset()) & _KEY_OF_SETTING.keys()
    return _OWN_KEYS.get(service, frozenset()) | {_KEY_OF_SETTING[name] for name in derived}


def process_env(settings: Settings, secrets: frozenset[str] = SECRET_SETTINGS) -> dict[str, str]:
    """Return the settings as `FENNEL_*` variables, the environment of a fennel-core process.

    `secrets`: those of `SECRET_SETTINGS` that the process needs.
    """
    if "admin_token" not in secrets and (digest := settings.admin_digest) is not None:
        settings = settings.model_copy(update={"admin_token_sha256": digest.hex()})
    values = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if value is None or (name in SECRET_SETTINGS and name not in secrets):
            continue
        plain = value.get_secret_value() if hasattr(value, "get_secret_value") else value
        if isinstance(plain, tuple):
            plain = json.dumps(plain)
        values[f"{ENV_PREFIX}{name.upper()}"] = str(
            plain.value if isinstance(plain, StrEnum) else plain
        )
    return values


def _service_env(settings: Settings, service: str) -> dict[str, str]:
    """Return the settings with the secrets that a service needs, and with its own Kafka user."""
    return process_env(kafka_users.settings_of(service, settings), SECRETS_OF[service])


def service_table(context: PlatformContext) -> tuple[Service, ...]:
    """Return every service of this platform; each row comes after the rows it needs."""
    rows = [*_stores(context)]
    if context.settings.orchestrator is Orchestrator.AIRFLOW:
        rows += _airflow(context)
    rows += _servers(context)
    return (*rows, _watchdog(context, rows))


def _watchdog(context: PlatformContext, others: Sequence[Service]) -> Service:
    """Return the watchdog, with all settings, so that it starts services exactly as `up` does.

    It reads passwords from their files when it starts, as `up` does. So it is started again when
    the row of another service has changed: else it would restart that service with the former.
    """
    rows = hashlib.sha256("".join(row.digest for row in others).encode()).hexdigest()
    return Service(
        name=WATCHDOG,
        title="Watchdog (restarts)",
        group=WATCHDOG,
        command=(sys.executable, "-m", "fennel_core.apps.local.watchdog"),
        env=MappingProxyType(
            {
                **_service_env(context.settings, WATCHDOG),
                "PYTHONPATH": str(context.layout.root),
                "WATCHED_ROWS": rows,
            }
        ),
        readiness=HeartbeatFile(context.layout.run / "watchdog.beat", every_s=1.0),
    )


def _stores(context: PlatformContext) -> tuple[Service, ...]:
    settings, layout, keys, host = context.settings, context.layout, context.keys, context.host
    broker = Service(
        name="kafka",
        title="Kafka",
        group=INFRA,
        command=kafka.command(layout, host),
        env=MappingProxyType({}),
        readiness=KafkaResponds(settings.kafka_bootstrap),
        ports=(
            Port(settings.kafka_port, "FENNEL_KAFKA_PORT", kafka.bind_address(settings)),
            Port(
                settings.kafka_controller_port,
                "FENNEL_KAFKA_CONTROLLER_PORT",
                kafka.CONTROLLER_HOST,
            ),
        ),
        before=(SetupStep.FORMAT_KAFKA,),
    )
    return (
        Service(
            name="postgres",
            title="Postgres",
            group=INFRA,
            command=postgres.command(settings, layout, host),
            env=MappingProxyType({}),
            readiness=PostgresResponds(postgres.dsn(settings, keys, "postgres")),
            ports=(Port(settings.postgres_port, "FENNEL_POSTGRES_PORT", settings.host),),
            before=(SetupStep.MAKE_POSTGRES_CLUSTER,),
            after=(SetupStep.MAKE_DATABASES,),
            # Postgres' "fast" shutdown: roll back instead of waiting for clients to disconnect.
            stop_signal=signal.SIGINT,
        ),
        *(() if settings.kafka_passwords_dir is not None else (broker,)),
        Service(
            name="s3",
            title="S3",
            group=INFRA,
            command=s3.command(layout, host),
            env=MappingProxyType({}),
            readiness=HttpResponds(settings.s3_endpoint),
            ports=(Port(settings.s3_port, "FENNEL_S3_PORT", settings.host),),
            before=(SetupStep.CONFIGURE_S3,),
            after=(SetupStep.MAKE_BUCKET,),
        ),
    )


def _airflow(context: PlatformContext) -> tuple[Service, ...]:
    settings, layout, keys = context.settings, context.layout, context.keys
    own = airflow.env(settings, layout, keys)

    def env(name: str) -> Mapping[str, str]:
        return MappingProxyType({**_service_env(settings, name), **own})

    program = (sys.executable, "-m", "airflow")
    return (
        Service(
            name="airflow-api",
            title="Airflow api-server",
            group=INFRA,
            command=(*program, "api-server"),
            env=env("airflow-api"),
            readiness=HttpOk(f"{settings.airflow_url}/api/v2/version"),
            ports=(Port(settings.airflow_port, "FENNEL_AIRFLOW_PORT", settings.host),),
            needs=("postgres",),
            before=(SetupStep.MIGRATE_AIRFLOW,),
            after=(SetupStep.WARM_AIRFLOW,),
            ready_s=180,
        ),
        Service(
            name="airflow-scheduler",
            title="Airflow scheduler",
            group=INFRA,
            # Its log server would listen on every address; the api-server reads the files instead.
            command=(*program, "scheduler", "--skip-serve-logs"),
            env=env("airflow-scheduler"),
            readiness=AirflowHeartbeat(settings.airflow_url, "scheduler"),
            needs=("postgres",),
            before=(SetupStep.MIGRATE_AIRFLOW,),
            ready_s=180,
        ),
        Service(
            name="airflow-dags",
            title="Airflow dag-processor",
            group=INFRA,
            command=(*program, "dag-processor"),
            env=env("airflow-dags"),
            readiness=AirflowHeartbeat(settings.airflow_url, "dag_processor"),
            needs=("postgres",),
            before=(SetupStep.MIGRATE_AIRFLOW,),
            ready_s=180,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Server:
    """A fennel-core server before it becomes a row."""

    name: str
    title: str
    port: int
    needs: tuple[str, ...] = field(default=("postgres", "kafka", "s3"))
    ready_s: float = 120.0
    variable: str | None = None
    """The variable that sets its port, if it is not named after the server."""
    env: Mapping[str, str] = field(default_factory=dict)
    module: str | None = None
    """Its module in `fennel_core.apps`, if that is not named after the server."""
    scheme: str = "http"
    other_ports: tuple[Port, ...] = ()


def _engines(settings: Settings) -> tuple[_Server, ...]:
    first = _Server("engine", "Engine (Spark)", settings.engine_port, ready_s=180)
    others = [
        _Server(
            f"engine-{number}",
            f"Engine {number} (Spark)",
            port := settings.engine_port + ENGINE_PORT_STEP * (number - 1),
            ready_s=180,
            variable="FENNEL_ENGINE_PORT",
            env={"FENNEL_ENGINE": f"engine-{number}", "FENNEL_ENGINE_PORT": str(port)},
            module="engine",
        )
        for number in range(2, settings.engines + 1)
    ]
    return (first, *others)


def _servers(context: PlatformContext) -> tuple[Service, ...]:
    settings, layout = context.settings, context.layout
    stores = {row.name for row in _stores(context)}
    servers = (
        _Server("definition", "Definition server", settings.definition_port),
        _Server("ingest", "Ingest server", settings.ingest_port),
        *_engines(settings),
        _Server(
            "query",
            "Query server (API)",
            settings.query_port,
            needs=("postgres",),
            scheme="http" if settings.tls_certificate is None else "https",
            other_ports=(
                Port(settings.query_metrics_port, "FENNEL_QUERY_METRICS_PORT", settings.host),
            ),
        ),
        *(
            (_Server("history", "History writer", settings.history_port),)
            if settings.history
            else ()
        ),
        _Server("sources", "Streaming sources", settings.sources_port),
    )
    rows = [
        Service(
            name=server.name,
            title=server.title,
            group=FENNEL,
            command=(sys.executable, "-m", f"fennel_core.apps.{server.module or server.name}"),
            env=MappingProxyType(
                {
                    **_service_env(settings, server.module or server.name),
                    "PYTHONPATH": str(layout.root),
                    **server.env,
                }
            ),
            readiness=HttpOk(f"{server.scheme}://{settings.own_address}:{server.port}/readyz"),
            ports=(
                Port(
                    server.port,
                    server.variable or f"FENNEL_{server.name.upper()}_PORT",
                    settings.host,
                ),
                *server.other_ports,
            ),
            needs=tuple(name for name in server.needs if name in stores),
            ready_s=server.ready_s,
        )
        for server in servers
    ]
    limits = executor_host.ExecutorLimits.of(settings)
    executors = Service(
        name="executors",
        title="Python executors",
        group=FENNEL,
        command=tuple(executor_host.command(limits)),
        env=MappingProxyType(executor_host.environment(limits, settings.executors_socket, {})),
        readiness=SocketAccepts(settings.executors_socket),
        # User code runs as other users, which must read what the host writes for them.
        umask=READABLE,
    )
    return (*rows, executors)
