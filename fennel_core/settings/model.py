"""Every limit, address and switch of the platform, each with its unit and its reason.

Why one model: a limit that lives beside the code that obeys it is found only by whoever reads that
code. Here an operator sees all of them, and `FENNEL_<NAME>` in the environment changes any of them
for every process alike. The model reads the environment when it is *made* (`Settings()`), never
when it is imported, and touches neither disk nor network. What would break it: a process that reads
`os.environ` for itself, or a room that keeps a private constant for a limit that people may need to
change.

Passwords and tokens are `SecretStr`: they print as stars, and are read with `.get_secret_value()`
at the edge that needs them.
"""

from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_MS: Final = 1000
HOUR_MS: Final = 3600 * SECOND_MS
DAY_MS: Final = 24 * HOUR_MS

ENV_PREFIX: Final = "FENNEL_"
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # to know it, not to bind to it


class Orchestrator(StrEnum):
    """Who runs the steps of a commit: Airflow's DAG, or the definition server itself (the same
    code).
    """

    AIRFLOW = "airflow"
    INLINE = "inline"


class AddressSettings(BaseSettings):
    """Where each part listens. Everything binds to loopback unless told otherwise."""

    host: str = Field(
        "127.0.0.1",
        description="Address every server binds to. Loopback: nothing is reachable from outside "
        "by accident.",
    )
    published_host: str | None = Field(
        None,
        description="In a container, which binds to every address of its own: the host's address "
        "that publishes its ports. Unset: `host`.",
    )
    reach_by_name: bool = Field(
        False,
        description="Parts reach each other by their names, as containers do, instead of at "
        "`host`.",
    )
    query_port: int = Field(
        7400,
        gt=0,
        lt=65536,
        description="Query server, which is also the front door users talk to.",
    )
    definition_port: int = Field(
        7401,
        gt=0,
        lt=65536,
        description="Definition server: commits, branches, secrets, workspaces.",
    )
    ingest_port: int = Field(
        7402, gt=0, lt=65536, description="Ingest server: `log` and the barrier's input ends."
    )
    engine_port: int = Field(
        7403, gt=0, lt=65536, description="Health and metrics of the engine's driver."
    )
    history_port: int = Field(
        default_factory=lambda given: int(given["engine_port"]) + 1,
        gt=0,
        lt=65536,
        description="Health and metrics of the history writer; one above the engine's unless set.",
    )
    postgres_port: int = Field(7410, gt=0, lt=65536, description="The local Postgres server.")
    kafka_port: int = Field(7411, gt=0, lt=65536, description="The local Kafka broker (clients).")
    kafka_controller_port: int = Field(
        7413, gt=0, lt=65536, description="The local Kafka broker's KRaft controller listener."
    )
    s3_port: int = Field(7412, gt=0, lt=65536, description="The local S3 endpoint.")
    airflow_port: int = Field(
        7480, gt=0, lt=65536, description="Airflow's web server and REST API."
    )

    def address_of(self, part: str) -> str:
        """Where other parts reach the one of that name."""
        return part if self.reach_by_name else self.own_address

    @property
    def own_address(self) -> str:
        """Where a process reaches what it binds itself."""
        return "127.0.0.1" if self.host in EVERY_ADDRESS else self.host

    @property
    def users_address(self) -> str:
        """Where people on this machine reach what is for them."""
        return (
            self.own_address
            if self.published_host is None or self.published_host in EVERY_ADDRESS
            else self.published_host
        )

    @property
    def only_on_loopback(self) -> bool:
        """Whether nobody outside this machine reaches what binds to `host`. A published address
        speaks for a wildcard only: what binds to one address of a network is reached there,
        whatever else is said.
        """
        bound = (
            self.published_host
            if self.published_host is not None and self.host in EVERY_ADDRESS
            else self.host
        )
        return {bound, self.published_host or bound} <= LOOPBACK

    @property
    def query_url(self) -> str:
        return f"http://{self.users_address}:{self.query_port}"

    @property
    def airflow_pages(self) -> str:
        """Airflow for a browser; programs of the platform use `airflow_url`."""
        return f"http://{self.users_address}:{self.airflow_port}"

    @property
    def definition_url(self) -> str:
        return f"http://{self.address_of('definition')}:{self.definition_port}"

    @property
    def ingest_url(self) -> str:
        return f"http://{self.address_of('ingest')}:{self.ingest_port}"


