"""Airflow's three processes, configured by environment variables only.

No generated configuration file can drift, and Airflow is not imported here. The timings were
measured: with the defaults of `scheduler_idle_sleep_time` and `min_heartbeat_interval` a commit
waits seconds between its tasks.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fennel_core.apps.errors import SetupFailed
from fennel_core.apps.local import postgres
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.platform_keys import PlatformKeys
from fennel_core.settings.model import Settings

PARALLELISM: Final = 8
"""Pre-forked workers; each waits up to `min_heartbeat_interval` after a task, so a chain of tasks
needs several.
"""

POOLS: Final[Mapping[str, Mapping[str, str | int]]] = {
    "fennel_commit": {
        "slots": PARALLELISM - 2,
        "description": "Steps of commits and of reconcile: seconds each",
    },
    "fennel_long": {
        "slots": PARALLELISM // 2,
        "description": "Snapshots, drills and rebuilds: minutes to hours each",
    },
    "fennel_checks": {
        "slots": 1,
        "description": "Integrity checks: minutes to hours, and nothing waits for them",
    },
    "fennel_offline": {
        "slots": PARALLELISM // 4,
        "description": "Spark jobs (offline queries, history): each uses all cores of its master",
    },
    "fennel_sources": {
        "slots": PARALLELISM // 4,
        "description": "Reads of tables that are sources: seconds, hours at first; one core each",
    },
}
"""Airflow's pools. Neither can hold every worker, so neither kind of work keeps the other waiting.
`fennel_airflow/factory.py` names them again, because the two must not import each other; a test
compares them.
"""

SILENT_TASK_S: Final = 30
"""A task without a heartbeat for this long is dead. Workers send one every second; Airflow's
default of 300 s would keep a commit waiting.
"""

WARM_S: Final = 180.0
"""Four seconds on an idle machine, more than a minute on one with twenty busy processes."""


def home(layout: FileLayout) -> str:
    """Return AIRFLOW_HOME."""
    return str(layout.data / "airflow")


def passwords_file(layout: FileLayout) -> Path:
    """Return the login file, in Airflow's own folder because Airflow opens it for writing."""
    return layout.data / "airflow" / "passwords.json"


def env(settings: Settings, layout: FileLayout, keys: PlatformKeys) -> Mapping[str, str]:
    """Return Airflow's whole configuration as `AIRFLOW__…` variables."""
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
        # A tenth of a second costs a fifth of a core on an idle machine.
        ("scheduler", "scheduler_idle_sleep_time"): 0.3,
        ("scheduler", "job_heartbeat_sec"): 2,
        ("scheduler", "task_instance_heartbeat_timeout"): SILENT_TASK_S,
        ("scheduler", "task_instance_heartbeat_detection_interval"): 5,
        ("scheduler", "orphaned_tasks_check_interval"): 15,
        ("workers", "min_heartbeat_interval"): 1,
        ("dag_processor", "refresh_interval"): 10,
        # Changed files are parsed at once; parsing all of them costs seconds of a core.
        ("dag_processor", "min_file_process_interval"): 600,
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
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
            {"conn_type": "spark", "host": settings.offline_master}
        ),
        "AIRFLOW_HOME": home(layout),
        "PYTHONPATH": f"{layout.root}:{layout.root / 'plugins'}",
        "NO_COLOR": "1",
    }


def migrate(settings: Settings, layout: FileLayout, keys: PlatformKeys) -> None:
    """Migrate Airflow's database, make its pools and write the login.

    Raises SetupFailed with Airflow's last line. A stamp in the data folder skips the migration,
    which takes ten seconds even if there is nothing to do. It contains the pools, too, and a start
    that finds one missing makes it again: Airflow never schedules a task whose pool does not exist.
    """
    folder = layout.data / "airflow"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    passwords = passwords_file(layout)
    logins = json.dumps({settings.airflow_user: keys.airflow_password})
    # Containers share the file: a starting one must not truncate it under a reader.
    if not passwords.exists() or passwords.read_text() != logins:
        passwords.touch(mode=0o600)
        passwords.write_text(logins)
    version = importlib.metadata.version("apache-airflow")
    stamp, pools = folder / "migrated", folder / "pools.json"
    wanted = json.dumps({"version": version, "pools": POOLS})
    if (
        stamp.exists()
        and stamp.read_text() == wanted
        and POOLS.keys() <= postgres.airflow_pools(settings, keys)
    ):
        return
    pools.write_text(json.dumps(POOLS))
    log = layout.log("airflow-migrate")
    log.write_bytes(b"")
    for words in (("db", "migrate"), ("pools", "import", str(pools))):
        _run_command(words, {**os.environ, **env(settings, layout, keys)}, layout, log)
    stamp.write_text(wanted)


def _run_command(
    words: Sequence[str], variables: Mapping[str, str], layout: FileLayout, log: Path
) -> None:
    with log.open("ab") as output:
        done = subprocess.run(  # noqa: S603  # a fixed list of arguments, and no shell
            [sys.executable, "-m", "airflow", *words],
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
        raise SetupFailed(
            f"Airflow could not prepare its database with `airflow {' '.join(words[:2])}` "
            f"({lines[-1]}). See {layout.shown(log)}"
        )


def warm(settings: Settings) -> None:
    """Make the api-server build its task API now; raises SetupFailed if it does not respond.

    Otherwise it would do so at the first task, which costs the first commit seconds.
    """
    import httpx

    url = f"{settings.airflow_url}/execution/health"
    try:
        httpx.get(url, timeout=WARM_S, trust_env=False).raise_for_status()
    except httpx.HTTPError as error:
        raise SetupFailed(f"Airflow's task API does not respond at {url} ({error})") from error
