"""Problems are found before a start, each with a message that names the next action."""

import os
import shutil
import socket
import stat
import subprocess
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from fennel_core.apps.local import preflight
from fennel_core.apps.local.file_layout import (
    ROOT,
    SOCKET_NAME_BYTES,
    SOCKET_PATH_BYTES,
    FileLayout,
)
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.launch_plan import select_services
from fennel_core.apps.local.platform import local_settings, write_env_file
from fennel_core.apps.local.platform_keys import KEY_NAMES, ensure_keys
from fennel_core.apps.local.preflight import preflight_problems
from fennel_core.apps.local.services import service_table
from fennel_core.apps.local.setup_steps import PlatformContext
from fennel_core.settings.model import Settings
from tests.support.ports import free_port

Usage = namedtuple("Usage", "total used free")


def fake(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def context(tmp_path: Path) -> PlatformContext:
    layout = FileLayout(root=tmp_path, data=tmp_path / "data")
    layout.make()
    layout.jars.mkdir(parents=True)
    (layout.jars / ".made-from").write_text("x")
    keys = ensure_keys(layout.secrets)
    ports = {
        name: free_port()
        for name in (
            "postgres_port",
            "kafka_port",
            "kafka_controller_port",
            "s3_port",
            "airflow_port",
        )
    }
    java = fake(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    return PlatformContext(
        local_settings(Settings().model_copy(update=ports), layout, keys),
        layout,
        keys,
        HostEnvironment(java, (), 0),
    )


def problems(context: PlatformContext) -> tuple[str, ...]:
    return preflight_problems(
        context.settings,
        context.layout,
        context.host,
        select_services(service_table(context), ("infra",)),
    )


def test_a_complete_machine_has_no_problems(context: PlatformContext) -> None:
    assert problems(context) == ()


def test_a_port_in_use_is_named_with_its_owner_and_its_variable(context: PlatformContext) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", context.settings.kafka_port))
        taken.listen()
        (problem,) = problems(context)
    assert problem.startswith(
        f"Port {context.settings.kafka_port}, which Kafka needs, is in use by pid {os.getpid()} ("
    )
    assert "set FENNEL_KAFKA_PORT to a free port." in problem


def test_a_port_of_two_services_is_named_with_both_variables(context: PlatformContext) -> None:
    shared = context.settings.model_copy(update={"s3_port": context.settings.kafka_port})
    (problem,) = problems(replace(context, settings=shared))
    assert problem == (
        f"Port {shared.kafka_port} is that of Kafka (FENNEL_KAFKA_PORT) and of S3 "
        "(FENNEL_S3_PORT). Set one of them to a free port."
    )


@pytest.mark.parametrize("port", ["kafka_port", "kafka_controller_port"])
def test_ports_of_the_broker_are_probed_on_loopback_whatever_servers_are_bound_to(
    context: PlatformContext, port: str
) -> None:
    settings = context.settings.model_copy(update={"host": "127.0.0.2"})
    number = getattr(settings, port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", number))
        taken.listen()
        (problem,) = problems(replace(context, settings=settings))
    assert problem.startswith(f"Port {number}, which Kafka needs, is in use by pid {os.getpid()} (")


def test_a_full_disk_is_reported_with_both_sizes(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12, 5 * 2**20))
    (problem,) = problems(context)
    assert "has 5 MiB free, and at least 1024 MiB are needed" in problem


def test_an_old_java_is_reported_with_its_version(context: PlatformContext, tmp_path: Path) -> None:
    old = fake(tmp_path, "oldjava", "echo 'openjdk version \"11.0.2\"' >&2")
    (problem,) = problems(
        PlatformContext(context.settings, context.layout, context.keys, HostEnvironment(old, (), 0))
    )
    assert "Java 17 or newer is needed" in problem
    assert "version 11" in problem


def test_missing_jars_name_the_command(context: PlatformContext) -> None:
    (context.layout.jars / ".made-from").unlink()
    (problem,) = problems(context)
    assert problem.endswith("run `make jars`.")


def test_all_problems_are_reported_at_once(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context.layout.jars / ".made-from").unlink()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1, 1, 0))
    assert len(problems(context)) == 2


def test_a_port_in_time_wait_counts_as_free() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        assert not preflight.is_free("127.0.0.1", port)
        accepted.close()  # this side closes first, so the port goes into TIME_WAIT
        client.close()
    assert preflight.is_free("127.0.0.1", port)


