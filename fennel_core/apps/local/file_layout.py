"""Paths of a local platform: the checkout, logs, pid files, secrets, jars and service data."""

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
"""The checkout this package runs from."""

SOCKET_PATH_BYTES: Final = 107
"""Linux's `sun_path` without its final zero byte: a longer path cannot be bound."""
SOCKET_NAME_BYTES: Final = 32
"""Reserved for the file name of a socket."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Folders of one local platform; `data` is absolute."""

    root: Path
    data: Path

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def pids(self) -> Path:
        return self.data / "pids"

    @property
    def secrets(self) -> Path:
        return self.data / "secrets"

    @property
    def jars(self) -> Path:
        """Jars; outside the data folder, so that deleting data needs no new download."""
        return self.root / ".fennel" / "jars"

    @property
    def env_file(self) -> Path:
        """Settings of the running platform (mode 0600: it contains passwords)."""
        return self.data / "env"

    @property
    def run(self) -> Path:
        """Folder of Unix sockets: `<data>/run`, or a private folder in the system's temporary
        folder if that path is too long for a socket.
        """
        near = self.data / "run"
        if len(os.fsencode(near)) + 1 + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES:
            return near
        digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"fennel-{os.getuid()}-{digest}"

    def log(self, service: str) -> Path:
        return self.logs / f"{service}.log"

    def make(self) -> None:
        """Create the folders, private to their owner; raises OSError."""
        for folder in (self.data, self.logs, self.pids, self.secrets, self.run):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.logs, self.pids, self.secrets):
            _restrict(folder, 0o700)

    def hide_data(self, *, others_enter: bool) -> None:
        """Restrict the folder of all data to its owner; raises OSError.

        `others_enter`: another user of the platform has files below it, and must pass.
        """
        _restrict(self.data, 0o711 if others_enter else 0o700)

    def shown(self, path: Path) -> str:
        """Return the path relative to the working directory if that is shorter."""
        relative = os.path.relpath(path)
        return relative if len(relative) < len(str(path)) else str(path)


def _restrict(folder: Path, mode: int) -> None:
    """Set the mode of a folder that this user owns; in containers it may be a volume's."""
    found = folder.stat()
    if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) != mode:
        folder.chmod(mode)
