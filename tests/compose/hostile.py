"""The hostile programs of tests/hostile, in the confinement of the running containers."""

from __future__ import annotations

from typing import Final

from tests.compose.stack import PREFIX, ROOT, Stack

TESTS: Final = tuple(
    word
    for name in ("tests", "pyproject.toml")
    for word in ("-v", f"{ROOT / name}:/opt/fennel-core/{name}:ro")
)
PYTEST: Final = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")


def attack_the_executors(stack: Stack) -> None:
    """Run tests/hostile/test_hostile.py against the executors' container.

    The tests run in a container that shares its processes, network and volume.
    """
    known = stack.containers()
    target = f"container:{known['executors']['Id']}"
    confined = ("--cap-drop", "ALL", "--pid", target, "--network", target)
    stack.show(
        *("run", "--rm", *confined, "--volumes-from", known["executors"]["Id"], *TESTS),
        *("-e", "HOSTILE_EXECUTORS_SOCKET=/data/executors/executors.sock"),
        *(known["ingest"]["Image"], *PYTEST, "tests/hostile/test_hostile.py"),
    )


def attack_the_platform(stack: Stack) -> None:
    """Run tests/hostile/on_platform.py: the client commits the programs to the containers.

    The tests run in a container with all keys, and on the query server's network: the published
    address is one of that container.
    """
    query = stack.containers()["query"]
    variables = [
        word
        for each in query["Config"]["Env"]
        if each.startswith("FENNEL_")
        for word in ("-e", each)
    ]
    volumes = [
        word
        for name, access in (("secrets", "ro"), ("executors", "rw"))
        for word in ("-v", f"{PREFIX}_{name}:/data/{name}:{access}")
    ]
    stack.show(
        *("run", "--rm", "--cap-drop", "ALL", "--network", f"container:{query['Id']}"),
        *(*variables, *volumes, *TESTS, query["Image"], *PYTEST),
        *("-m", "platform", "tests/hostile/on_platform.py"),
    )
