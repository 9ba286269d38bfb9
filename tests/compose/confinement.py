"""What a container can reach: checked by the engine's description of it and from inside of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fennel_core.apps.local.services import WITH_KEYS, keys_of
from tests.compose.stack import Stack

SPARK: Final = frozenset({"airflow-scheduler", "engine", "history", "sources"})
"""Containers whose root is writable: Spark keeps temporary files on disk."""
EXECUTORS_MEMORY: Final = 6 << 30
INSIDE: Final = """
import json, os, socket
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())
def refused(what, *words):
    try:
        what(*words)
    except OSError as error:
        return type(error).__name__ + ': ' + str(error)
    return 'done'
print(json.dumps({
    'uid': os.getuid(),
    'data': sorted(os.listdir('/data')),
    'capabilities': [status[name] for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')],
    'no_new_privileges': status['NoNewPrivs'],
    'seccomp': status['Seccomp'],
    'networks': os.listdir('/sys/class/net'),
    'write': refused(open, '/opt/fennel-core/new', 'w'),
    'connect': {
        name: refused(socket.create_connection, (name, port), 3)
        for name, port in %s
    },
}))
"""
KEYS_INSIDE: Final = """
import glob, json, os
found = {}
for path in glob.glob('/data/secrets/*') + glob.glob('/proc/[0-9]*/environ'):
    try:
        found[path] = open(path).read()
    except OSError:
        pass
print(json.dumps(found))
"""

ALL_KEYS: Final = """
import json, pathlib
print(json.dumps({path.name: path.read_text() for path in pathlib.Path('/data/secrets').iterdir()}))
"""


def check_limits(stack: Stack) -> None:
    """Check that every container has no capabilities, and executors no network and less memory."""
    for service, container in stack.containers().items():
        host = container["HostConfig"]
        assert host["CapDrop"] == ["ALL"], service
        assert not host["Privileged"], service
        assert any(each.startswith("no-new-privileges") for each in host["SecurityOpt"]), service
        assert host["PidsLimit"] > 0, service
        assert host["ReadonlyRootfs"] is (service not in SPARK | {"secrets"}), service
        bindings = [
            each["HostIp"]
            for found in (container["NetworkSettings"]["Ports"] or {}).values()
            for each in found or []
        ]
        assert set(bindings) <= {"127.0.0.1"}, (service, bindings)
    executors = stack.containers()["executors"]["HostConfig"]
    assert (executors["NetworkMode"], executors["Memory"]) == ("none", EXECUTORS_MEMORY)
    assert executors["CpuShares"] > 0


def check_user_codes_container(stack: Stack) -> None:
    """Check from inside that user code reaches neither keys, files, nor other containers."""
    ports = {"kafka": 7411, "postgres": 7410, "query": stack.query_port}
    seen = _python(stack, "executors", INSIDE % (list(ports.items()),))
    assert seen.pop("write").endswith("Read-only file system: '/opt/fennel-core/new'")
    unreachable = seen.pop("connect")
    assert ports.keys() == unreachable.keys()
    assert all(each.startswith("gaierror") for each in unreachable.values()), unreachable
    assert seen == {
        "uid": 7400,
        "data": ["executors"],
        "capabilities": ["0000000000000000"] * 5,
        "no_new_privileges": "1",
        "seccomp": "2",
        "networks": ["lo"],
    }


def check_keys(stack: Stack) -> None:
    """Check that a container holds the keys of its service only, in files and environments."""
    words = ("run", "--rm", "--no-deps", "-T", "secrets", "python", "-c", ALL_KEYS)
    keys: Mapping[str, str] = json.loads(stack.output(*words))
    assert "admin_token" in keys
    for service in sorted(WITH_KEYS):
        found = _python(stack, service, KEYS_INSIDE)
        held = {name for name, key in keys.items() if any(key in text for text in found.values())}
        assert held == keys_of(service), (service, held ^ keys_of(service))


def check_development_tokens(stack: Stack) -> None:
    """Check that development tokens are refused off loopback."""
    words = ("run", "--rm", "--no-deps", "-e", "FENNEL_PUBLISHED_HOST=0.0.0.0")
    assert "is not loopback" in stack.failing_output(
        *words, "-e", "FENNEL_DEV_TOKENS=true", "query"
    )


def _python(stack: Stack, service: str, program: str) -> Any:
    return json.loads(stack.output("exec", "-T", service, "python", "-c", program))
