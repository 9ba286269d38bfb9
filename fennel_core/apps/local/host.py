"""Facts about this machine, gathered once before anything is started."""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAMESPACE: Final = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""Postgres refuses to run as root. In a user namespace of its own it sees another uid, while files stay ours."""


class HostError(Exception):
    """This machine lacks something; the text is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Host:
    """`java`: its command. `unprivileged`: command prefix under which Postgres may run. `owner_uid`: who must own its files."""

    java: str
    unprivileged: tuple[str, ...]
    owner_uid: int


def look_around() -> Host:
    """Raises HostError."""
    prefix, owner = _unprivileged()
    return Host(java=_java(), unprivileged=prefix, owner_uid=owner)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        raise HostError("Java 17 is missing: run `make system`, or set JAVA_HOME to where it is.")
    return java


def _unprivileged() -> tuple[tuple[str, ...], int]:
    if os.getuid() != 0:
        return (), os.getuid()
    if shutil.which(NAMESPACE[0]) and subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0:
        return NAMESPACE, 0
    return _dropped()


def _dropped() -> tuple[tuple[str, ...], int]:
    """Where user namespaces are blocked, as in many containers: another uid, for whom the files must then be reachable."""
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        entry = pwd.getpwnam("nobody")
    prefix = ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups")
    if shutil.which("setpriv") is None:
        raise HostError(
            "Postgres refuses to run as root, and neither `unshare` nor `setpriv` (Debian's util-linux) can help: use an ordinary user."
        )
    return prefix, entry.pw_uid