def test_keys_are_generated_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    assert ensure_keys(tmp_path) == keys
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert keys.postgres_password not in repr(keys)


def test_two_installations_share_no_key(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = ensure_keys(tmp_path / "a"), ensure_keys(tmp_path / "b")
    assert not [name for name in KEY_NAMES if getattr(one, name) == getattr(other, name)]


def test_the_env_file_is_private_even_if_it_replaces_a_readable_one(tmp_path: Path) -> None:
    layout = FileLayout(root=tmp_path, data=tmp_path)
    layout.env_file.write_text("old")
    layout.env_file.chmod(0o644)
    write_env_file(layout, {"FENNEL_QUERY_PORT": "1234"})
    assert stat.S_IMODE(layout.env_file.stat().st_mode) == 0o600
    assert Settings(_env_file=layout.env_file).query_port == 1234  # type: ignore[call-arg]  # pydantic-settings' own argument


def test_socket_paths_stay_short_in_a_deep_checkout(tmp_path: Path) -> None:
    deep = FileLayout(root=tmp_path, data=tmp_path / ("d" * 120))
    assert len(str(deep.run)) + 1 + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES
    assert deep.run != FileLayout(root=tmp_path, data=tmp_path / ("e" * 120)).run


SHELL_TOOLS = (
    "bash",
    "sh",
    "dirname",
    "cat",
    "sed",
    "head",
    "awk",
    "df",
    "sha256sum",
    "cut",
    "mkdir",
    "flock",
    "tail",
    "rm",
    "cp",
    "mktemp",
)


def prepare(tmp_path: Path, what: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of prepare.sh in a tree of its own; its PATH holds a shell's tools and `programs`.

    `_` in a program's name is replaced by `-`.
    """
    script = tmp_path / "checkout" / "fennel_core" / "apps" / "local" / "prepare.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "fennel_core/apps/local/prepare.sh", script)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in set(SHELL_TOOLS) - set(programs):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    for name, body in programs.items():
        fake(folder, name.replace("_", "-"), body)
    environment = {"PATH": str(folder), "PYTHON": "python"}
    return subprocess.run(  # noqa: S603  # a program of this test, and no shell
        ["bash", str(script), what],  # noqa: S607  # found on the PATH, as by its users
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_ordinary_user_gets_the_command_to_run(tmp_path: Path) -> None:
    done = prepare(tmp_path, "system", python="exit 0", id="echo 1000", apt_get="exit 9")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "sudo apt-get install -y openjdk-17-jre-headless maven" in done.stderr


def test_missing_packages_are_installed_for_root(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    fake(mirror, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    fake(mirror, "mvn", "exit 0")
    install = f'[ "$1" = update ] || cp {mirror}/* {tmp_path}/bin'
    done = prepare(tmp_path, "system", python="exit 0", id="echo 0", apt_get=install)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Installing from Debian's packages: openjdk-17-jre-headless maven\n"


def test_a_failed_installation_is_reported_with_the_last_lines_of_apt_get(
    tmp_path: Path,
) -> None:
    done = prepare(
        tmp_path,
        "system",
        python="exit 0",
        id="echo 0",
        apt_get="echo no route to mirror; exit 100",
    )
    assert done.returncode == 1
    assert done.stderr.startswith("no route to mirror\n")
    assert "apt-get could not install openjdk-17-jre-headless maven" in done.stderr


def test_an_old_python_is_reported_with_its_version(tmp_path: Path) -> None:
    done = prepare(
        tmp_path, "env", python='[ "$1" = --version ] && echo Python 3.8.10 && exit 0; exit 1'
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Python 3.11 with its venv module is needed but python is Python 3.8.10" in done.stderr


def test_a_small_disk_is_reported_before_anything_is_created(
    tmp_path: Path,
) -> None:
    df = "echo Filesystem; echo 'disk 9 9 100 1% /'"
    done = prepare(tmp_path, "env", python="exit 0", df=df)
    assert done.returncode == 1
    assert "has 100 MiB free, but the installation needs 6000 MiB" in done.stderr
    assert not (tmp_path / "checkout" / ".venv").exists()


def test_an_unknown_word_is_refused_with_the_usage(tmp_path: Path) -> None:
    done = prepare(tmp_path, "everything")
    assert done.returncode == 1
    assert "usage: prepare.sh system | env | jars | jars-mysql | scan | lock" in done.stderr
