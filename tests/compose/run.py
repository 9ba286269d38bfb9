"""`make compose-test`: run docker-compose.yml, from empty images to removed volumes.

Makes base images (bases.py), builds with a package of the operator, starts everything, runs the
fraud example from this machine through the published port, checks the commit in Airflow, takes a
snapshot, looks at what containers can reach (confinement.py), commits mounted definitions through
Airflow's form, runs hostile code (hostile.py), kills a service, stops and starts everything, backs
up, restores into new volumes, and removes everything it made. `--keep` keeps images and the
engine's data for a faster next run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.compose.bases import make_bases
from tests.compose.confinement import (
    check_development_tokens,
    check_keys,
    check_limits,
    check_user_codes_container,
)
from tests.compose.engine import CannotRun, docker_engine, run
from tests.compose.hostile import attack_the_executors, attack_the_platform
from tests.compose.stack import HEALTHY_S, PREFIX, ROOT, RUN_S, Airflow, Stack, until

WORK: Final = ROOT / ".fennel" / "compose-test"
CLIENT_PYTHON: Final = ROOT / ".venv-executor" / "bin" / "python"
TOKEN: Final = "dev-demo"  # noqa: S105  # a fixed value of a test
CONTAINER_USER: Final = 7400
STORES: Final = ("postgres", "kafka", "s3")
PACKAGE: Final = "humanize==4.9.0"
"""A package of the installation, beside those of the client."""
WORDS: Final = """
import pandas as pd
from fennel.featuresets import extractor, featureset
from fennel.lib import inputs, meta, outputs

@meta(owner="tests@example.com")
@featureset
class Words:
    number: int
    text: str

    @extractor
    @inputs("number")
    @outputs("text")
    def words(cls, ts: pd.Series, number: pd.Series):
        import humanize
        return pd.Series([humanize.intcomma(each) for each in number], name="text")
"""
REMOVED_VARIABLES: Final = ("FENNEL_", "AIRFLOW__", "COMPOSE_")


@contextmanager
def stage(title: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"… {title}", flush=True)
    yield
    print(f"✓ {title}: {time.monotonic() - began:.1f} s", flush=True)


def demo(stack: Stack) -> list[dict[str, Any]]:
    """Run the fraud example from this machine with the real client and return its features."""
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [str(CLIENT_PYTHON), "-m", "examples.fraud.demo", stack.url, TOKEN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    for event in events:
        if "end" in event:
            print(f"    {event['end']}: {event['seconds'] * 1000:.0f} ms")
    assert done.returncode == 0, done.stderr[-2000:]
    features: list[dict[str, Any]] = next(
        event["features"] for event in events if "features" in event
    )
    assert any(row["transactions"] > 0 and row["score"] > 0 for row in features), features
    return features


def query_cards(stack: Stack, cards: list[int]) -> list[dict[str, Any]]:
    """Return the features of cards; retries on 503 until the engine's partitions have resumed."""
    words = [
        str(CLIENT_PYTHON),
        "-m",
        "tests.compose.query_cards",
        stack.url,
        TOKEN,
        *map(str, cards),
    ]
    env, deadline = {**stack.env, "PYTHONPATH": str(ROOT)}, time.monotonic() + RUN_S
    while True:
        done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  # a program of this test, and no shell
        if done.returncode == 0:
            found: list[dict[str, Any]] = json.loads(done.stdout)
            return found
        assert "Server returned: 503" in done.stderr, done.stderr[-2000:]
        assert time.monotonic() < deadline, f"still 503 after {RUN_S:.0f} s: {done.stderr[-500:]}"


