"""docker-compose.yml runs exactly the launcher's services, publishes on loopback only, and holds no
secret.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fennel_core.apps.local.file_layout import ROOT, FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.platform import local_settings
from fennel_core.apps.local.platform_keys import PlatformKeys
from fennel_core.apps.local.services import FENNEL, INFRA, WITH_KEYS, Service, service_table
from fennel_core.apps.local.setup_steps import PlatformContext, SetupStep
from fennel_core.executors import launch, protocol
from fennel_core.executors.environment import SINGLE_THREADED
from fennel_core.settings.model import LOOPBACK, Settings

FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
RUN = ["python", "-m", "fennel_core.apps.container", "run"]
PREPARE = ["python", "-m", "fennel_core.apps.container", "prepare"]
KEYS = ["python", "-m", "fennel_core.apps.container", "keys"]
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def interpolated(text: str) -> str:
    """Return the text as compose reads it if no variable is set."""
    return VARIABLE.sub(lambda found: found.group(2) or "", text)


@pytest.fixture(scope="module")
def compose() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(interpolated(FILE.read_text()))["services"]
    return found


@pytest.fixture(scope="module")
def context() -> PlatformContext:
    """Return the context as a container sees it; creates no folder."""
    words = {"host": "0.0.0.0", "published_host": "127.0.0.1", "reach_by_name": True}  # noqa: S104  # a value under test, never bound
    folders = {"data_dir": Path("/data"), "executors_dir": Path("/data/executors")}
    layout = FileLayout(root=ROOT, data=Path("/data"))
    keys = PlatformKeys(*("secret" for _ in PlatformKeys.__dataclass_fields__))
    settings = local_settings(Settings().model_copy(update=words | folders), layout, keys)
    return PlatformContext(settings, layout, keys, HostEnvironment("java", (), 7400))


@pytest.fixture(scope="module")
def services(context: PlatformContext) -> dict[str, Service]:
    return {row.name: row for row in service_table(context) if row.group in {INFRA, FENNEL}}


def test_every_service_of_the_table_is_one_container_and_the_others_run_once(
    compose: dict[str, Any], services: dict[str, Service]
) -> None:
    own_image = {"executors"}  # user code runs in an image that cannot read the settings
    assert {
        name: service.get("command") for name, service in compose.items() if "restart" in service
    } == {name: [*RUN, name] for name in services if name not in own_image} | dict.fromkeys(
        own_image
    )


def test_containers_that_run_once_cover_every_setup_step_outside_the_services(
    compose: dict[str, Any], services: dict[str, Service]
) -> None:
    once = {name: service for name, service in compose.items() if "restart" not in service}
    assert once.pop("secrets")["command"] == KEYS
    assert all(service["command"][: len(PREPARE)] == PREPARE for service in once.values())
    named = {word for service in once.values() for word in service["command"][len(PREPARE) :]}
    after = {step for row in services.values() for step in row.after}
    assert named == {
        step.name.lower().replace("_", "-") for step in {*after, SetupStep.MIGRATE_AIRFLOW}
    }


def test_each_service_is_built_from_a_base_that_can_be_chosen(compose: dict[str, Any]) -> None:
    lines = DOCKERFILE.read_text().splitlines()
    (default,) = [line.removeprefix("ARG BASE=") for line in lines if line.startswith("ARG BASE=")]
    targets = [line.split()[-1] for line in lines if line.startswith("FROM ")]
    assert {line.split()[1] for line in lines if line.startswith("FROM ")} == {
        "${BASE}",
        "${BUILDER:-${BASE}}",
    }
    for name, service in compose.items():
        build = service["build"]
        assert (ROOT / build["dockerfile"]) == DOCKERFILE, name
        chosen = {"BASE": default, "BUILDER": None, "EXECUTOR_REQUIREMENTS": None, "EXTRAS": None}
        assert build["args"] == chosen, name
        assert build["target"] in targets, name
        assert "image" not in service, (
            f"{name}: services that share a name would overwrite each other's image "
            "while it is built"
        )


def test_each_container_has_a_health_check_and_waits_for_its_dependencies(
    compose: dict[str, Any], services: dict[str, Service]
) -> None:
    for name, row in services.items():
        assert compose[name]["healthcheck"]["test"][0] == "CMD", name
        waits = {
            other
            for other, how in compose[name].get("depends_on", {}).items()
            if how["condition"] == "service_healthy"
        }
        assert waits >= set(row.needs), name
    once = {name for name, service in compose.items() if "restart" not in service}
    for name, service in compose.items():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] == (
                "service_completed_successfully" if other in once else "service_healthy"
            ), name


def test_a_restore_sees_the_local_states_of_the_engine(compose: dict[str, Any]) -> None:
    (states,) = [each for each in compose["engine"]["volumes"] if each.endswith(":/data/state")]
    assert {states, "secrets:/data/secrets"} <= set(compose["secrets"]["volumes"])


def test_each_container_is_stopped_with_its_own_signal(
    compose: dict[str, Any], services: dict[str, Service]
) -> None:
    assert {name: compose[name].get("stop_signal", "SIGTERM") for name in services} == {
        name: p.stop_signal.name for name, p in services.items()
    }


def test_ports_are_published_on_loopback_and_the_settings_contain_the_address(
    compose: dict[str, Any],
) -> None:
    published = {name: service["ports"] for name, service in compose.items() if "ports" in service}
    assert published == {"query": ["127.0.0.1:7400:7400"], "airflow-api": ["127.0.0.1:7480:7480"]}
    addresses = set(re.findall(r"(\S+?):\$\{FENNEL_\w+_PORT:-\d+\}:", FILE.read_text()))
    configured = set(re.findall(r"FENNEL_PUBLISHED_HOST: (\S+)", FILE.read_text()))
    assert {address.strip('["') for address in addresses} == configured, (
        "one variable must set both: development tokens depend on the published address"
    )
    modes = {name: each["network_mode"] for name, each in compose.items() if "network_mode" in each}
    assert modes == {"executors": "none"}, "no other service leaves the network of the platform"


def test_development_tokens_are_refused_off_loopback(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in compose["query"]["environment"].items():
        monkeypatch.setenv(name, str(value or ""))
    keys = PlatformKeys(*("secret" for _ in PlatformKeys.__dataclass_fields__))
    layout = FileLayout(root=ROOT, data=Path("/data"))
    assert local_settings(Settings(), layout, keys).dev_tokens
    monkeypatch.setenv("FENNEL_PUBLISHED_HOST", "0.0.0.0")  # noqa: S104  # a value under test, never bound
    assert not local_settings(Settings(), layout, keys).dev_tokens
    monkeypatch.setenv("FENNEL_DEV_TOKENS", "true")
    with pytest.raises(ValueError, match="not loopback"):
        Settings()


def test_neither_the_file_nor_the_images_contain_a_secret(compose: dict[str, Any]) -> None:
    secret = re.compile(r"PASSWORD|SECRET|TOKEN|KEY|DSN", re.IGNORECASE)
    for name, service in compose.items():
        given = {
            variable: value
            for variable, value in service["environment"].items()
            if secret.search(variable) and value is not None
        }
        assert given == {}, name
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "/.env" in ignored
    sent = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert sent[0] == "*", "only listed files are sent to the container engine"
    assert not [
        line
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith(("ARG", "ENV")) and secret.search(line)
    ]


def test_executors_have_no_secrets_no_slots_and_no_network_of_the_platform(
    compose: dict[str, Any], context: PlatformContext
) -> None:
    executors = compose["executors"]
    assert executors["volumes"] == ["executors:/data/executors"]
    assert executors["build"]["target"] == "executors"
    assert executors["network_mode"] == "none"
    limits = launch.ExecutorLimits.of(context.settings)
    wanted = launch.environment(limits, context.settings.executors_socket, {})
    given = {name: str(value) for name, value in executors["environment"].items()}
    assert given.items() <= wanted.items()
    assert {protocol.SOCKET_ENV, *SINGLE_THREADED} <= given.keys()


def test_data_is_in_volumes_and_only_the_first_container_writes_keys(
    compose: dict[str, Any],
) -> None:
    volumes = {
        name: {v.split(":")[1] for v in service["volumes"]} for name, service in compose.items()
    }
    kept = {
        "postgres": "/data/postgres",
        "kafka": "/data/kafka",
        "s3": "/data/s3",
        "engine": "/data/state",
    }
    assert {name: where for name, where in kept.items() if where not in volumes[name]} == {}
    writers = {
        name for name, service in compose.items() if "secrets:/data/secrets" in service["volumes"]
    }
    assert writers == {"secrets"}
    made = re.findall(r"/data/[\w/-]+", DOCKERFILE.read_text())
    assert {where for places in volumes.values() for where in places} <= set(made), (
        "a volume over a folder missing in the image would belong to root"
    )


def test_each_service_mounts_the_volume_of_its_own_keys(compose: dict[str, Any]) -> None:
    assert {
        (name, volume)
        for name, service in compose.items()
        for volume in service["volumes"]
        if volume.split(":")[1] == "/data/secrets" and name not in {"secrets", "migrate"}
    } == {
        *((name, f"{name}-keys:/data/secrets:ro") for name in WITH_KEYS),
        ("airflow-warm", "airflow-api-keys:/data/secrets:ro"),
    }
    granted = {each for each in compose["secrets"]["volumes"] if "/data/grants/" in each}
    assert granted == {f"{name}-keys:/data/grants/{name}" for name in WITH_KEYS}


def test_no_container_has_capabilities_or_gains_privileges(compose: dict[str, Any]) -> None:
    for name, service in compose.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["pids_limit"], name
    writable = {name for name, service in compose.items() if not service["read_only"]}
    assert writable == {"secrets", "airflow-scheduler", "engine", "history", "sources"}, (
        "only copies of a backup and temporary files of Spark belong on the disk of a container"
    )
    assert compose["executors"]["mem_limit"] == "6g"


def test_containers_bind_beyond_loopback_only_where_others_must_reach_them(
    compose: dict[str, Any],
) -> None:
    assert compose["engine"]["environment"]["FENNEL_HOST"] in LOOPBACK
    assert compose["query"]["environment"]["FENNEL_HOST"] == "0.0.0.0"  # noqa: S104  # a value under test, never bound


def composes() -> list[list[str]]:
    """Return the compose commands installed here."""
    found = [["docker-compose"]] if shutil.which("docker-compose") else []
    plugin = (
        shutil.which("docker")
        and subprocess.run(
            ["docker", "compose", "version"],  # noqa: S607  # found on the PATH, as by its users
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    return [*found, *([["docker", "compose"]] if plugin else [])]


@pytest.mark.skipif(not composes(), reason="compose is not installed")
def test_compose_itself_accepts_the_file() -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FENNEL_")
    }
    for program in composes():
        done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [*program, "-f", str(FILE), "config", "-q"],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_limits_of_user_code_reach_the_executors_and_their_callers(
    compose: dict[str, dict[str, Any]],
) -> None:
    defaults = Settings()
    limits = {
        protocol.TIME_LIMIT_ENV: defaults.executor_time_limit_ms,
        protocol.MEMORY_LIMIT_ENV: defaults.executor_memory_limit_bytes,
        protocol.CALLS_ENV: defaults.executor_calls_per_process,
    }
    executors = compose["executors"]["environment"]
    assert {name: int(executors[name]) for name in limits} == limits
    for caller in ("query", "ingest", "engine"):
        environment = compose[caller]["environment"]
        assert int(environment[protocol.TIME_LIMIT_ENV]) == limits[protocol.TIME_LIMIT_ENV]
    text = FILE.read_text()
    assert all(f"${{{name}:-" in text for name in limits), "an operator can set each of them"