class BackendSettings(BaseSettings):
    """How to reach Postgres, Kafka, S3 and Airflow, local or not."""

    postgres_dsn: SecretStr = Field(
        SecretStr("postgresql://fennel@127.0.0.1:7410/fennel"),
        description="Connection string of the platform's database. Secret, because it carries "
        "the password.",
    )
    kafka_bootstrap: str = Field(
        "127.0.0.1:7411", description="`host:port[,host:port]` of the Kafka brokers."
    )
    s3_endpoint: str = Field(
        "http://127.0.0.1:7412",
        description="S3 endpoint URL; the local one speaks path-style addresses.",
    )
    s3_region: str = Field(
        "us-east-1",
        description="Region put into signatures; local backends ignore it, Spark insists on one.",
    )
    s3_bucket: str = Field(
        "fennel",
        min_length=3,
        description="Bucket for snapshots, history and offline results (three letters at least).",
    )
    s3_access_key: str = Field("fennel", description="Access key of the bucket's user.")
    s3_secret_key: SecretStr = Field(SecretStr(""), description="Secret key of the bucket's user.")
    airflow_url: str = Field(
        "http://127.0.0.1:7480", description="Base URL of Airflow's API (`/api/v2` is appended)."
    )
    airflow_user: str = Field(
        "admin",
        description="User the definition server triggers DAGs as, and the one you log in as.",
    )
    airflow_password: SecretStr = Field(
        SecretStr(""), description="Its password, generated at first start."
    )
    orchestrator: Orchestrator = Field(
        Orchestrator.AIRFLOW,
        description="`airflow`, or `inline` to run a commit's steps in process.",
    )


class SecuritySettings(BaseSettings):
    """Who may do what, and where keys are."""

    dev_tokens: bool = Field(
        False,
        description="Let a token `dev-<name>` open workspace `<name>`, made at first use. For "
        "loopback only: it lets anyone in.",
    )
    admin_token: SecretStr = Field(
        SecretStr(""), description="Bearer token for `/api/v1/workspaces`; empty refuses everybody."
    )
    secrets_key_file: Path | None = Field(
        None, description="File with the key that encrypts users' secrets at rest (mode 0600)."
    )


