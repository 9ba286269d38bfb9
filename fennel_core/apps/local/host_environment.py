"""Facts about this machine, gathered once before anything is started."""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fennel_core.apps.errors import SetupFailed


@dataclass(frozen=True, slots=True)
class HostEnvironment:
    """`java`: its command. `unprivileged`: command prefix under which Postgres may run.
    `owner_uid`: who must own its files.
    """

    java: str
    unprivileged: tuple[str, ...]
    owner_uid: int


def inspect_host() -> HostEnvironment:
    """Raises HostError."""
    if not _has_name(os.getuid()):
        raise SetupFailed(
            "Postgres, Spark and Airflow all ask for the user's name, and uid "
            f"{os.getuid()} has none in /etc/passwd: use one that has."
        )
    prefix, owner = _unprivileged()
    return HostEnvironment(java=_java(), unprivileged=prefix, owner_uid=owner)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        raise SetupFailed("Java 17 is missing: run `make system`, or set JAVA_HOME to where it is.")
    return java


def _unprivileged() -> tuple[tuple[str, ...], int]:
    """Postgres refuses to run as root."""
    if os.getuid() != 0:
        return (), os.getuid()
    other = _somebody()
    # In a user namespace of its own it sees another uid, while its files stay ours.
    namespace = ("unshare", "--user", f"--map-user={other.pw_uid}", f"--map-group={other.pw_gid}")
    if (
        shutil.which("unshare")
        and subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0
    ):
        return namespace, os.getuid()
    if shutil.which("setpriv") is None:
        raise SetupFailed(
            "Postgres refuses to run as root, and neither `unshare` nor `setpriv` "
            "can help: use an ordinary user."
        )
    # Where user namespaces are blocked, as in many containers: another uid, for whom the files must
    # then be reachable.
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


def _somebody() -> pwd.struct_passwd:
    """A user without rights that exists everywhere, Postgres's own before others. Raises
    HostError.
    """
    by_name = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in ("postgres", "daemon", "nobody"):
        if name in by_name:
            return by_name[name]
    raise SetupFailed(
        "Postgres refuses to run as root, and this machine has no user `postgres`, "
        "`daemon` or `nobody`: use an ordinary user."
    )
