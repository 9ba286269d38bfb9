"""Base images for machines that cannot pull public ones: Debian from the mirror that apt uses.

`base` is a minimal Debian: the Dockerfile installs Python and Java. `builder` adds this machine's
configuration of pip, Maven and apt. Only the first build stage uses it, so none of that is in a
finished image.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.compose.engine import CannotRun, run

SUITE: Final = "bookworm"
CERTIFICATES: Final = Path("/usr/local/share/ca-certificates")
PIP: Final = (Path("~/.config/pip/pip.conf"), Path("~/.pip/pip.conf"), Path("/etc/pip.conf"))
MAVEN: Final = Path("~/.m2/settings.xml")
PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy")


def make_bases(prefix: str, env: dict[str, str]) -> dict[str, str]:
    """Return `FENNEL_BASE` and `FENNEL_BUILDER`; existing images are kept."""
    base, builder = f"{prefix}/base:local", f"{prefix}/builder:local"
    have = run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", env=env).split()
    if base not in have:
        _import_debian(base, env)
    if builder not in have:
        _build_builder(base, builder, env)
    return {"FENNEL_BASE": base, "FENNEL_BUILDER": builder}


def _import_debian(name: str, env: dict[str, str]) -> None:
    print(f"making {name}: Debian {SUITE}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fennel-debian-", dir="/var/tmp") as folder:
        done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [  # noqa: S607  # found on the PATH, as by its users
                "debootstrap",
                "--variant=minbase",
                "--include=ca-certificates",
                SUITE,
                folder,
                _mirror(),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CannotRun(f"debootstrap could not make Debian: {done.stdout[-2000:]}")
        with subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
            ["tar", "-C", folder, "--one-file-system", "-c", "."],  # noqa: S607  # found on the PATH, as by its users
            stdout=subprocess.PIPE,
        ) as tar:
            subprocess.run(  # noqa: S603  # a program of this test, and no shell
                ["docker", "import", "-", name],  # noqa: S607  # found on the PATH, as by its users
                stdin=tar.stdout,
                stdout=subprocess.DEVNULL,
                env=env,
                check=True,
            )


def _mirror() -> str:
    """Return the address from which apt gets Debian itself (not its updates)."""
    lines = run(
        "apt-get",
        "indextargets",
        "--format",
        "$(CODENAME) $(ORIGIN) $(SITE)",
        "Created-By: Packages",
    ).splitlines()
    found = [
        site
        for codename, origin, site in (line.split(" ", 2) for line in lines)
        if (codename, origin) == (SUITE, "Debian")
    ]
    if not found:
        raise CannotRun(
            f"apt has no Debian {SUITE} on this machine to make the base image from. "
            "Run apt-get update first."
        )
    return found[0]


def _build_builder(base: str, name: str, env: dict[str, str]) -> None:
    print(f"making {name}: the same with this machine's certificates and mirrors", flush=True)
    with tempfile.TemporaryDirectory(prefix="fennel-builder-") as folder:
        inside = Path(folder, "root")
        _copy(CERTIFICATES, inside / "usr/local/share/ca-certificates")
        _copy(
            next((path.expanduser() for path in PIP if path.expanduser().exists()), PIP[0]),
            inside / "etc/pip.conf",
        )
        _copy(MAVEN.expanduser(), inside / "root" / ".m2" / "settings.xml")
        proxies = [
            f"ENV {each}={os.environ[each]}"
            for name in PROXIES
            for each in (name, name.upper())
            if os.environ.get(each)
        ]
        lines = [f"FROM {base}", "COPY root /", "RUN update-ca-certificates", *proxies]
        Path(folder, "Dockerfile").write_text("\n".join(lines) + "\n")
        run("docker", "build", "-q", "-t", name, folder, env=env)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copy(source, target)