class LimitSettings(BaseSettings):
    """The bounds. A change here changes cost or latency, never a result."""

    partitions: int = Field(
        4,
        gt=0,
        le=128,
        description="Partitions of each new dataset, at most one per key group: twice the default "
        "slots, so load can move.",
    )
    engine_slots: int = Field(
        2,
        gt=0,
        description="Long-lived Spark tasks that host job runners: one Python process and one "
        "core each.",
    )
    engine_spare_slots: int = Field(
        1,
        ge=0,
        description="Spark slots kept free for side jobs, so that a stuck runner cannot starve "
        "them.",
    )
    backfill_from_rows: int = Field(
        500_000,
        ge=0,
        description="Rows of history from which a Spark batch computes a new job partition; with "
        "less, the live lane is done as soon, and "
        "computes it unless its log has lost its beginning.",
    )
    lease_ms: int = Field(
        10_000,
        gt=0,
        description="Life of a slot's lease, ms. Longer stalls partitions after a crash, shorter "
        "evicts slots that only pause.",
    )
    transaction_timeout_ms: int = Field(
        10_000,
        gt=0,
        description="Kafka aborts an open transaction after this, ms: a frozen process stalls "
        "readers no longer.",
    )
    kafka_retention_ms: int = Field(
        7 * DAY_MS,
        gt=0,
        description="How long topics keep messages, ms. History on S3 keeps the rest.",
    )
    history_before_deletion: bool = Field(
        True,
        description="Delete a dataset's messages only as far as history on S3 has them. Off: by "
        "age alone, for those without history.",
    )
    retention_alarm_percent: int = Field(
        80,
        gt=0,
        lt=100,
        description="A needed message older than this share of the retention is an alarm: "
        "snapshots should long cover it.",
    )
    retention_check_s: float = Field(
        60.0, gt=0, description="How often the definition server looks who needs old messages, s."
    )
    kafka_replication: int = Field(
        1,
        gt=0,
        description="Copies of each new topic: 1 suits the local broker; a cluster wants 3, and "
        "its transaction log as many.",
    )
    supervisor_poll_ms: int = Field(
        3_000,
        gt=0,
        description="How often a supervisor reads the registry without being woken, ms: the "
        "price of a lost notification.",
    )
    iteration_bytes: int = Field(
        8 * MIB, gt=0, description="Bytes one iteration reads at most; bounds memory per runner."
    )
    state_cache_bytes: int = Field(
        64 * MIB,
        gt=0,
        description="RocksDB block cache of one slot, shared by all its job partitions.",
    )
    commit_threads: int = Field(
        8, gt=0, description="Threads per slot that carry Kafka commits, which block."
    )
    body_limit_bytes: int = Field(
        10 * MIB,
        gt=0,
        description="Largest request body, bytes. More answers 413 before it is read into memory.",
    )
    log_rows: int = Field(
        100_000,
        gt=0,
        description="Rows one `log` request may carry: they are one Kafka transaction.",
    )
    query_rows: int = Field(
        10_000,
        gt=0,
        description="Rows one `query` request may carry: they are answered from memory.",
    )
    lookup_timeout_ms: int = Field(
        2_000, gt=0, description="How long a query looks for the owner of a moved partition, ms."
    )
    commit_timeout_s: int = Field(
        120,
        gt=0,
        description="How long `commit` waits for its steps, s; they go on after that and the "
        "answer says so.",
    )
    warm_timeout_s: float = Field(
        60.0,
        gt=0,
        description="How long a commit waits for new jobs to catch up, s; after that reads stay "
        "where they are and recovery goes on.",
    )
    commit_lease_ms: int = Field(
        60_000,
        gt=0,
        description="A commit that shows no sign of life for this long, ms, is finished or "
        "undone by recovery.",
    )
    orphan_grace_ms: int = Field(
        HOUR_MS,
        gt=0,
        description="A topic that no ledger knows is deleted after this, ms: longer than any "
        "paused task may sleep.",
    )
    snapshot_minutes: int = Field(
        10,
        gt=0,
        lt=60,
        description="Every so many minutes each changed state is copied to S3: bounds how much "
        "is replayed after a loss.",
    )
    snapshots_kept: int = Field(
        3,
        gt=0,
        description="Snapshots of each job partition that stay: an older one helps when the "
        "newest is damaged.",
    )
    snapshot_grace_ms: int = Field(
        HOUR_MS,
        gt=0,
        description="A snapshot goes this long after it became one too many, ms: a restore may "
        "be reading it.",
    )
    drill_schedule: str = Field(
        "0 3 * * *",
        description="When job partitions are drilled (rebuilt beside the live ones, compared): "
        "cron line, UTC. Empty: never.",
    )
    drill_partitions: int = Field(
        8,
        gt=0,
        description="Job partitions of one scheduled drill: those whose last drill is longest ago.",
    )
    drill_bytes: int = Field(
        1024**3,
        gt=0,
        description="A larger state is skipped by scheduled drills, bytes: each is copied, "
        "fetched and read as a whole.",
    )
    history: bool = Field(
        True,
        description="Run the history writer: dataset topics go to S3 as Parquet. Off: only Kafka "
        "keeps them.",
    )
    history_trigger_s: float = Field(
        30.0,
        gt=0,
        description="How often the history writer looks for work, s. Readers add the topic's "
        "tail, so nothing waits for it.",
    )
    history_file_records: int = Field(
        1_000,
        gt=0,
        description="Messages of one partition that are worth a file at once: small files cost "
        "every later reader.",
    )
    history_max_wait_s: float = Field(
        300.0,
        gt=0,
        description="A partition with fewer messages is written after this, s: far less than "
        "Kafka keeps them.",
    )
    history_file_bytes: int = Field(
        32 * MIB,
        gt=0,
        description="Message bytes one file holds at most; a worker holds one file, decoded, in "
        "memory.",
    )
    history_batch_records: int = Field(
        20_000,
        gt=0,
        description="Messages of one batch over all partitions: bounds what is done again after "
        "a crash.",
    )
    history_workers: int = Field(
        2,
        gt=0,
        description="Spark tasks of the history writer that run at once, one Python process each.",
    )
    history_grace_ms: int = Field(
        HOUR_MS,
        gt=0,
        description="Objects that no row names, and deleted topics' history, go after this, ms: "
        "somebody may be writing or reading.",
    )
    reconcile_interval_s: float = Field(
        2.0,
        gt=0,
        description="How often the definition server looks for unfinished commits and open "
        "destructions, s.",
    )
    barrier_timeout_s: float = Field(30.0, gt=0, description="Default deadline of a barrier, s.")
    executor_processes: int = Field(
        2, gt=0, description="Pre-forked Python processes that run user code."
    )
    executor_time_limit_ms: int = Field(
        10_000,
        gt=0,
        description="A call of user code longer than this, ms, is killed and fails its request.",
    )
    executor_memory_limit_bytes: int = Field(
        2 * GIB,
        gt=0,
        description="Address space beyond the warm process that a call may take, bytes.",
    )
    executor_calls_per_process: int = Field(
        10_000,
        gt=0,
        description="Calls after which a process is replaced: bounds what user code leaks.",
    )
    shutdown_grace_s: float = Field(
        20.0, gt=0, description="How long a stopped process may take before it is killed, s."
    )


