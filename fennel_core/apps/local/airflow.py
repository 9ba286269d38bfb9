"""Airflow's three processes, configured wholly by environment variables: no generated file to
drift, no import of Airflow here.

The timings are measured ones: `scheduler_idle_sleep_time` and `min_heartbeat_interval` at their
defaults make a commit wait seconds between its tasks.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fennel_core.apps.errors import SetupFailed
from fennel_core.apps.local import postgres
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.platform_keys import PlatformKeys
from fennel_core.settings.model import Settings

PARALLELISM: Final = 8
"""Worker processes forked ahead; each waits up to `min_heartbeat_interval` after a task, so a chain
needs several.
"""

SILENT_TASK_S: Final = 30
"""A task whose worker says nothing for this long is dead. Workers report every second; Airflow's
own 300 s would keep a commit waiting.
"""

WARM_S: Final = 180.0
"""Four seconds on an idle machine, more than a minute where twenty others want its cores."""


def home(layout: FileLayout) -> str:
    return str(layout.data / "airflow")


def passwords_file(layout: FileLayout) -> Path:
    """In its own folder, because it opens the file for writing."""
    return layout.data / "airflow" / "passwords.json"


def env(settings: Settings, layout: FileLayout, keys: PlatformKeys) -> Mapping[str, str]:
    """Everything Airflow reads, as its own variables."""
    options = {
        ("core", "executor"): "LocalExecutor",
        ("core", "parallelism"): PARALLELISM,
        ("core", "dags_folder"): layout.root / "dags",
        ("core", "plugins_folder"): layout.root / "plugins",
        ("core", "load_examples"): False,
        ("core", "dags_are_paused_at_creation"): False,
        ("core", "fernet_key"): keys.airflow_fernet_key,
        ("core", "simple_auth_manager_users"): f"{settings.airflow_user}:admin",
        ("core", "simple_auth_manager_passwords_file"): passwords_file(layout),
        ("core", "execution_api_server_url"): f"{settings.airflow_url}/execution/",
        ("database", "sql_alchemy_conn"): postgres.airflow_dsn(settings, keys),
        ("database", "sql_alchemy_conn_async"): postgres.airflow_dsn(settings, keys),
        ("api", "host"): settings.host,
        ("api", "port"): settings.airflow_port,
        ("api", "base_url"): settings.airflow_pages,
        ("api", "workers"): 1,
        ("api", "secret_key"): keys.airflow_session_secret,
        ("api", "expose_config"): False,
        ("api", "instance_name"): "fennel-core",
        ("api_auth", "jwt_secret"): keys.airflow_jwt_secret,
        ("scheduler", "scheduler_idle_sleep_time"): 0.1,
        ("scheduler", "job_heartbeat_sec"): 2,
        ("scheduler", "task_instance_heartbeat_timeout"): SILENT_TASK_S,
        ("scheduler", "task_instance_heartbeat_detection_interval"): 5,
        ("scheduler", "orphaned_tasks_check_interval"): 15,
        ("workers", "min_heartbeat_interval"): 1,
        ("dag_processor", "refresh_interval"): 10,
        ("dag_processor", "min_file_process_interval"): 30,
        ("dag_processor", "parsing_processes"): 1,
        ("logging", "base_log_folder"): layout.logs / "airflow",
        ("logging", "colored_console_log"): False,
        ("usage_data_collection", "enabled"): False,
    }
    variables = {
        f"AIRFLOW__{section.upper()}__{name.upper()}": str(value)
        for (section, name), value in options.items()
    }
    return {
        **variables,
        "AIRFLOW_HOME": home(layout),
        "PYTHONPATH": f"{layout.root}:{layout.root / 'plugins'}",
        "NO_COLOR": "1",
    }


def migrate(settings: Settings, layout: FileLayout, keys: PlatformKeys) -> None:
    """Brings the database to this version of Airflow and writes the login. Raises HostError with
    Airflow's last lines.

    A stamp in the data folder skips the migration, which takes ten seconds even with nothing to do.
    """
    folder = layout.data / "airflow"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    passwords = passwords_file(layout)
    logins = json.dumps({settings.airflow_user: keys.airflow_password})
    if (
        not passwords.exists() or passwords.read_text() != logins
    ):  # containers share it: one that starts must not empty what another reads
        passwords.touch(mode=0o600)
        passwords.write_text(logins)
    version = importlib.metadata.version("apache-airflow")
    stamp = folder / "migrated"
    if stamp.exists() and stamp.read_text() == version:
        return
    with layout.log("airflow-migrate").open("wb") as log:
        words = [sys.executable, "-m", "airflow", "db", "migrate"]
        done = subprocess.run(
            words,
            env={**os.environ, **env(settings, layout, keys)},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        lines = layout.log("airflow-migrate").read_text(errors="replace").strip().splitlines() or [
            "it said nothing"
        ]
        raise SetupFailed(
            f"Airflow could not migrate its database ({lines[-1]}): see "
            f"{layout.shown(layout.log('airflow-migrate'))}"
        )
    stamp.write_text(version)


def warm(settings: Settings) -> None:
    """Makes the api-server build the API its tasks talk to, which it otherwise does at the first
    task: seconds of the first commit.

    Raises HostError if that API does not answer.
    """
    url = f"{settings.airflow_url}/execution/health"
    try:
        with urllib.request.urlopen(url, timeout=WARM_S) as answer:  # noqa: S310  # our own URL
            answer.read()
    except OSError as error:
        raise SetupFailed(f"Airflow's task API does not answer at {url} ({error})") from error
