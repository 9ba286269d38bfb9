"""Settings of folders and of the process itself."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings


class PathSettings(BaseSettings):
    """Folders and process identity. Relative paths start at the working directory."""

    data_dir: Path = Field(
        Path(".fennel"),
        description="Folder of everything that the local platform writes: data, logs, pid files, "
        "secrets.",
    )
    run_dir: Path | None = Field(
        None,
        description="Folder of Unix sockets; `<data_dir>/run` unless its path is too long for a "
        "socket (107 bytes).",
    )
    executors_dir: Path | None = Field(
        None,
        description="Folder of the executors' socket, if user code must not see the slots' "
        "sockets. Unset: `run_dir`.",
    )
    jars_dir: Path = Field(
        Path(".fennel/jars"),
        description="Folder with the jars that Maven resolved, in `kafka`, `s3` and `spark`.",
    )
    executor_python: Path = Field(
        Path(".venv-executor/bin/python"),
        description="Python of the client's environment, in which user code runs.",
    )
    executor_requirements: Path | None = Field(
        None,
        description="Requirements file of the installation: packages for user code, which "
        "`make env` (and `make up`) installs beside the client's.",
    )
    log_level: str = Field("INFO", description="Minimum level of log lines.")
    otlp_endpoint: str | None = Field(
        None, description="OpenTelemetry collector (OTLP over HTTP). Unset: no traces are sent."
    )

    @property
    def sockets_dir(self) -> Path:
        """Folder of the slots' Unix sockets."""
        return self.run_dir if self.run_dir is not None else self.data_dir / "run"

    @property
    def executors_socket(self) -> Path:
        return (self.executors_dir or self.sockets_dir) / "executors.sock"

    @property
    def logs_dir(self) -> Path:
        return self.data_dir / "logs"

    @property
    def state_dir(self) -> Path:
        """Local RocksDB folders of the slots."""
        return self.data_dir / "state"