def without_recent(features: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop the features that change with time: counts of the last day and the score."""
    return [
        {name: value for name, value in row.items() if name not in {"transactions_1d", "score"}}
        for row in features
    ]


def check_airflow(stack: Stack) -> None:
    airflow = Airflow(stack)
    commits = airflow.runs("commit")
    assert [each["state"] for each in commits] == ["success"], commits
    assert "create topic" in airflow.log("commit", commits[0]["dag_run_id"], "compile"), (
        "the api-server must read the scheduler's log files"
    )
    snapshot = airflow.run_to_completion("snapshot", {})
    assert snapshot["state"] == "success", snapshot


def commit_through_the_form(stack: Stack) -> None:
    """Commit the mounted definitions in Airflow; they use the package of the installation."""
    form = {"definitions": "/data/definitions/words.py", "workspace": "words"}
    run = Airflow(stack).run_to_completion("commit", form)
    assert run["state"] == "success", run
    asked = {
        "inputs": ["Words.number"],
        "outputs": ["Words.text"],
        "data": {"Words.number": [9999]},
    }
    request = urllib.request.Request(  # noqa: S310  # an address of this machine
        f"{stack.url}/api/v1/query",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer dev-words"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as output:  # noqa: S310  # an address of this machine
            answer = json.loads(output.read())
    except urllib.error.HTTPError as refusal:
        raise AssertionError(f"{refusal}: {refusal.read().decode()}") from refusal
    assert answer == {"Words.text": ["9,999"]}


def kill_the_query_server(stack: Stack) -> None:
    """Kill the process under the container's init, without compose."""
    child = "int(open('/proc/1/task/1/children').read().split()[0])"
    subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [*stack.words, "exec", "-T", "query", "python", "-c", f"import os; os.kill({child}, 9)"],
        env=stack.env,
        check=False,
    )
    until(
        lambda: None if stack.containers()["query"]["RestartCount"] == 1 else "not restarted",
        HEALTHY_S,
        "a restart",
    )
    until(stack.unhealthy, HEALTHY_S, "everything healthy")


def print_sizes(stack: Stack) -> None:
    print(
        run(
            "docker",
            "stats",
            "--no-stream",
            "--format",
            "    {{.Name}}\t{{.MemUsage}}\t{{.CPUPerc}}",
            env=stack.env,
        ),
        end="",
    )
    images = run(
        "docker", "images", "--format", "{{.ID}} {{.Size}} {{.Repository}}", env=stack.env
    ).splitlines()
    print("\n".join(f"    image {line}" for line in sorted(images)))
    print(run("docker", "system", "df", env=stack.env))


def remove(stack: Stack, *, images: bool) -> None:
    stack.compose("down", "--volumes", "--remove-orphans", *(["--rmi", "all"] if images else []))
    for kind in ("container", "volume", "network"):
        words = ("--all",) if kind == "container" else ()
        left = run(
            "docker",
            kind,
            "ls",
            "-q",
            *words,
            "--filter",
            f"label=com.docker.compose.project={PREFIX}",
            env=stack.env,
        ).split()
        assert left == [], f"remaining {kind}s: {left}"


def back_up_and_restore(stack: Stack, backups: Path) -> None:
    """Back up, delete every volume, and restore into a new installation."""
    words = ("run", "--rm", "-T", "-v", f"{backups}:/backups", "secrets", "fennel-core")
    passphrase = ("--passphrase-file", "/backups/passphrase")
    stack.compose("stop")
    stack.compose("start", *STORES)
    until(lambda: stack.unhealthy(*STORES), HEALTHY_S, "the stores are healthy")
    stack.compose(*words, "backup", "/backups/first", *passphrase)
    stack.compose("down", "--volumes")
    stack.compose("up", "-d", "kafka", "migrate")
    until(lambda: stack.unhealthy(*STORES, "migrate"), HEALTHY_S, "the stores are healthy")
    stack.compose(*words, "restore", "/backups/first", *passphrase)
    stack.up()