class PathSettings(BaseSettings):
    """Folders. Relative ones are taken from the working directory."""

    data_dir: Path = Field(
        Path(".fennel"),
        description="Everything the local platform writes: data, logs, pids, generated secrets.",
    )
    run_dir: Path | None = Field(
        None,
        description="Unix sockets and pid files; `<data_dir>/run` unless its path is too long "
        "for a socket (107 bytes).",
    )
    executors_dir: Path | None = Field(
        None,
        description="Folder of the executors' socket, where their user code shall not see the "
        "slots' sockets; unset: beside them.",
    )
    jars_dir: Path = Field(
        Path(".fennel/jars"),
        description="Folders `kafka`, `s3` and `spark` with the jars that Maven resolved.",
    )
    executor_python: Path = Field(
        Path(".venv-executor/bin/python"),
        description="Python of the client's environment, in which user code runs.",
    )
    log_level: str = Field("INFO", description="Least severe level that is logged.")
    otlp_endpoint: str | None = Field(
        None, description="OpenTelemetry collector (OTLP over HTTP); unset sends no traces."
    )

    @property
    def sockets_dir(self) -> Path:
        """Where slots put their Unix sockets."""
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


class Settings(AddressSettings, BackendSettings, SecuritySettings, LimitSettings, PathSettings):
    """All settings of one process, read from `FENNEL_*` when made.

    Raises `pydantic.ValidationError` naming each variable that cannot be used. Frozen: a running
    process never changes its mind. `Settings(_env_file=path)` reads a file that `fennel-core env
    --all` wrote, below the environment.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="ignore", env_ignore_empty=True
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        if self.dev_tokens and not self.only_on_loopback:
            where = f"FENNEL_HOST={self.host}" + (
                f", FENNEL_PUBLISHED_HOST={self.published_host}" if self.published_host else ""
            )
            raise ValueError(
                f"FENNEL_DEV_TOKENS lets anyone in and {where} is not loopback: turn "
                "one of them off"
            )
        return self
