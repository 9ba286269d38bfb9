"""Inspect this machine once, before anything is started."""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fennel_core.apps.errors import SetupFailed


@dataclass(frozen=True, slots=True)
class HostEnvironment:
    """The commands and the user that services run with.

    `java`: path of the command. `unprivileged`: command prefix that lets Postgres run although we
    are root. `owner_uid`: owner of Postgres's files.
    """

    java: str
    unprivileged: tuple[str, ...]
    owner_uid: int


def inspect_host() -> HostEnvironment:
    """Return the environment of this machine; raises SetupFailed if Java or a user is missing."""
    if not _has_name(os.getuid()):
        raise SetupFailed(
            f"uid {os.getuid()} has no name in /etc/passwd; Postgres, Spark and Airflow need one. "
            "Run as a user that has a name."
        )
    prefix, owner = _unprivileged()
    return HostEnvironment(java=_java(), unprivileged=prefix, owner_uid=owner)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        raise SetupFailed("Java 17 is missing: run `make system`, or set JAVA_HOME.")
    return java


def _unprivileged() -> tuple[tuple[str, ...], int]:
    """Return prefix and file owner for Postgres, which refuses to run as root."""
    if os.getuid() != 0:
        return (), os.getuid()
    other = _unprivileged_user()
    # In a user namespace of its own Postgres sees another uid, while its files remain ours.
    namespace = ("unshare", "--user", f"--map-user={other.pw_uid}", f"--map-group={other.pw_gid}")
    if (
        shutil.which("unshare")
        and subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0  # noqa: S603  # a fixed list of arguments, and no shell
    ):
        return namespace, os.getuid()
    if shutil.which("setpriv") is None:
        raise SetupFailed(
            "Postgres refuses to run as root, and neither `unshare` nor `setpriv` is available. "
            "Run as an ordinary user."
        )
    # User namespaces are blocked, as in many containers: switch to another uid, which must then be
    # able to reach the files.
    return (
        "setpriv",
        f"--reuid={other.pw_uid}",
        f"--regid={other.pw_gid}",
        "--clear-groups",
    ), other.pw_uid


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _unprivileged_user() -> pwd.struct_passwd:
    """Return a user without privileges, preferably Postgres's own; raises SetupFailed."""
    by_name = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in ("postgres", "daemon", "nobody"):
        if name in by_name:
            return by_name[name]
    raise SetupFailed(
        "Postgres refuses to run as root, and this machine has no user `postgres`, "
        "`daemon` or `nobody`. Run as an ordinary user."
    )