@contextmanager
def inputs_of_the_operator() -> Iterator[tuple[dict[str, str], Path]]:
    """Yield variables that name definitions and packages, and a folder for backups."""
    requirements = ROOT / "requirements" / "compose-test.txt"
    with tempfile.TemporaryDirectory(prefix="fennel-compose-", dir="/var/tmp") as name:
        folder = Path(name)
        definitions, backups = folder / "definitions", folder / "backups"
        definitions.mkdir()
        backups.mkdir()
        (definitions / "words.py").write_text(WORDS)
        (backups / "passphrase").write_text(f"{uuid.uuid4()}\n")
        for path in (folder, definitions, backups, *definitions.iterdir(), *backups.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for path in (backups, *backups.iterdir()):
            shutil.chown(path, CONTAINER_USER)
        requirements.write_text(f"{PACKAGE}\n")
        try:
            yield (
                {
                    "FENNEL_DEFINITIONS": str(definitions),
                    "FENNEL_EXECUTOR_REQUIREMENTS": f"requirements/{requirements.name}",
                    "FENNEL_EXTRAS": "mysql",
                },
                backups,
            )
        finally:
            requirements.unlink()


def first_start(stack: Stack) -> list[dict[str, Any]]:
    """Build, start, use and attack the platform; returns the features of the example."""
    with stage("build"):
        stack.compose("build")
    with stage("first start until everything is healthy"):
        stack.up()
    with stage("the fraud example from this machine"):
        cards = [row["cc_num"] for row in demo(stack)]
    with stage("Airflow ran the commit; a snapshot"):
        check_airflow(stack)
    with stage("limits, keys and networks of containers"):
        check_limits(stack)
        check_user_codes_container(stack)
        check_keys(stack)
        check_development_tokens(stack)
        for jars in ("mysql", "mysql-changes"):  # of FENNEL_EXTRAS
            stack.compose("exec", "-T", "sources", "sh", "-c", f"ls .fennel/jars/{jars}/*.jar")
    with stage("the commands of the README"):
        stack.compose("exec", "-T", "query", "fennel-core", "demo")
    with stage("a commit of mounted definitions through Airflow's form"):
        commit_through_the_form(stack)
    print_sizes(stack)
    return query_cards(stack, cards)


def later_starts(stack: Stack, features: list[dict[str, Any]], backups: Path) -> None:
    cards = [row["cc_num"] for row in features]
    with stage("restart of the killed query server"):
        kill_the_query_server(stack)
        assert without_recent(query_cards(stack, cards)) == without_recent(features)
    commits = len(Airflow(stack).runs("commit"))
    with stage("down"):
        stack.compose("down")
    with stage("second start until everything is healthy"):
        stack.up()
    with stage("the same features after the restart, without a commit"):
        assert without_recent(query_cards(stack, cards)) == without_recent(features)
        assert len(Airflow(stack).runs("commit")) == commits, "Airflow must remember its runs"
    with stage("backup, deletion of all volumes, restore"):
        back_up_and_restore(stack, backups)
    with stage("the same features after the restore"):
        assert without_recent(query_cards(stack, cards)) == without_recent(features)


def everything(env: dict[str, str], *, keep: bool, hostile: bool) -> None:
    with stage("base images"):
        bases = make_bases(PREFIX, env)
    with inputs_of_the_operator() as (inputs, backups):
        stack = Stack(env | bases | inputs)
        try:
            features = first_start(stack)
            if hostile:
                with stage("hostile code beside the executors' container"):
                    attack_the_executors(stack)
                with stage("hostile commits"):
                    attack_the_platform(stack)
            later_starts(stack, features, backups)
        except (AssertionError, CannotRun, urllib.error.URLError):
            stack.print_failures()
            raise
        finally:
            with stage("removal"):
                remove(stack, images=not keep)
                if not keep:
                    run("docker", "image", "rm", "-f", *bases.values(), env=env)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave images and the engine's data for a faster next run",
    )
    parser.add_argument(
        "--no-hostile",
        action="store_true",
        help="leave out the hostile programs, which take minutes",
    )
    chosen = parser.parse_args()
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(REMOVED_VARIABLES)
    }
    began = time.monotonic()
    try:
        with docker_engine(WORK / "docker", keep=chosen.keep) as found:
            everything(clean | found, keep=chosen.keep, hostile=not chosen.no_hostile)
    except (AssertionError, CannotRun, urllib.error.URLError) as wrong:
        print(f"compose-test failed: {wrong}", file=sys.stderr)
        return 1
    print(f"compose-test passed in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
