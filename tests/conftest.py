"""Fixtures for every test: the real local platform, started once per session."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator

import pytest

from tests.support.own_platform import OwnPlatform
from tests.support.platform_settings import ENV_COMMAND
from tests.support.ports import free_port

pytest_plugins = ("tests.support.executors", "tests.support.postgres", "tests.support.s3")
"""One server of a kind per process: fixtures that folders import would start one for each."""


os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
"""JVMs of Spark that run for seconds spend more CPU on the optimising compiler than they save."""

logging.getLogger("py4j").setLevel(logging.WARNING)
"""As `telemetry.logs` does; connections say that they close when the stream of a log is gone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files of a folder over the run, the same way in every process.

    Folders differ in what they need: contract tests wait for services, laws compute. One after the
    other they leave the cores idle first and overload them later.
    """
    items.sort(key=lambda item: zlib.crc32(item.nodeid.partition("::")[0].encode()))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: compressed ones contain the time, and processes of a run have
    to collect the same names.
    """
    return argname if isinstance(val, bytes) else None


def cli(*arguments: str) -> str:
    """Run the project's own command line and return its output."""
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-m", "fennel_core.apps.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"fennel-core {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


@pytest.fixture(scope="session")
def own_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes of a parallel run have platforms of their own; the first one has the usual one."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if worker == "gw0":
        yield
        return
    own = OwnPlatform(tmp_path_factory.mktemp("platform"), FENNEL_ORCHESTRATOR="airflow")
    before = dict(os.environ)
    os.environ.update(own.settings)
    # Tests look for what Spark leaves behind.
    os.environ["SPARK_LOCAL_DIRS"] = str(tmp_path_factory.mktemp("spark"))
    own.run("up", "--only", "postgres")
    yield
    own.run("down")
    os.environ.clear()
    os.environ.update(before)


def _started(*arguments: str) -> Iterator[None]:
    before = dict(os.environ)
    # The bucket that sinks of tests write to, with the platform's own keys.
    os.environ.setdefault("FENNEL_SINK_SHARED_BUCKETS", '["test-lake"]')
    # True: other containers run it. The command below prints it with a capital letter.
    if os.environ.get("FENNEL_REACH_BY_NAME", "").lower() != "true":
        cli("up", *arguments)
    for line in cli(*ENV_COMMAND).splitlines():
        name, _, value = shlex.split(line.removeprefix("export "))[0].partition("=")
        os.environ[name] = value
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def infra(own_platform: None) -> Iterator[None]:
    """Postgres, Kafka and S3 are up, and their addresses are in the environment.

    HTTP sinks may write to one port of this machine.
    """
    receiver = json.dumps([f"127.0.0.1:{free_port()}"])
    os.environ.setdefault("FENNEL_HTTP_SINK_PRIVATE_HOSTS", receiver)
    yield from _started("--only", "postgres", "--only", "kafka", "--only", "s3")


@pytest.fixture(scope="session")
def platform(infra: None) -> Iterator[None]:
    """Every part of the platform is up."""
    yield from _started()
